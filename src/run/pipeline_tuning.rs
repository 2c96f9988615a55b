//! `--tune-passes`: pipelines of passes that are measured in turns, and the fastest of them.
//!
//! A text stands for several pipelines: outside braces, `|` separates whole pipelines; within braces, it separates
//! alternatives of a word. `@lower|@lower,@overlap{count=2|4}` stands for `@lower`, `@lower,@overlap{count=2}` and
//! `@lower,@overlap{count=4}`. All pipelines run in one job, in the given order and then in the opposite order, so
//! that a slow change of the GPUs' clocks affects all of them equally.
//!
//! Invariant: the exit code of the job depends only on exit codes on which all ranks agree, because only rank 0 has times.

use crate::exit::Exit;

/// Maximum number of pipelines.
pub const MAX_PIPELINES: usize = 64;
/// Number of measurements of each pipeline.
pub const ROUNDS: usize = 2;

/// The characters that end a word of a pipeline.
const DELIMITERS: [char; 7] = ['{', '}', ',', ';', ':', '=', '/'];

/// The measurements of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredPipeline {
    /// The text of the pipeline.
    pub passes: String,
    /// By round: the median of the timed runs on the slowest rank, in microseconds; `None` if the run failed.
    pub rounds: [Option<f64>; ROUNDS],
    /// The exit code of the first run that failed, or of success.
    pub exit: Exit,
}

impl MeasuredPipeline {
    /// Creates a pipeline that has not run.
    pub fn new(passes: String) -> Self {
        Self { passes, rounds: [None; ROUNDS], exit: Exit::Success }
    }

    /// Adds the result of a round: the exit code and, if the run was timed, its median.
    pub fn add(&mut self, round: usize, exit: Exit, median: Option<f64>) {
        if self.exit == Exit::Success {
            self.exit = exit;
        }
        if let Some(it) = self.rounds.get_mut(round) {
            *it = median.filter(|_| exit == Exit::Success);
        }
    }

    /// Returns the text of the pipeline in a table.
    pub fn shown(&self) -> &str {
        if self.passes.is_empty() { "(no passes)" } else { &self.passes }
    }

    /// Returns the mean of all rounds, or `None` if one of them failed.
    fn time(&self) -> Option<f64> {
        let rounds: Option<Vec<f64>> = self.rounds.iter().copied().collect();
        rounds.map(|it| it.iter().sum::<f64>() / ROUNDS as f64)
    }

    /// Returns the difference of the slowest and the fastest round.
    fn spread(&self) -> f64 {
        let rounds = self.rounds.iter().flatten();
        let (least, most) =
            rounds.fold((f64::INFINITY, 0.0_f64), |(least, most), it| (least.min(*it), most.max(*it)));
        (most - least).max(0.0)
    }

    /// Returns true if the program was not run with this pipeline, because the pipeline does not apply to it. The other
    /// pipelines are compared nevertheless.
    fn is_refused(&self) -> bool {
        matches!(self.exit, Exit::Rejected | Exit::Usage)
    }

    /// Returns true if the program was run with this pipeline and failed, which fails the job.
    fn has_failed(&self) -> bool {
        self.exit != Exit::Success && !self.is_refused()
    }

    /// Returns what happened instead of a measurement.
    fn status(&self) -> &'static str {
        match self.exit {
            Exit::Success => "not run",
            _ if self.is_refused() => "refused",
            Exit::WrongResult => "wrong result",
            Exit::Hang => "hang",
            Exit::Check => "check failed",
            _ => "failed",
        }
    }
}

/// Returns the pipelines that a text stands for, the alternatives of the first word in the outer loop.
///
/// # Errors
/// A pipeline or an alternative is empty, or there are more than `MAX_PIPELINES`.
pub fn alternatives(text: &str) -> Result<Vec<String>, String> {
    let pipelines = separated(text);
    if pipelines.len() > 1 && pipelines.contains(&"") {
        return Err(format!(
            "`{text}` has an empty pipeline: outside braces, `a|b` stands for two pipelines"
        ));
    }
    let mut all = Vec::new();
    for it in pipelines {
        all.extend(expanded(it)?);
        if all.len() > MAX_PIPELINES {
            return Err(too_many(text));
        }
    }
    Ok(all)
}

