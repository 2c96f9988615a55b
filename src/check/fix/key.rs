//! What identifies a finding in several edited texts: statements by their numbers.

use grammar::Code;
use hir_plan::Plan;

use crate::{
    conflict::{Party, Race},
    execution_fault::ExecutionFault,
    memory::UnwrittenRead,
    race_side::{RaceSide, stream_of},
};

use super::stmt_ids::StmtIds;

/// Identifies a finding without its rank and iteration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FindingKey {
    code: &'static str,
    is_entry: bool,
    is_reuse: bool,
    /// Whether a rank accesses the memory of another one: there, the edit may be at another place.
    is_remote: bool,
    buffer: String,
    /// For each side, the number of the statement and the stream or queue that executes it; `None` is the caller, or no side. Those of a race are in
    /// issue order on one rank, which decides where its edit is, and in ascending order between ranks.
    sides: [Option<(u32, String)>; 2],
}

impl FindingKey {
    /// Returns the key of a race.
    pub fn of_race(ids: &StmtIds, plans: &[Plan], race: &Race) -> Self {
        let both = RaceSide::in_issue_order(plans, race);
        let mut sides = both.each_ref().map(|it| {
            let stmt = it.is_in_program().then(|| ids.of_origin(it.plan, it.origin)).flatten()?;
            Some((stmt, it.actor_name().to_owned()))
        });
        if both[0].plan.rank != both[1].plan.rank {
            sides.sort_unstable();
        }
        Self {
            code: RaceSide::code(race, &both).text(),
            is_entry: both.iter().any(|it| it.party == Party::CallerBefore),
            is_reuse: race.reused.is_some(),
            is_remote: both.iter().any(|it| it.plan.rank != race.rank),
            buffer: plans[race.rank].buffers[race.buffer as usize].name.clone(),
            sides,
        }
    }

    /// Returns the key of a read of elements that nothing has written: it is the same one whether or not an output is computed from them.
    pub fn of_read(ids: &StmtIds, plans: &[Plan], read: &UnwrittenRead) -> Self {
        let plan = &plans[read.inst_ref.rank];
        let code = if read.output.is_some() { Code::UnwrittenOutput } else { Code::UnwrittenRead };
        let stmt = ids.of_origin(plan, plan.code[read.inst_ref.inst].origin);
        let buffer = plans[read.rank].buffers[read.buffer as usize].name.clone();
        Self { buffer, ..Self::of_stmt(code, stmt) }
    }

    /// Returns the key of a fault of how an executor runs a statement. That of a transfer that is posted again also names the earlier
    /// post: one statement may have to follow several.
    pub fn of_fault(ids: &StmtIds, plans: &[Plan], fault: &ExecutionFault) -> Self {
        let plan = &plans[fault.rank];
        let mut key = Self::of_stmt(fault.kind.code(), ids.of_origin(plan, fault.origin));
        if let Some([earlier, _]) = fault.again {
            let stream = stream_of(plan, earlier).to_string();
            key.sides[1] = ids.of_origin(plan, plan.code[earlier].origin).map(|stmt| (stmt, stream));
        }
        key
    }

    /// Returns the key of a finding that has at most one statement.
    pub fn of_stmt(code: Code, stmt: Option<u32>) -> Self {
        let sides = [stmt.map(|stmt| (stmt, String::new())), None];
        let code = code.text();
        Self { code, is_entry: false, is_reuse: false, is_remote: false, buffer: String::new(), sides }
    }

    /// Returns whether another finding may hide this one: a race may hide a race, or that a statement reads what the other side writes too
    /// late. Of the contradictory orders of kernels, one is reported at a time; a new wait never adds one, as it only removes orders in
    /// which kernels may start.
    pub fn may_be_hidden(&self) -> bool {
        [
            Code::Race,
            Code::RaceWithCaller,
            Code::StorageRace,
            Code::RaceBetweenRuns,
            Code::UnwrittenRead,
            Code::CommunicatorOrder,
        ]
        .iter()
        .any(|it| it.text() == self.code)
    }

    /// Returns the key without streams and queues.
    pub fn without_actors(&self) -> Self {
        let sides = self.sides.each_ref().map(|it| it.as_ref().map(|it| (it.0, String::new())));
        Self { buffer: self.buffer.clone(), sides, ..*self }
    }

    /// Returns true if the two findings differ at most in streams and queues.
    pub fn has_same_stmts(&self, other: &Self) -> bool {
        let stmts = |it: &Self| it.sides.each_ref().map(|it| it.as_ref().map(|it| it.0));
        let rest = |it: &Self| (it.code, it.is_entry, it.is_reuse, it.is_remote);
        rest(self) == rest(other) && self.buffer == other.buffer && stmts(self) == stmts(other)
    }
}
