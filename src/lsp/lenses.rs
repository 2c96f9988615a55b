//! Code lenses and their commands: above each program its verdict, a run on simulated ranks, its timeline and its overlap; above a
//! communication what it costs.

use grammar::{Named, Span, count_text};
use hir_plan::timeline::{estimator::Estimator, html::page, overlap::Overlap};
use lsp_types::{CodeLens, Command, Uri};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{check, estimate::Summary, refusal::Refusal, snapshot::Snapshot};

/// The most elements of an output that are shown.
const MAX_ELEMENTS: usize = 16;

grammar::named_enum! {
    /// A command of a code lens. Its argument is a `TextDocumentPositionParams` in the program.
    /// An editor calls them by their names, and the lenses are in this order.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum LensCommand {
        /// Runs the program on simulated ranks.
        Run = "hir.run",
        /// Draws when each stream works.
        Timeline = "hir.timeline",
        /// Says which line waits for what.
        Overlap = "hir.overlap",
    }
}

/// What a command answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// What it is, in a line.
    pub(crate) title: String,
    /// It as plain text.
    pub(crate) text: String,
    /// It as a page that needs no other file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) html: Option<String>,
}

impl LensCommand {
    /// Returns the title of its lens.
    fn title(self, ranks: usize) -> String {
        match self {
            Self::Run => format!("run on {}", count_text(ranks, "simulated rank")),
            Self::Timeline => "timeline".to_owned(),
            Self::Overlap => "overlap".to_owned(),
        }
    }

    /// Executes it for the program at an offset.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(crate) fn execute(
        self,
        snapshot: &Snapshot,
        estimator: Estimator<'_>,
        offset: u32,
    ) -> Result<Outcome, Refusal> {
        let (program, world) = check::planned(snapshot, offset)?;
        let ranks = count_text(world.len(), "simulated rank");
        if let Self::Run = self {
            let outcome = hir_sim::sample_run(&world)?;
            let steps = outcome.trace.map_or(0, |it| it.len());
            let title = format!("ran to the end on {ranks}: {}", count_text(steps, "instruction"));
            let mut text = format!("{title}; inputs are small integers\n");
            for (plan, parts) in world.iter().zip(&outcome.outputs) {
                for (port, part) in plan.outputs.iter().zip(parts) {
                    let Some(part) = part else { continue };
                    let shown = part.data.len().min(MAX_ELEMENTS);
                    let values: Vec<String> = (0..shown).map(|at| part.data.text(at)).collect();
                    let more = if shown < part.data.len() { " …" } else { "" };
                    let unwritten = match part.written.first_unwritten() {
                        Some(_) => " (some elements were never written)",
                        None => "",
                    };
                    let (rank, values) = (plan.rank, values.join(" "));
                    text += &format!("{} of rank {rank}: {values}{more}{unwritten}\n", port.name);
                }
            }
            return Ok(Outcome { title, text, html: None });
        }
        let timeline = check::estimated(estimator, &world, &program, &snapshot.source, check::MAX_ESTIMATED);
        let (timeline, _) = timeline.ok_or(Refusal::TooManyStreams)?;
        let mut report = Overlap::of(&timeline).report(&timeline);
        report.extend(timeline.what_if.values().map(|it| format!("  {it}")));
        let text = report.join("\n") + "\n";
        if let Self::Overlap = self {
            return Ok(Outcome { title: format!("overlap on {ranks}, estimated"), text, html: None });
        }
        let html = page(&timeline, &snapshot.source.name, &report);
        Ok(Outcome { title: format!("timeline of {ranks}, estimated"), text, html: Some(html) })
    }
}

/// Returns the lenses of a text whose programs have these summaries.
pub(crate) fn lenses(uri: &Uri, snapshot: &Snapshot, summaries: &[Summary]) -> Vec<CodeLens> {
    let of = |it: &Summary| {
        let range = snapshot.range(it.header);
        let lens = move |command| CodeLens { range, command: Some(command), data: None };
        let place = json!({ "textDocument": { "uri": uri }, "position": range.start });
        // A title without a command: it is only read.
        let verdict = Command::new(it.verdict.clone(), String::new(), None);
        let commands = LensCommand::ALL.iter().map(|command| {
            Command::new(command.title(it.ranks), command.name().to_owned(), Some(vec![place.clone()]))
        });
        let gains = it.gains.iter().map(|(line, title)| {
            let place = snapshot.source.lines.start(*line);
            let range = snapshot.range(Span::new(place, place));
            CodeLens { range, command: Some(Command::new(title.clone(), String::new(), None)), data: None }
        });
        std::iter::once(verdict).chain(commands).map(lens).chain(gains).collect::<Vec<_>>()
    };
    summaries.iter().flat_map(of).collect()
}
