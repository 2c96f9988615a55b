//! `--tune-passes`: pipelines of passes that are measured in turns, and the fastest of them.
//!
//! All pipelines run in one job, in the given order and then in the opposite order, so that a slow change of the GPUs'
//! clocks affects all of them equally.
//!
//! Invariant: the exit code of the job depends only on exit codes on which all ranks agree, because only rank 0 has times.

pub mod alternatives;
pub mod given_values;

use crate::session::Report;
use hir_ir::search;
use hir_process::exit::Exit;

/// Number of measurements of each pipeline.
pub const ROUNDS: usize = 2;

/// The measurements of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredPipeline {
    /// The text of the pipeline.
    pub passes: String,
    /// By round: the median of the timed runs on the slowest rank, in microseconds; `None` if the run failed.
    pub rounds: [Option<f64>; ROUNDS],
    /// The exit code of the first run that failed, or of success.
    pub exit: Exit,
    /// Why the runs were issued step by step, if the plan cannot be captured as a graph.
    pub not_captured: Option<String>,
}

impl MeasuredPipeline {
    /// Creates a pipeline that has not run.
    pub fn new(passes: String) -> Self {
        Self { passes, rounds: [None; ROUNDS], exit: Exit::Success, not_captured: None }
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
    pub fn time(&self) -> Option<f64> {
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

/// Returns the fastest pipeline, if one was measured.
pub fn fastest(all: &[MeasuredPipeline]) -> Option<&MeasuredPipeline> {
    search::best(all, |it| it.time()).map(|it| it.0)
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
    /// True for captured graphs, of plans that can be captured.
    pub graph: bool,
    /// Number of ranks.
    pub ranks: usize,
    /// True if outputs were compared with expected ones.
    pub compares: bool,
}

/// Returns the time by which pipelines are sorted.
fn sort_time(it: &MeasuredPipeline) -> f64 {
    it.time().unwrap_or(f64::INFINITY)
}

/// Returns the pipelines, the fastest first and those that are not measured in all rounds last.
fn sorted(all: &[MeasuredPipeline]) -> Vec<&MeasuredPipeline> {
    let mut order: Vec<&MeasuredPipeline> = all.iter().collect();
    order.sort_by(|a, b| sort_time(a).total_cmp(&sort_time(b)));
    order
}

/// Returns the table of all pipelines. The job may have ended before all rounds of all pipelines.
pub fn table(all: &[MeasuredPipeline], how: Measurement) -> Vec<Report> {
    let order = sorted(all);
    let issue = if how.graph { "one graph" } else { "step by step" };
    let mut lines = vec![
        Report::Note(format!(
            "pipelines: median of {} runs in microseconds, {issue}, MAX over ranks; round 2 has the opposite order",
            how.runs
        )),
        Report::Note(format!("{:>12} {:>12} {:>8}  pipeline", "round 1", "round 2", "ratio")),
    ];
    let least = order.first().and_then(|it| it.time());
    let shown = |time: Option<f64>, digits: usize| time.map_or("-".to_owned(), |it| format!("{it:.digits$}"));
    lines.extend(order.iter().map(|it| {
        let cells = match (it.exit, it.rounds) {
            (Exit::Success, [first @ Some(_), second]) => [shown(first, 2), shown(second, 2)],
            _ => [it.status().to_owned(), shown(None, 2)],
        };
        let ratio = it.time().zip(least).map(|(time, least)| time / least.max(1e-3));
        Report::Output(format!("  {:>12} {:>12} {:>8}  {}", cells[0], cells[1], shown(ratio, 3), it.shown()))
    }));
    lines.extend(order.iter().filter_map(|it| {
        let why = it.not_captured.as_ref()?;
        Some(Report::Note(format!("{} is measured step by step: {why}", it.shown())))
    }));
    lines
}

/// Returns the table of all pipelines and the text of the verdict.
pub fn report(all: &[MeasuredPipeline], how: Measurement) -> (Vec<Report>, String) {
    let (mut lines, order) = (table(all, how), sorted(all));
    let measured = order.iter().filter(|it| it.time().is_some()).count();
    if let [best, second, ..] = order[..measured] {
        let spread = best.spread().max(second.spread());
        if sort_time(second) - sort_time(best) <= spread {
            lines.push(Report::Note(format!(
                "the difference of the two fastest pipelines is not larger than that between two rounds of one \
                 pipeline ({spread:.2} us): measure more runs (`-n`)"
            )));
        }
    }
    (lines, verdict(all, &order, how.compares))
}

/// Returns the text of the verdict. `order` begins with the fastest pipeline.
fn verdict(all: &[MeasuredPipeline], order: &[&MeasuredPipeline], compares: bool) -> String {
    let measured = order.iter().filter(|it| it.time().is_some()).count();
    let refused = all.iter().filter(|it| it.is_refused()).count();
    let refused = if refused > 0 { format!("; {refused} refused") } else { String::new() };
    if let Some(failed) = all.iter().find(|it| it.has_failed()) {
        let count = all.iter().filter(|it| it.has_failed()).count();
        return format!(
            "{count} of {} pipelines failed, the first is --passes '{}': {}{refused}",
            all.len(),
            failed.passes,
            failed.status()
        );
    }
    let compared =
        if compares { "outputs as expected" } else { "no output compared (`--expect`, `--reference`)" };
    match order.first().filter(|it| it.time().is_some()) {
        None => format!("no pipeline was measured{refused}"),
        Some(best) if measured == 1 => {
            format!("the only pipeline measured is --passes '{}'; {compared}{refused}", best.passes)
        }
        Some(best) => {
            format!("the fastest of {measured} pipelines is --passes '{}'; {compared}{refused}", best.passes)
        }
    }
}

/// Returns the measurements as JSON.
pub fn json(all: &[MeasuredPipeline], how: Measurement, program: &[String]) -> serde_json::Value {
    let pipeline = |it: &MeasuredPipeline| {
        let mut value = serde_json::json!({
            "passes": it.passes, "rounds_us": it.rounds, "time_us": it.time(), "exit_code": it.exit as u8,
        });
        if let Some(why) = &it.not_captured {
            value["not_captured"] = why.as_str().into();
        }
        value
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
    use super::*;

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

    fn lines(table: Vec<Report>) -> Vec<String> {
        table.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_pipeline_whose_plan_cannot_be_captured_is_marked() {
        let mut waits = measured("a", [2.0, 2.0]);
        waits.not_captured = Some("rank 0: line 4: the host waits".to_owned());
        let all = [waits, measured("b", [1.0, 1.0])];
        let found = json(&all, HOW, &[]);
        assert_eq!(found["pipelines"][0]["not_captured"], "rank 0: line 4: the host waits");
        assert_eq!(found["pipelines"][1].get("not_captured"), None);
        let last = lines(table(&all, HOW)).pop();
        assert_eq!(last.as_deref(), Some("# a is measured step by step: rank 0: line 4: the host waits"));
    }

    fn texts(all: &[MeasuredPipeline], how: Measurement) -> (Vec<String>, String) {
        let (table, verdict) = report(all, how);
        (lines(table), verdict)
    }

    #[test]
    fn the_fastest_pipeline_is_named() {
        let all = [failed("c", Exit::Rejected), measured("a", [20.0, 24.0]), measured("", [10.0, 12.0])];
        let (lines, verdict) = texts(&all, HOW);
        assert_eq!(
            lines[2..],
            [
                "         10.00        12.00    1.000  (no passes)",
                "         20.00        24.00    2.000  a",
                "       refused            -        -  c",
            ]
        );
        assert_eq!(verdict, "the fastest of 2 pipelines is --passes ''; outputs as expected; 1 refused");
        let near = [measured("a", [20.0, 24.0]), measured("b", [21.0, 22.0])];
        let (lines, verdict) = texts(&near, Measurement { compares: false, ..HOW });
        assert!(
            lines.iter().any(|it| it.contains("is not larger than that between two rounds of one pipeline (4.00 us)")),
            "{lines:?}"
        );
        assert!(verdict.ends_with("no output compared (`--expect`, `--reference`)"), "{verdict}");
    }

    #[test]
    fn a_job_may_end_before_all_rounds() {
        let mut once = MeasuredPipeline::new("b".to_owned());
        once.add(0, Exit::Success, Some(5.0));
        let all = [MeasuredPipeline::new("c".to_owned()), once, measured("a", [20.0, 24.0])];
        assert_eq!(
            lines(table(&all, HOW))[2..],
            [
                "         20.00        24.00    1.000  a",
                "       not run            -        -  c",
                "          5.00            -        -  b",
            ]
        );
    }

    #[test]
    fn a_pipeline_that_fails_is_not_the_fastest() {
        let mut late = measured("d", [1.0, 1.0]);
        late.add(1, Exit::WrongResult, Some(1.0));
        let all = [failed("c", Exit::Usage), late, measured("b", [10.0, 12.0])];
        let (lines, verdict) = texts(&all, HOW);
        assert_eq!(lines[2], "         10.00        12.00    1.000  b");
        assert_eq!(verdict, "1 of 3 pipelines failed, the first is --passes 'd': wrong result; 1 refused");
        assert_eq!(exit_code(&all), Exit::WrongResult);
        assert_eq!(report(&all[..1], HOW).1, "no pipeline was measured; 1 refused");
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
}
