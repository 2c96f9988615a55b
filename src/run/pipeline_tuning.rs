//! `--tune-passes`: pipelines of passes that are measured in turns, and the fastest of them.
//!
//! A text stands for several pipelines if words of it are alternatives: `@overlap{count=2|4}` stands for
//! `@overlap{count=2}` and `@overlap{count=4}`. All pipelines run in one job, in the given order and then in the
//! opposite order, so that a slow change of the GPUs' clocks affects all of them equally.

use std::fmt::Write as _;

use crate::exit::Exit;

/// Maximum number of pipelines.
pub const MAX_PIPELINES: usize = 64;
/// Number of measurements of each pipeline.
pub const ROUNDS: usize = 2;

/// The characters that end a word of a pipeline.
const DELIMITERS: [char; 7] = ['{', '}', ',', ';', ':', '=', '/'];

/// What was measured of a pipeline.
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

    /// Returns true if the program was not run with this pipeline, because the pipeline does not apply to it or the
    /// plans do not fit on the machine. The other pipelines are compared nevertheless.
    fn is_refused(&self) -> bool {
        matches!(self.exit, Exit::Rejected | Exit::Usage | Exit::Environment)
    }
}

/// Returns the pipelines that a text stands for, the alternatives of the first word in the outer loop.
///
/// # Errors
/// An alternative is empty, or there are more than `MAX_PIPELINES`.
pub fn alternatives(text: &str) -> Result<Vec<String>, String> {
    let mut all = vec![String::new()];
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|it: char| DELIMITERS.contains(&it) || it.is_whitespace()).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let words: Vec<&str> = word.split('|').collect();
        if words.len() > 1 && words.contains(&"") {
            return Err(format!("`{word}` has an empty alternative"));
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

/// Returns the pipelines that several texts stand for, each once.
///
/// # Errors
/// As for `alternatives`.
pub fn all_alternatives(texts: &[String]) -> Result<Vec<String>, String> {
    let mut all: Vec<String> = Vec::new();
    for text in texts {
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

/// Returns the table of all pipelines, the fastest first, and the verdict. `rounds` says how each round was measured.
/// `compared` says that outputs were compared with expected ones.
pub fn report(all: &[MeasuredPipeline], rounds: &str, compared: bool) -> (Vec<String>, Exit) {
    let mut order: Vec<&MeasuredPipeline> = all.iter().collect();
    order.sort_by(|a, b| a.time().unwrap_or(f64::INFINITY).total_cmp(&b.time().unwrap_or(f64::INFINITY)));
    let mut lines = vec![
        format!("# microseconds of a run: {rounds}"),
        format!("# {:>12} {:>12} {:>8}  pipeline", "round 1", "round 2", "ratio"),
    ];
    let least = order.first().and_then(|it| it.time());
    for it in &order {
        lines.push(match (it.time(), least, it.rounds) {
            (Some(time), Some(least), [Some(first), Some(second)]) => {
                format!("  {first:>12.2} {second:>12.2} {:>8.3}  {}", time / least.max(1e-3), it.passes)
            }
            _ => {
                let what = if it.is_refused() { "refused" } else { "failed" };
                format!("  {what:>12} {:>12} {:>8}  {}", "-", "-", it.passes)
            }
        });
    }
    if let Some(failed) = all.iter().find(|it| it.exit != Exit::Success && !it.is_refused()) {
        lines.push(format!("[FAILED] exit code {} with --passes '{}'", failed.exit as u8, failed.passes));
        return (lines, failed.exit);
    }
    let Some(best) = order.first().filter(|it| it.time().is_some()) else {
        lines.push("[FAILED] no pipeline was measured".to_owned());
        return (lines, all.first().map_or(Exit::Usage, |it| it.exit));
    };
    if let Some(second) = order.get(1) {
        let (spread, gap) = (best.spread().max(second.spread()), second.time().zip(best.time()));
        if gap.is_some_and(|(second, best)| second - best <= spread) {
            lines.push(format!(
                "# the first two differ by no more than their rounds do ({spread:.2}): measure more runs with `-n`"
            ));
        }
    }
    if !compared {
        lines.push(
            "# no output was compared: add `--expect=unsharded`, `--expect=sim` or `--reference`".to_owned(),
        );
    }
    let measured = order.iter().filter(|it| it.time().is_some()).count();
    let mut verdict = format!("[SUCCESS] the fastest of {measured} pipelines: --passes '{}'", best.passes);
    if measured == 1 {
        verdict = format!("[SUCCESS] the only pipeline that was measured: --passes '{}'", best.passes);
    }
    if measured < all.len() {
        // Writing to a string does not fail.
        let _ = write!(verdict, "; refused: {}", all.len() - measured);
    }
    lines.push(verdict);
    (lines, Exit::Success)
}

/// Returns the measurements as JSON.
pub fn json(all: &[MeasuredPipeline], program: &[String], ranks: usize) -> serde_json::Value {
    let pipeline = |it: &MeasuredPipeline| {
        serde_json::json!({
            "passes": it.passes, "rounds_us": it.rounds, "time_us": it.time(), "exit_code": it.exit as u8,
        })
    };
    let pipelines: Vec<serde_json::Value> = all.iter().map(pipeline).collect();
    serde_json::json!({ "program": program, "ranks": ranks, "pipelines": pipelines })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expanded(text: &str) -> Vec<String> {
        alternatives(text).unwrap_or_else(|it| vec![it])
    }

    #[test]
    fn words_have_alternatives() {
        assert_eq!(expanded("a"), ["a"]);
        assert_eq!(expanded("@lower,b{count=2|4}"), ["@lower,b{count=2}", "@lower,b{count=4}"]);
        assert_eq!(expanded("@a|@b{x=1|2},c"), ["@a{x=1},c", "@a{x=2},c", "@b{x=1},c", "@b{x=2},c"]);
        assert_eq!(
            expanded("s{table=Allreduce/2:64K=nccl|one-shot;*=nccl}"),
            ["s{table=Allreduce/2:64K=nccl;*=nccl}", "s{table=Allreduce/2:64K=one-shot;*=nccl}"]
        );
        assert_eq!(expanded("a{x=1||2}"), ["`1||2` has an empty alternative"]);
        assert_eq!(expanded("|"), ["`|` has an empty alternative"]);
        let eight = "1|2|3|4|5|6|7|8";
        assert_eq!(expanded(&format!("a{{x={eight},y={eight}}}")).len(), MAX_PIPELINES);
        assert!(expanded(&format!("a{{x={eight},y={eight},z=1|2}}"))[0].contains("more than 64"));
    }

    #[test]
    fn the_fastest_pipeline_is_named() {
        let measured = |passes: &str, rounds: [f64; 2]| {
            let mut it = MeasuredPipeline::new(passes.to_owned());
            rounds.iter().enumerate().for_each(|(round, time)| it.add(round, Exit::Success, Some(*time)));
            it
        };
        let mut refused = MeasuredPipeline::new("c".to_owned());
        refused.add(0, Exit::Rejected, None);
        let all = [measured("a", [20.0, 24.0]), refused, measured("b", [10.0, 12.0])];
        let (lines, exit) = report(&all, "how", true);
        assert_eq!(exit, Exit::Success);
        assert_eq!(
            lines[2..],
            [
                "         10.00        12.00    1.000  b",
                "         20.00        24.00    2.000  a",
                "       refused            -        -  c",
                "[SUCCESS] the fastest of 2 pipelines: --passes 'b'; refused: 1",
            ]
        );
        let (lines, _) = report(&[measured("a", [20.0, 24.0]), measured("b", [21.0, 22.0])], "how", false);
        assert!(lines.iter().any(|it| it.contains("no more than their rounds do (4.00)")), "{lines:?}");
        assert!(lines.iter().any(|it| it.starts_with("# no output was compared")), "{lines:?}");
        let mut wrong = measured("d", [1.0, 1.0]);
        wrong.add(1, Exit::WrongResult, Some(1.0));
        let (lines, exit) = report(&[wrong, measured("b", [10.0, 12.0])], "how", true);
        assert_eq!((exit, lines[2].as_str()), (Exit::WrongResult, "         10.00        12.00    1.000  b"));
        assert_eq!(lines.last().map(String::as_str), Some("[FAILED] exit code 3 with --passes 'd'"));
    }

    proptest! {
        /// Without alternatives a text stands for itself, and with them for different pipelines without `|`.
        #[test]
        fn texts_are_kept(text in "[a-c@={},;:/| é]{0,24}") {
            match alternatives(&text) {
                Ok(all) => {
                    prop_assert!(text.contains('|') || all == [text.clone()]);
                    prop_assert!(all.iter().all(|it| !it.contains('|')));
                }
                Err(why) => prop_assert!(why.contains("empty") || why.contains("more than")),
            }
        }
    }
}