/// Returns the parts of a text between the `|` outside braces.
fn separated(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let parts = text.split(|it| {
        match it {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        it == '|' && depth == 0
    });
    parts.map(str::trim).collect()
}

/// Returns the pipelines that a text stands for in which words are alternatives.
fn expanded(text: &str) -> Result<Vec<String>, String> {
    let mut all = vec![String::new()];
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|it: char| DELIMITERS.contains(&it) || it.is_whitespace()).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let words: Vec<&str> = word.split('|').collect();
        if words.len() > 1 && words.contains(&"") {
            return Err(format!(
                "`{word}` has an empty alternative: within braces, `a|b` stands for one of two words, without blanks"
            ));
        }
        if all.len() * words.len() > MAX_PIPELINES {
            return Err(too_many(text));
        }
        all = all.iter().flat_map(|start| words.iter().map(move |it| format!("{start}{it}"))).collect();
        let delimiter = after.chars().next().map_or(0, char::len_utf8);
        all.iter_mut().for_each(|it| it.push_str(&after[..delimiter]));
        rest = &after[delimiter..];
    }
    Ok(all)
}

/// Returns the pipelines that several texts stand for, each once. Blanks and line breaks become single blanks.
///
/// # Errors
/// As for `alternatives`.
pub fn all_alternatives(texts: &[String]) -> Result<Vec<String>, String> {
    let mut all: Vec<String> = Vec::new();
    for text in texts {
        let text = &text.split_whitespace().collect::<Vec<_>>().join(" ");
        for it in alternatives(text)? {
            if !all.contains(&it) {
                all.push(it);
            }
        }
        if all.len() > MAX_PIPELINES {
            return Err(too_many(text));
        }
    }
    Ok(all)
}

fn too_many(text: &str) -> String {
    format!("with `{text}` there are more than {MAX_PIPELINES} pipelines; give fewer alternatives")
}

/// Returns the exit code of the job: that of the first pipeline that was run and failed, or success if one was measured,
/// or that of the first pipeline.
pub fn exit_code(all: &[MeasuredPipeline]) -> Exit {
    let failed = all.iter().find(|it| it.has_failed());
    let is_measured = all.iter().any(|it| it.exit == Exit::Success);
    match failed.or(all.first().filter(|_| !is_measured)) {
        Some(it) => it.exit,
        None => Exit::Success,
    }
}

/// How the pipelines of a job were measured.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    /// Number of timed runs in a round.
    pub runs: usize,
    /// Minimum number of runs before them.
    pub warmup: usize,
    /// True for captured graphs.
    pub graph: bool,
    /// Number of ranks.
    pub ranks: usize,
    /// True if outputs were compared with expected ones.
    pub compares: bool,
}

/// Returns the table of all pipelines, the fastest first, and the verdict.
pub fn report(all: &[MeasuredPipeline], how: Measurement) -> (Vec<String>, String) {
    let key = |it: &MeasuredPipeline| it.time().unwrap_or(f64::INFINITY);
    let mut order: Vec<&MeasuredPipeline> = all.iter().collect();
    order.sort_by(|a, b| key(a).total_cmp(&key(b)));
    let issue = if how.graph { "one graph" } else { "step by step" };
    let mut lines = vec![
        format!(
            "# pipelines: median of {} runs in microseconds, {issue}, MAX over ranks; round 2 has the opposite order",
            how.runs
        ),
        format!("# {:>12} {:>12} {:>8}  pipeline", "round 1", "round 2", "ratio"),
    ];
    let least = order.first().and_then(|it| it.time());
    lines.extend(order.iter().map(|it| match (it.time(), least, it.rounds) {
        (Some(time), Some(least), [Some(first), Some(second)]) => {
            format!("  {first:>12.2} {second:>12.2} {:>8.3}  {}", time / least.max(1e-3), it.shown())
        }
        _ => format!("  {:>12} {:>12} {:>8}  {}", it.status(), "-", "-", it.shown()),
    }));
    let measured = order.iter().filter(|it| it.time().is_some()).count();
    if let [best, second, ..] = order[..measured] {
        let spread = best.spread().max(second.spread());
        if key(second) - key(best) <= spread {
            lines.push(format!(
                "# the difference of the two fastest pipelines is not larger than that between two rounds of one \
                 pipeline ({spread:.2} us): measure more runs (`-n`)"
            ));
        }
    }
    (lines, verdict(all, &order, how.compares))
}

