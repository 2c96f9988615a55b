//! Writes timelines and reports how communication and computation overlap.

use super::{
    failure::{JobFailure, Result},
    files::write_file,
};
use crate::auto::{edits::Estimates, gains::Gains, machine::MachineFlag};
use hir_plan::{
    Plan, World,
    sync::happens_before::OrderError,
    timeline::{
        Timeline,
        estimate::{MeasuredTime, measured},
        estimator::Planned,
        file::TimelineFile,
        overlap::Overlap,
    },
};
use serde_json::json;

/// The maximum number of instructions of an estimated timeline.
const MAX_INSTRUCTIONS: usize = 4_000_000;

/// The options that ask for a timeline.
#[derive(Clone, Default, clap::Args)]
#[command(next_help_heading = "Timeline")]
pub struct TimelineFlags {
    /// Write to FILE when every rank, stream and communicator works and what it waits for: a picture (`.svg`),
    /// a page (`.html`), a text (`.md`) or a Chrome trace for Perfetto (`.json`). Times are measured on GPUs and estimated
    /// otherwise. A repeated option writes several files.
    #[arg(long, alias = "trace", value_name = "FILE")]
    pub timeline: Vec<TimelineFile>,
    /// Print how much communication is hidden behind computation, and which lines wait for what. hir-opt prints
    /// this instead of the program.
    #[arg(long)]
    pub overlap: bool,
    /// Estimate with the times of this machine, which `hir calibrate` has written to a file; or with those of several hosts, which
    /// a file describes; or with those of a nominal GPU, of which nothing was measured. Times that are measured do not change.
    /// By default, the machine is h200: two H200s of one host.
    #[arg(long, value_name = "FILE|h100|h200|nominal")]
    pub machine: Option<MachineFlag>,
}

/// Estimated times, and what each communication costs, if that was asked for and every rank ends.
pub type Estimate = (Timeline, Option<Gains>);

/// The report on a timeline.
pub struct TimelineReport {
    /// The lines about overlap, if `--overlap` requests them.
    pub overlap: Vec<String>,
    /// A line for each written file.
    pub files: Vec<String>,
}

impl TimelineReport {
    /// Returns all lines.
    pub fn into_lines(self) -> impl Iterator<Item = String> {
        self.overlap.into_iter().chain(self.files)
    }
}

impl TimelineFlags {
    /// Returns true if a timeline or a report is requested.
    pub fn is_requested(&self) -> bool {
        self.overlap || !self.timeline.is_empty()
    }

    /// Returns the machine of estimates.
    pub fn machine(&self) -> &MachineFlag {
        MachineFlag::or_default(self.machine.as_ref())
    }

    /// Estimates a timeline from the plans, of the program of `text` if all ranks run one, writes the files, and returns the report and
    /// the times.
    ///
    /// # Errors
    /// The plans are too large, or a file cannot be written.
    pub fn write_estimated(
        &self,
        world: &World,
        text: Option<Planned<'_>>,
        names: &[&str],
    ) -> Result<(TimelineReport, Estimate)> {
        check_size(world)?;
        let machine = self.machine();
        let shows_gains = self.overlap || self.timeline.iter().any(TimelineFile::is_page);
        let estimate = match text.filter(|_| shows_gains) {
            Some(it) => {
                let estimates = Estimates { lines: it.lines, ranks: world.len(), limits: it.limits, machine };
                estimates.gains(it.program, world)
            }
            None => machine.estimator().timeline(world, text).map(|it| (it, None)),
        };
        let estimate = estimate.map_err(too_many_streams)?;
        Ok((self.write(&estimate.0, names)?, estimate))
    }

    /// As `write_estimated`, with the times that each rank has measured in a run on GPUs. The clocks of two ranks differ by
    /// at most `clock_error` microseconds.
    ///
    /// # Errors
    /// As for `write_estimated`.
    pub fn write_measured(
        &self,
        world: &World,
        names: &[&str],
        ranks: &[Vec<MeasuredTime>],
        clock_error: f64,
    ) -> Result<TimelineReport> {
        check_size(world)?;
        let clocks = match world.len() {
            1 => String::new(),
            _ => format!("; the clocks of two ranks differ by at most {clock_error:.1} µs"),
        };
        let source =
            format!("measured in one run, issued command by command with an event beside each{clocks}");
        self.write(&measured(world, ranks, source).map_err(too_many_streams)?, names)
    }

    fn write(&self, timeline: &Timeline, names: &[&str]) -> Result<TimelineReport> {
        let report = Overlap::of(timeline).report(timeline);
        let alike: usize = timeline.classes.iter().map(Vec::len).sum();
        let ranks = timeline.rows.last().map_or(0, |it| it.rank + 1).max(alike);
        let names: Vec<&str> = names.iter().map(|it| it.rsplit('/').next().unwrap_or(it)).collect();
        let title = format!("{}, {ranks} ranks", names.join(" "));
        let mut files = Vec::new();
        for file in &self.timeline {
            let path = file.path.display();
            let text = file
                .text(timeline, &title, &report)
                .map_err(|fault| JobFailure::Usage(format!("`{path}`: {fault}")))?;
            write_file(&file.path, &text)?;
            files.push(format!("timeline in `{path}`"));
        }
        Ok(TimelineReport { overlap: if self.overlap { report } else { Vec::new() }, files })
    }
}

/// Returns the figures of `--overlap`, in microseconds.
pub fn overlap_json(timeline: &Timeline) -> serde_json::Value {
    let overlap = Overlap::of(timeline);
    let ranks = overlap.ranks.iter().map(|it| {
        json!({"rank": it.rank, "communication": it.communication, "hidden": it.hidden, "exposed": it.exposed()})
    });
    let waits = overlap
        .waits
        .iter()
        .map(|it| json!({"line": it.line, "count": it.count, "time": it.microseconds, "reason": it.reason, "cause": it.cause.name()}));
    json!({
        "total": overlap.total,
        "interval": timeline.interval(),
        "ranks": ranks.collect::<Vec<_>>(),
        "waits": waits.collect::<Vec<_>>(),
        "source": timeline.source,
    })
}

/// Returns the figures of the estimated timeline; `None` if the plans are too large for one.
pub fn estimated_overlap_json(
    world: &World,
    text: Option<Planned<'_>>,
    machine: &MachineFlag,
) -> Option<serde_json::Value> {
    check_size(world).ok()?;
    machine.estimator().timeline(world, text).ok().map(|it| overlap_json(&it))
}

fn check_size(plans: &[Plan]) -> Result<()> {
    let instructions: usize = plans.iter().map(|it| it.code.len()).sum();
    if instructions > MAX_INSTRUCTIONS {
        Err(JobFailure::Usage(format!(
            "no timeline: {instructions} instructions exceed the limit of {MAX_INSTRUCTIONS}; reduce `--ranks`"
        )))
    } else {
        Ok(())
    }
}

/// Returns the failure of a world that has too many streams for a timeline.
pub fn too_many_streams(_: OrderError) -> JobFailure {
    JobFailure::Usage("no timeline: the ranks have too many streams; reduce `--ranks`".to_owned())
}
