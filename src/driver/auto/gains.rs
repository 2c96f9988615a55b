//! What each communication of a program costs, and what hir changes to shorten it.

use std::collections::BTreeMap;

use grammar::{
    attr, count_text,
    ir::{Program, TensorId},
    ops::OpClass,
};
use hir_check::Checks;
use hir_ir::search::{self, Budget};
use hir_plan::{
    Plan, World,
    sync::happens_before::OrderError,
    timeline::{Timeline, estimator::Planned, gain::Gain},
};
use serde_json::{Value, json};

use super::{
    communications::communications,
    edits::{Estimates, MAX_INSTRUCTIONS, SMALLEST_GAIN},
    first_fault,
};

/// The largest number of instructions that are estimated without communications, all estimates together.
const MAX_ESTIMATED: usize = 2_000_000;
/// The largest number of edits that are tried: each is planned and estimated.
const MAX_TRIALS: usize = 48;
/// The number of communications that the table lists.
const LISTED: usize = 10;

/// What the communications of a program cost, those with the largest gain first. Times are in microseconds.
pub struct Gains {
    /// How long the program takes.
    pub total: f64,
    /// The communications.
    pub all: Vec<CommunicationGain>,
    /// How many trials of edits the budget left out.
    left_out: usize,
}

/// What a communication costs, and the best edit for it.
pub struct CommunicationGain {
    /// What it costs.
    pub gain: Gain,
    /// The passes that shorten the program most by a change of this communication, and how long the program then takes. The checker
    /// finds no fault in it.
    pub edit: Option<(String, f64)>,
}

impl Estimates<'_> {
    /// Estimates a program, and returns what its communications cost, of the program as `@lower` lowers it if it is not lowered; `None` if
    /// it never ends.
    ///
    /// # Errors
    /// The world has too many streams.
    pub fn gains(&self, program: &Program, world: &World) -> Result<(Timeline, Option<Gains>), OrderError> {
        let text = Planned { program, lines: self.lines, limits: self.limits };
        let estimator = self.machine.estimator();
        let mut budget = Budget::new(MAX_ESTIMATED);
        let (mut timeline, found) = estimator.gains(world, Some(text), &mut |it| budget.admits(it))?;
        if timeline.slices.iter().any(|it| it.end.is_none()) {
            return Ok((timeline, None));
        }
        let total = timeline.end();
        let instructions: usize = world.iter().map(|it| it.code.len()).sum();
        let is_lowered = !world.iter().any(Plan::reshards);
        let lowered = if is_lowered { None } else { (estimator.lower)(program) };
        let base = lowered.as_ref().unwrap_or(program);
        let is_edited = instructions <= MAX_INSTRUCTIONS && first_fault(world, Checks::ALL_FAULTS).is_none();
        let mut trials = Budget::new(if is_edited { MAX_TRIALS } else { 0 });
        let splittable = if is_lowered { Vec::new() } else { communications(program).unwrap_or_default() };
        let mut best = |gain: &Gain| {
            let names = self.tensors(base, gain.line);
            let (before, tried) = if is_lowered { ("", program) } else { ("@lower,", base) };
            let mut edits: Vec<_> = if names.is_empty() { &[][..] } else { EDITS }
                .iter()
                .filter(|it| !it.1 || !self.machine.machine.is_nominal())
                .map(|it| it.0.replace('@', &names))
                .map(|it| (tried, it.clone(), format!("{before}{it}")))
                .collect();
            let of_line = splittable.iter().filter(|it| self.lines.line(it.span.start) == gain.line);
            for tensor in of_line.filter_map(|it| it.tensor.as_ref()) {
                let passes = format!("@overlap{{overlap.only={tensor}}}");
                edits.push((program, passes.clone(), passes));
            }
            let estimated = edits.into_iter().filter_map(|(from, passes, name)| {
                let (edit, world) = trials.admits(1).then(|| self.edit(from, passes))??;
                (total - edit.time > SMALLEST_GAIN).then_some((edit.time, name, world))
            });
            let mut faster: Vec<_> = estimated.collect();
            faster.sort_by(|a, b| a.0.total_cmp(&b.0));
            // The check takes longest.
            let checked =
                |(time, name, world): (f64, String, World)| match first_fault(&world, Checks::ALL_FAULTS) {
                    None => Ok((name, time)),
                    Some(fault) => Err(fault),
                };
            search::first_kept(faster, checked).ok()
        };
        let with_edit = |gain: Gain| {
            let edit = if gain.least(total) < total - SMALLEST_GAIN { best(&gain) } else { None };
            CommunicationGain { gain, edit }
        };
        let mut all: Vec<CommunicationGain> = found.into_iter().map(with_edit).collect();
        all.sort_by(|a, b| a.gain.least(total).total_cmp(&b.gain.least(total)));
        let gains = Gains { total, all, left_out: if is_edited { trials.left_out() } else { 0 } };
        timeline.what_if = gains.what_if();
        Ok((timeline, Some(gains)))
    }

    /// Returns the names of the communicated tensors of a line, as options of passes have them.
    fn tensors(&self, program: &Program, line: u32) -> String {
        let mut names: Vec<String> = Vec::new();
        for (stmt, it) in program.ops() {
            if it.op.def().class == OpClass::Communicate
                && self.lines.line(program.stmt_span(stmt).start) == line
            {
                let tensors: [Option<TensorId>; 3] =
                    [it.get(attr::OUTPUT), it.get(attr::BUFFER), it.get(attr::INPUT)];
                names.extend(tensors.into_iter().flatten().next().map(|it| program.tensor_name(it)));
            }
        }
        names.dedup();
        names.join(";")
    }
}