/// Returns the last line of the report. `order` begins with the fastest pipeline.
fn verdict(all: &[MeasuredPipeline], order: &[&MeasuredPipeline], compares: bool) -> String {
    let measured = order.iter().filter(|it| it.time().is_some()).count();
    let refused = all.iter().filter(|it| it.is_refused()).count();
    let refused = if refused > 0 { format!("; {refused} refused") } else { String::new() };
    if let Some(failed) = all.iter().find(|it| it.has_failed()) {
        let count = all.iter().filter(|it| it.has_failed()).count();
        return format!(
            "[FAILED] {count} of {} pipelines failed, the first is --passes '{}': {}{refused}",
            all.len(),
            failed.passes,
            failed.status()
        );
    }
    let compared = match compares {
        true => "outputs as expected",
        false => "no output compared (`--expect`, `--reference`)",
    };
    match order.first().filter(|it| it.time().is_some()) {
        None => format!("[FAILED] no pipeline was measured{refused}"),
        Some(best) if measured == 1 => {
            format!("[SUCCESS] the only pipeline measured is --passes '{}'; {compared}{refused}", best.passes)
        }
        Some(best) => {
            format!(
                "[SUCCESS] the fastest of {measured} pipelines is --passes '{}'; {compared}{refused}",
                best.passes
            )
        }
    }
}

