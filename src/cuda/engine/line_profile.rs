//! Profiles a plan by source line: times every command between two events on its stream, and sums the times
//! by line and kind of work. A line that passes have lowered has a row for each kind.
//!
//! Events between commands cost time themselves, and concurrent commands are each counted in full, so the sum
//! over lines is not the time of a run.

use rustc_hash::FxHashMap;

use super::{Engine, IssueMode};
use crate::{ProcessGroup, Result, device::Event};
use hir_executor::LineProfile;
use hir_plan::{Inst, InstKind, Plan, Traffic};

/// Number of runs that are averaged.
const RUNS: usize = 3;

impl Engine {
    /// Measures the cost of each line, over all ranks.
    ///
    /// # Errors
    /// A call fails.
    pub(super) fn profile_lines(&mut self, peers: &dyn ProcessGroup) -> Result<Vec<LineProfile>> {
        let marks = self.marks()?;
        let mut table = Table::of(self.plan());
        let timed = self.timed_insts();
        let mut times = vec![0.0; table.lines.len()];
        for run in 0..=RUNS {
            self.reset_between_runs(peers)?;
            self.issue_with_events(&marks)?;
            self.count_run()?;
            self.synchronize()?;
            // The first run is a warm-up.
            for (step, mark) in self.executable.commands.iter().zip(&marks).filter(|_| run > 0) {
                let Some((begin, end)) = mark else { continue };
                let inst = timed.get(&step.inst).unwrap_or(&step.inst);
                if let Some(at) = table.rows[*inst as usize] {
                    times[at] += self.device.elapsed_microseconds(*begin, *end)? / RUNS as f64;
                }
            }
        }
        let mut mine = Vec::new();
        for (line, time) in table.lines.iter().zip(&times) {
            mine.extend(line.line.to_le_bytes());
            mine.extend(time.to_le_bytes());
            mine.extend((line.work.len() as u32).to_le_bytes());
            mine.extend(line.work.bytes());
        }
        for bytes in peers.all_gather(&mine)? {
            table.merge_slowest(&bytes);
        }
        let Table { mut lines, rows, .. } = table;
        for (inst, first) in &self.executable.fused {
            if let Some(at) = rows[*inst as usize].filter(|at| lines[*at].microseconds == 0.0) {
                lines[at].fused_into = Some(source_line(self.plan(), &self.plan().code[*first as usize]));
            }
        }
        lines.retain(|it| it.microseconds > 0.0 || it.fused_into.is_some());
        lines.sort_by_key(|it| it.line);
        Ok(lines)
    }

    /// Returns the instruction to which the time of a collective's kernel belongs, by the instruction of its command:
    /// its reduction, or else its first copy, instead of the wait that hang reports name.
    pub(super) fn timed_insts(&self) -> FxHashMap<u32, u32> {
        let kind = |inst: u32| &self.plan().code[inst as usize].kind;
        let mut timed = FxHashMap::default();
        for (inst, step) in &self.executable.fused {
            let is_collective = matches!(kind(*step), InstKind::Signal { .. } | InstKind::WaitSignal { .. });
            match kind(*inst) {
                InstKind::PeerReduce { .. } if is_collective => {
                    timed.insert(*step, *inst);
                }
                InstKind::Copy { .. } if is_collective => {
                    timed.entry(*step).or_insert(*inst);
                }
                _ => (),
            }
        }
        timed
    }

    /// Returns two events for each command that does work on the device.
    pub(super) fn marks(&self) -> Result<Vec<Option<(Event, Event)>>> {
        let events = || Ok((self.device.event(true)?, self.device.event(true)?));
        let commands = self.executable.commands.iter();
        commands.map(|it| it.command.is_graph_node().then(events).transpose()).collect()
    }

    /// Issues all commands, each between its events.
    pub(super) fn issue_with_events(&mut self, marks: &[Option<(Event, Event)>]) -> Result<()> {
        self.begin(IssueMode::Plain)?;
        for (step, mark) in self.executable.commands.iter().zip(marks) {
            if let Some((begin, _)) = mark {
                self.device.record(*begin, step.stream.stream)?;
            }
            self.issue_command(step, IssueMode::Plain, &mut Vec::new())
                .map_err(|it| it.at_inst(self.plan(), &self.plan().code[step.inst as usize]))?;
            if let Some((_, end)) = mark {
                self.device.record(*end, step.stream.stream)?;
            }
        }
        self.join_streams()
    }
}

fn source_line(plan: &Plan, inst: &Inst) -> u32 {
    plan.origins[inst.origin as usize].line
}

/// The rows of the profile, by line and kind of work.
struct Table {
    /// In the order of the plan.
    lines: Vec<LineProfile>,
    known: FxHashMap<(u32, String), usize>,
    /// The row of each instruction, indexed as `Plan::code`.
    rows: Vec<Option<usize>>,
}

impl Table {
    fn of(plan: &Plan) -> Self {
        let mut table = Self { lines: Vec::new(), known: FxHashMap::default(), rows: Vec::new() };
        for inst in &plan.code {
            let row = work_of(plan, inst).map(|(what, traffic)| {
                let at = table.row(source_line(plan, inst), what);
                let line = &mut table.lines[at];
                line.count += 1;
                line.bytes += traffic.bytes;
                line.bus_factor = traffic.bus_factor;
                at
            });
            table.rows.push(row);
        }
        table
    }

    fn row(&mut self, line: u32, what: &str) -> usize {
        *self.known.entry((line, what.to_owned())).or_insert_with(|| {
            self.lines.push(LineProfile { line, work: what.to_owned(), ..LineProfile::default() });
            self.lines.len() - 1
        })
    }

    /// Merges the times that a rank has measured: each row keeps the maximum.
    fn merge_slowest(&mut self, mut bytes: &[u8]) {
        while let Some((head, rest)) = bytes.split_first_chunk::<16>() {
            let [a, b, c, d, time @ .., w, x, y, z] = *head;
            let length = u32::from_le_bytes([w, x, y, z]) as usize;
            let Some((what, rest)) = rest.split_at_checked(length) else { return };
            let at = self.row(u32::from_le_bytes([a, b, c, d]), &String::from_utf8_lossy(what));
            let line = &mut self.lines[at];
            line.microseconds = line.microseconds.max(f64::from_le_bytes(time));
            bytes = rest;
        }
    }
}

/// Returns the kind of an instruction's work and the traffic that it causes; `None` if it only orders other
/// instructions.
fn work_of(plan: &Plan, inst: &Inst) -> Option<(&'static str, Traffic)> {
    inst.kind.cost_info().label.map(|word| (word, plan.traffic(inst)))
}
