//! Finds communications in loops that their members may leave after different numbers of iterations.
//!
//! Each value of a condition has a number, which ranks share if they compute it in the same way from the same values: from parts of inputs
//! with the same place in the whole tensor, from results that a communication gives to all members, and from constants. All else is a value
//! of its own. Instructions are followed in issue order; where that is not the order of execution, the program has a race.

use std::collections::HashMap;

use grammar::{Code, CommunicationType, Diagnostic, Program};

use super::{
    Buffer, Communication, InstKind, Plan, SyncEffect, View,
    sync::{CommMatching, InstRef},
};

/// Returns an error for the first communication of which two members may find different conditions, with the rank of the program in
/// which it is located.
pub(super) fn unequal_conditions(
    programs: &[&Program],
    plans: &[Plan],
    matched: &CommMatching,
) -> Option<(usize, Diagnostic)> {
    if plans.iter().all(|it| it.exits.is_empty()) {
        return None;
    }
    let mut values = Values::default();
    let paths: Vec<Vec<u32>> = plans.iter().map(|it| paths(it, matched, &mut values)).collect();
    let path = |it: InstRef| paths[it.rank].get(it.inst).copied();
    matched.comms.iter().find_map(|comm| {
        let first = comm.parts.first()?.inst_ref;
        let other = comm.parts.iter().map(|it| it.inst_ref).find(|it| path(*it) != path(first))?;
        let at = |it: InstRef| {
            let stmt = plans[it.rank].origins[plans[it.rank].code[it.inst].origin as usize].stmt;
            stmt.map_or(programs[it.rank].spans.header, |stmt| programs[it.rank].stmt_span(stmt))
        };
        let (a, b) = (first.rank, other.rank);
        let what = plans[a].describe_origin(plans[a].code[first.inst].origin);
        let message = format!("ranks {a} and {b} may run different numbers of iterations around {what}, which then does not end");
        let label = format!("it needs both rank {a} and rank {b}");
        let it = Diagnostic::new(Code::CheckedDeadlock, at(first), message, label);
        let chosen = format!("ranks {a} and {b} compute this condition from values that may differ");
        let it = match condition_before(&plans[a], first.inst) {
            Some(inst) => it.label(at(InstRef { rank: a, inst }), chosen),
            None => it,
        };
        let help = "make the condition equal on all members, as by an Allreduce of it in the loop, or communicate outside of the loop";
        Some((a, it.help(help)))
    })
}

/// Returns the last read of a condition before an instruction.
fn condition_before(plan: &Plan, inst: usize) -> Option<usize> {
    let is_exit = |it: &usize| matches!(plan.code[*it].kind, InstKind::HostWait { event } if plan.exit_at(event).is_some());
    (0..inst).rev().find(is_exit)
}

/// The numbers of values.
#[derive(Default)]
struct Values {
    known: HashMap<(String, Vec<u32>), u32>,
    count: u32,
}

impl Values {
    /// Returns the number of what is computed in this way from these values.
    fn of(&mut self, how: String, from: Vec<u32>) -> u32 {
        let next = self.count;
        let found = *self.known.entry((how, from)).or_insert(next);
        self.count += u32::from(found == next);
        found
    }

    /// Returns the number of a value that equals no other one.
    fn unique(&mut self) -> u32 {
        self.count += 1;
        self.count - 1
    }
}

/// The elements of the buffers of a rank.
struct Contents<'a> {
    buffers: &'a [Buffer],
    values: Vec<u32>,
}

impl Contents<'_> {
    fn is_whole(&self, view: &View) -> bool {
        let it = &self.buffers[view.buffer as usize];
        view.len() == it.len && *view == View::contiguous(view.buffer, view.shape.clone())
    }

    fn read(&self, view: &View, values: &mut Values) -> u32 {
        let content = self.values[view.buffer as usize];
        if self.is_whole(view) { content } else { values.of(place(view), vec![content]) }
    }

    fn write(&mut self, view: &View, value: u32, values: &mut Values) {
        let before = self.values[view.buffer as usize];
        let after = if self.is_whole(view) { value } else { values.of(place(view), vec![before, value]) };
        self.values[view.buffer as usize] = after;
    }
}