/// Returns the measurements as JSON.
pub fn json(all: &[MeasuredPipeline], how: Measurement, program: &[String]) -> serde_json::Value {
    let pipeline = |it: &MeasuredPipeline| {
        serde_json::json!({
            "passes": it.passes, "rounds_us": it.rounds, "time_us": it.time(), "exit_code": it.exit as u8,
        })
    };
    let pipelines: Vec<serde_json::Value> = all.iter().map(pipeline).collect();
    serde_json::json!({
        "program": program,
        "ranks": how.ranks,
        "runs": how.runs,
        "warmup": how.warmup,
        "graph": how.graph,
        "compared": how.compares,
        "exit_code": exit_code(all) as u8,
        "pipelines": pipelines,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expanded(text: &str) -> Vec<String> {
        alternatives(text).unwrap_or_else(|it| vec![it])
    }

    #[test]
    fn bars_separate_pipelines_or_words() {
        assert_eq!(expanded("a"), ["a"]);
        assert_eq!(expanded("@lower,b{count=2|4}"), ["@lower,b{count=2}", "@lower,b{count=4}"]);
        assert_eq!(expanded("@a,c | @b{x=1|2},c|d"), ["@a,c", "@b{x=1},c", "@b{x=2},c", "d"]);
        assert_eq!(
            expanded("s{table=Allreduce/2:64K=nccl|one-shot;*=nccl}"),
            ["s{table=Allreduce/2:64K=nccl;*=nccl}", "s{table=Allreduce/2:64K=one-shot;*=nccl}"]
        );
        assert!(expanded("a{x=1||2}")[0].starts_with("`1||2` has an empty alternative: "));
        assert!(expanded("a{x=1 |2}")[0].starts_with("`|2` has an empty alternative: "));
        assert!(expanded("a||b")[0].starts_with("`a||b` has an empty pipeline: "));
        let eight = "1|2|3|4|5|6|7|8";
        assert_eq!(expanded(&format!("a{{x={eight},y={eight}}}")).len(), MAX_PIPELINES);
        assert!(expanded(&format!("a{{x={eight},y={eight},z=1|2}}"))[0].contains("more than 64"));
    }

    const HOW: Measurement = Measurement { runs: 20, warmup: 5, graph: false, ranks: 2, compares: true };

    fn measured(passes: &str, rounds: [f64; 2]) -> MeasuredPipeline {
        let mut it = MeasuredPipeline::new(passes.to_owned());
        rounds.iter().enumerate().for_each(|(round, time)| it.add(round, Exit::Success, Some(*time)));
        it
    }

    fn failed(passes: &str, exit: Exit) -> MeasuredPipeline {
        let mut it = MeasuredPipeline::new(passes.to_owned());
        it.add(0, exit, Some(1.0));
        it
    }

    #[test]
    fn texts_differ_by_more_than_blanks() {
        let texts = ["@lower ".to_owned(), " @lower,\n b|\nc".to_owned(), "@lower|c".to_owned()];
        assert_eq!(all_alternatives(&texts), Ok(vec!["@lower".into(), "@lower, b".into(), "c".into()]));
    }

    #[test]
    fn the_fastest_pipeline_is_named() {
        let all = [failed("c", Exit::Rejected), measured("a", [20.0, 24.0]), measured("", [10.0, 12.0])];
        let (lines, verdict) = report(&all, HOW);
        assert_eq!(
            lines[2..],
            [
                "         10.00        12.00    1.000  (no passes)",
                "         20.00        24.00    2.000  a",
                "       refused            -        -  c",
            ]
        );
        assert_eq!(
            verdict,
            "[SUCCESS] the fastest of 2 pipelines is --passes ''; outputs as expected; 1 refused"
        );
        let near = [measured("a", [20.0, 24.0]), measured("b", [21.0, 22.0])];
        let (lines, verdict) = report(&near, Measurement { compares: false, ..HOW });
        assert!(
            lines.iter().any(|it| it.contains("is not larger than that between two rounds of one pipeline (4.00 us)")),
            "{lines:?}"
        );
        assert!(verdict.ends_with("no output compared (`--expect`, `--reference`)"), "{verdict}");
    }

    #[test]
    fn a_pipeline_that_fails_is_not_the_fastest() {
        let mut late = measured("d", [1.0, 1.0]);
        late.add(1, Exit::WrongResult, Some(1.0));
        let all = [failed("c", Exit::Usage), late, measured("b", [10.0, 12.0])];
        let (lines, verdict) = report(&all, HOW);
        assert_eq!(lines[2], "         10.00        12.00    1.000  b");
        assert_eq!(
            verdict,
            "[FAILED] 1 of 3 pipelines failed, the first is --passes 'd': wrong result; 1 refused"
        );
        assert_eq!(exit_code(&all), Exit::WrongResult);
        assert_eq!(report(&all[..1], HOW).1, "[FAILED] no pipeline was measured; 1 refused");
    }

    /// Only rank 0 has times.
    #[test]
    fn all_ranks_have_one_exit_code() {
        let without_times = |it: &MeasuredPipeline| MeasuredPipeline { rounds: [None; ROUNDS], ..it.clone() };
        let all = [
            failed("c", Exit::Rejected),
            measured("a", [20.0, 24.0]),
            failed("e", Exit::Usage),
            failed("f", Exit::Check),
        ];
        for (count, exit) in [(1, Exit::Rejected), (2, Exit::Success), (3, Exit::Success), (4, Exit::Check)] {
            let others: Vec<MeasuredPipeline> = all[..count].iter().map(without_times).collect();
            assert_eq!((exit_code(&all[..count]), exit_code(&others)), (exit, exit), "{count}");
        }
    }

    proptest! {
        /// Without alternatives a text stands for itself, and with them for different pipelines without `|`.
        #[test]
        fn texts_are_kept(text in "[a-c@={},;:/| é]{0,24}") {
            match alternatives(&text) {
                Ok(all) => {
                    prop_assert!(text.contains('|') || all == [text.trim()]);
                    prop_assert!(all.iter().all(|it| !it.contains('|')));
                }
                Err(why) => prop_assert!(why.contains("empty") || why.contains("more than")),
            }
        }
    }
}
