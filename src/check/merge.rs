//! Formats the findings of a report. Races that one edit removes are one diagnostic; a note lists the others.

use grammar::{diagnostic::Diagnostic, source::Source};

use super::{
    diagnostics::{DiagnosticBuilder, MAX_LISTED, format_lines},
    finding::Report,
    fixable_race::FixableRace,
    plan_index::PlanIndexes,
    removal::leaders,
};
use hir_plan::World;

impl Report {
    /// Formats the findings as diagnostics, each with the index of its source text. Rank `r` runs text `r`, or
    /// the last text if there are fewer texts than ranks.
    pub fn diagnostics(&self, world: &World, sources: &[Source]) -> Vec<(usize, Diagnostic)> {
        let indexes = PlanIndexes::new(world);
        let races: Vec<Option<FixableRace<'_>>> =
            self.findings.iter().map(|it| FixableRace::of(world, it, &indexes)).collect();
        let leaders = leaders(&races);
        let mut members: Vec<Vec<usize>> = vec![Vec::new(); races.len()];
        for (at, leader) in leaders.iter().enumerate().filter(|(at, leader)| at != *leader) {
            members[*leader].push(at);
        }
        let texts = DiagnosticBuilder::new(world, sources, &indexes);
        let mut shown = Vec::new();
        for (at, finding) in self.findings.iter().enumerate().filter(|it| leaders[it.0] == it.0) {
            let (text, mut it) = texts.finding(finding);
            let others: Vec<String> = members[at]
                .iter()
                .take(MAX_LISTED)
                .map(|other| {
                    let (code, message) = texts.summary(&self.findings[*other]);
                    let lines = races[*other].as_ref().map_or(String::new(), |it| format_lines(&it.lines()));
                    format!("[{}] {message} ({lines})", code.text())
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