/// The passes that are tried for the communications of the tensors `@`, and whether they matter only to the times of a machine.
const EDITS: &[(&str, bool)] = &[
    ("schedule-communication{only=@}", false),
    ("select-algorithms{only=@}", true),
    ("schedule-communication{only=@},select-algorithms{only=@}", true),
];

impl Gains {
    /// Returns, by line, how long the run takes without a communication, and with the best edit for it.
    fn what_if(&self) -> BTreeMap<u32, String> {
        let of = |CommunicationGain { gain, edit }: &CommunicationGain| {
            let edit = edit.as_ref().map(|(passes, time)| format!(", {time:.1} µs with `{passes}`"));
            Some((gain.line, gain.what_if(self.total)? + edit.as_deref().unwrap_or_default()))
        };
        self.all.iter().filter_map(of).collect()
    }

    /// Returns a table of the communications, one line a string; nothing without communications.
    pub fn table(&self) -> Vec<String> {
        if self.all.is_empty() {
            return Vec::new();
        }
        let mut lines = vec![
            format!(
                "  how long the run of {:.1} µs takes if a communication is free, or hidden, or with an edit:",
                self.total
            ),
            format!(
                "  {:>5}  {:<15}  {:>10}  {:>10}  {:>10}  {:>10}  edit",
                "line", "communication", "time", "exposed", "if free", "if hidden"
            ),
        ];
        let number = |it: Option<f64>| it.map_or_else(|| "-".to_owned(), |it| format!("{it:.1}"));
        for CommunicationGain { gain: it, edit } in self.all.iter().take(LISTED) {
            let label = if it.count > 1 { format!("{} ×{}", it.label, it.count) } else { it.label.clone() };
            let edit = edit
                .as_ref()
                .map_or_else(|| "-".to_owned(), |(passes, time)| format!("{time:.1}: `{passes}`"));
            let [free, hidden] = [it.if_free, it.if_hidden].map(number);
            lines.push(format!(
                "  {:>5}  {label:<15}  {:>10.1}  {:>10.1}  {free:>10}  {hidden:>10}  {edit}",
                it.line,
                it.time,
                it.exposed()
            ));
        }
        if let Some(more) = self.all.get(LISTED..).filter(|it| !it.is_empty()) {
            let best = more.iter().map(|it| self.total - it.gain.least(self.total)).fold(0.0, f64::max);
            let count = count_text(more.len(), "more communication");
            lines.push(format!("  {count}: each gains {best:.1} µs at most"));
        }
        if self.left_out > 0 {
            lines.push(format!("  {} were not tried", count_text(self.left_out, "edit")));
        }
        lines
    }

    /// Returns the communications as JSON, those with the largest gain first; times in microseconds.
    pub fn json(&self) -> Value {
        let of = |CommunicationGain { gain: it, edit }: &CommunicationGain| {
            json!({
                "line": it.line,
                "communication": it.label,
                "rank": it.rank,
                "count": it.count,
                "time": it.time,
                "hidden": it.hidden,
                "exposed": it.exposed(),
                "if_free": it.if_free,
                "if_hidden": it.if_hidden,
                "edit": edit.as_ref().map(|(passes, time)| json!({"passes": passes, "time": time})),
            })
        };
        self.all.iter().map(of).collect()
    }
}