/// Returns the text of where the elements of a view are in its buffer.
fn place(view: &View) -> String {
    format!("{:?}", View { buffer: 0, ..view.clone() })
}

/// Returns, for each instruction of a rank, the number of what conditions have decided that it is executed.
fn paths(plan: &Plan, matched: &CommMatching, values: &mut Values) -> Vec<u32> {
    let mut contents =
        Contents { buffers: &plan.buffers, values: plan.buffers.iter().map(|_| values.unique()).collect() };
    for (at, port) in plan.inputs.iter().enumerate() {
        if let Some(view) = &port.shard.view {
            let value = values.of(format!("input {at} {:?}", port.shard.layout), Vec::new());
            contents.write(view, value, values);
        }
    }
    let start = values.of("start".to_owned(), Vec::new());
    // The loops around the instruction: the events at their ends, and what has decided that they begin.
    let (mut path, mut loops) = (start, Vec::new());
    let mut found = Vec::with_capacity(plan.code.len());
    for (inst, it) in plan.code.iter().enumerate() {
        found.push(path);
        let at = InstRef { rank: plan.rank, inst };
        match &it.kind {
            InstKind::HostWait { event } => {
                let Some(exit) = plan.exit_at(*event) else { continue };
                let Some(end) = exit.end else { continue };
                if loops.last().is_none_or(|it: &(u32, u32)| it.0 != end) {
                    loops.push((end, path));
                }
                let condition = contents.read(&exit.condition, values);
                path = values.of("goes on".to_owned(), vec![path, condition]);
            }
            InstKind::RecordEvent { event } => {
                if let Some((_, before)) = loops.pop_if(|it| it.0 == *event) {
                    path = before;
                }
            }
            kind => execute(kind, at, matched, &mut contents, values),
        }
    }
    found
}

/// Gives what an instruction writes its numbers.
fn execute(
    kind: &InstKind,
    at: InstRef,
    matched: &CommMatching,
    contents: &mut Contents<'_>,
    values: &mut Values,
) {
    let is_own = kind.accesses(at.rank).iter().all(|it| it.rank == at.rank);
    let (mut read, mut written) = (Vec::new(), Vec::new());
    for it in kind.accesses(at.rank).into_iter().filter(|it| it.rank == at.rank) {
        if it.is_write { written.push(it.view) } else { read.push(contents.read(it.view, values)) }
    }
    let how = match (kind, kind.effect()) {
        (InstKind::Copy { .. }, _) if is_own => {
            read.iter().zip(written).for_each(|(value, to)| contents.write(to, *value, values));
            return;
        }
        (InstKind::Reshard(it), _) => {
            let comm = matched.comms_of(at).first();
            comm.map(|comm| format!("reshard {comm} {:?}", it.result.layout))
        }
        (_, SyncEffect::Post(Communication::Collective(it))) => {
            let facts = it.kind.of.facts();
            let is_equal = it.kind.of.writes_on_every_rank()
                && !facts.is_split
                && it.kind.of != CommunicationType::CollectivePermute;
            matched.comms_of(at).first().filter(|_| is_equal).map(|comm| format!("communication {comm}"))
        }
        (_, SyncEffect::Compute) if is_own && !matches!(kind, InstKind::OpaqueCall(_)) => {
            let mut it = kind.clone();
            it.change_views(at.rank, |_, view| view.buffer = 0);
            Some(format!("{it:?} {read:?}"))
        }
        _ => None,
    };
    for (number, to) in written.into_iter().enumerate() {
        let value = match &how {
            Some(how) => values.of(format!("{number} {how}"), Vec::new()),
            None => values.unique(),
        };
        contents.write(to, value, values);
    }
}
