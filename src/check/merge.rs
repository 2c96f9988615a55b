//! Formats the findings of a report. Races that one edit removes are one diagnostic; a note lists the others.

use grammar::diagnostic::Diagnostic;

use super::{
    diagnostics::{DiagnosticBuilder, MAX_LISTED, format_lines},
    finding::Report,
    fixable_race::FixableRace,
    plan_index::PlanIndexes,
    removal::removed_with,
};
use crate::{plan::Plan, source::Source};

impl Report {
    /// Formats the findings as diagnostics, each with the index of its source text. Rank `r` runs text `r`, or
    /// the last text if there are fewer texts than ranks.
    pub fn diagnostics(&self, plans: &[Plan], sources: &[Source]) -> Vec<(usize, Diagnostic)> {
        let indexes = PlanIndexes::new(plans);
        let races: Vec<Option<FixableRace<'_>>> =
            self.findings.iter().map(|it| FixableRace::of(plans, it, &indexes)).collect();
        let leaders = leaders(&removed_with(&races));
        let mut members: Vec<Vec<usize>> = vec![Vec::new(); races.len()];
        for (at, leader) in leaders.iter().enumerate().filter(|(at, leader)| at != *leader) {
            members[*leader].push(at);
        }
        let texts = DiagnosticBuilder::new(plans, sources, &indexes);
        let mut shown = Vec::new();
        for (at, finding) in self.findings.iter().enumerate().filter(|it| leaders[it.0] == it.0) {
            let (text, mut it) = texts.finding(finding);
            let others: Vec<String> = members[at]
                .iter()
                .take(MAX_LISTED)
                .map(|other| {
                    let found = texts.finding(&self.findings[*other]).1;
                    let lines = races[*other].as_ref().map_or(String::new(), |it| format_lines(&it.lines()));
                    format!("[{}] {} ({lines})", found.code.text(), found.message)
                })
                .collect();
            if !others.is_empty() {
                let more = members[at].len() - others.len();
                let mut note = format!("the same edit also removes:\n{}", others.join("\n"));
                if more > 0 {
                    note += &format!("\n… and {more} more");
                }
                it = it.note(note);
            }
            shown.push((text, it));
        }
        shown
    }
}

/// Returns the finding that is reported for each finding: the last of the chain, or itself if the chain has no end.
fn leaders(removed_with: &[Option<usize>]) -> Vec<usize> {
    // `None` inside: the chain has no end.
    let mut known: Vec<Option<Option<usize>>> = vec![None; removed_with.len()];
    for start in 0..removed_with.len() {
        let (mut chain, mut at) = (Vec::new(), start);
        let end = loop {
            if let Some(end) = known[at] {
                break end;
            }
            // Until the end of the chain is known, it has none.
            known[at] = Some(None);
            chain.push(at);
            match removed_with[at] {
                Some(next) => at = next,
                None => break Some(at),
            }
        };
        chain.into_iter().for_each(|it| known[it] = Some(end));
    }
    known.into_iter().enumerate().map(|(at, end)| end.flatten().unwrap_or(at)).collect()
}
