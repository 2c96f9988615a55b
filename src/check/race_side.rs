//! One side of a race, and its description in reports.

use grammar::Code;

use super::{
    conflict::{Party, Race},
    plan_index::PlanIndex,
};
use hir_plan::{
    BufferNo, Communication, ExecutionSite, InstKind, Plan, PlanStream, SyncEffect, iteration_text,
    sync::InstRef,
};

/// One side of a race.
#[derive(Clone)]
pub struct RaceSide<'a> {
    /// The plan of the accessing rank. For the caller, the plan of the rank that owns the memory.
    pub plan: &'a Plan,
    /// The rank that owns the memory.
    pub owner: usize,
    /// The code that performs the access.
    pub party: Party,
    /// True if it writes.
    pub writes: bool,
    /// The instruction; `None` for the caller before program entry.
    pub inst_ref: Option<InstRef>,
    /// The statement, as an index into `Plan::origins`.
    pub origin: u32,
}

impl<'a> RaceSide<'a> {
    /// Returns both sides of a race.
    pub fn both(plans: &'a [Plan], race: &Race) -> [Self; 2] {
        [0, 1].map(|which| Self::of(plans, race, which))
    }

    /// Returns both sides: on one rank, in issue order; between ranks, the write first. A free is always the second one.
    pub fn in_issue_order(plans: &'a [Plan], race: &Race) -> [Self; 2] {
        let mut sides = Self::both(plans, race);
        let [a, b] = &sides;
        let is_swapped =
            if a.plan.rank == b.plan.rank { a.inst_index() > b.inst_index() } else { b.writes && !a.writes };
        if is_swapped && !race.between_runs && !b.frees() {
            sides.swap(0, 1);
        }
        sides
    }

    /// Returns a side of a race.
    pub(super) fn of(plans: &'a [Plan], race: &Race, which: usize) -> Self {
        let (party, writes) = race.parties[which];
        let (at, origin) = match party {
            Party::Inst(at) | Party::CallerAfter(at) => (Some(at), None),
            Party::Operation(at, origin) | Party::Free(at, origin) => (Some(at), Some(origin)),
            Party::CallerBefore => (None, None),
        };
        let plan = &plans[at.map_or(race.rank, |it| it.rank)];
        let origin = origin.or(at.map(|it| plan.code[it.inst].origin)).unwrap_or(0);
        Self { plan, owner: race.rank, party, writes, inst_ref: at, origin }
    }

    /// Returns the diagnostic code of a race between two sides.
    pub fn code(race: &Race, sides: &[Self; 2]) -> Code {
        let is_caller = |it: &Self| matches!(it.party, Party::CallerBefore | Party::CallerAfter(_));
        if race.between_runs {
            Code::RaceBetweenRuns
        } else if race.reused.is_some() {
            Code::StorageRace
        } else if sides.iter().any(is_caller) {
            Code::RaceWithCaller
        } else if sides.iter().any(Self::allocates) {
            Code::StorageRace
        } else {
            Code::Race
        }
    }

    fn kind(&self) -> Option<&'a InstKind> {
        self.inst_ref.filter(|_| !self.frees()).map(|at| &self.plan.code[at.inst].kind)
    }

    /// Returns the index of the instruction in the plan of its rank, or `None` for the caller before program
    /// entry.
    pub fn inst_index(&self) -> Option<usize> {
        self.inst_ref.map(|at| at.inst)
    }

    /// Returns the index of the last instruction of its plan that is issued up to it. A free is no instruction.
    pub fn issue_index(&self) -> Option<usize> {
        let before = || self.plan.code.partition_point(|it| it.origin < self.origin).checked_sub(1);
        if self.frees() { before() } else { self.inst_index() }
    }

    /// Returns true if it is a statement of the program, and not the caller.
    pub fn is_in_program(&self) -> bool {
        matches!(self.party, Party::Inst(_) | Party::Operation(..) | Party::Free(..))
    }

    /// Returns true if it only allocates the storage.
    pub fn allocates(&self) -> bool {
        matches!(self.kind(), Some(InstKind::Alloc { zeroed: None, .. }))
    }

    /// Returns true if it frees the storage.
    pub fn frees(&self) -> bool {
        matches!(self.party, Party::Free(..))
    }

    /// Returns true if it allocates the storage and fills it with zeros.
    pub fn fills_with_zeros(&self) -> bool {
        matches!(self.kind(), Some(InstKind::Alloc { zeroed: Some(_), .. }))
    }

    /// Returns the line of the statement.
    pub fn line(&self) -> u32 {
        self.plan.origins[self.origin as usize].line
    }

    /// Returns the innermost loop iteration of the statement.
    pub fn frame(&self) -> Option<u32> {
        self.plan.origins[self.origin as usize].iteration
    }

    /// Returns the communication that the statement posts.
    pub fn communication(&self) -> Option<Communication<'a>> {
        match self.kind().map(InstKind::effect).map(SyncEffect::execution_site) {
            Some(ExecutionSite::Queue(it)) => Some(it),
            Some(ExecutionSite::Host | ExecutionSite::Stream) | None => None,
        }
    }

    /// Returns true if the access is asynchronous and a Wait waits for it: a communication, or a part of one
    /// that runs on a communicator's queue.
    pub fn is_posted(&self) -> bool {
        self.communication().is_some() || !self.stream().is_in_program()
    }

    /// Returns the stream on which it is issued.
    pub fn stream(&self) -> &'a PlanStream {
        stream_of(self.plan, self.inst_ref.map_or(0, |at| at.inst))
    }

    /// Returns the name of the stream or backend that executes it: `stream 1`, `NCCL`.
    pub fn actor_name(&self) -> String {
        match self.communication() {
            Some(it) => self.plan.communicators[it.communicator() as usize].backend.name().to_owned(),
            None => self.stream().to_string(),
        }
    }

    /// Formats the access as a label: `writes it (i535=1, stream 1)`.
    pub fn label(&self) -> String {
        let verb = match (self.allocates(), self.writes) {
            _ if self.frees() => "frees",
            (true, _) => "allocates",
            (false, true) => "writes",
            (false, false) => "reads",
        };
        let what = if self.fills_with_zeros() {
            "fills it with zeros".to_owned()
        } else if self.plan.rank == self.owner {
            format!("{verb} it")
        } else {
            let at_end = if self.line() == 0 { ", as an output, at the end" } else { "" };
            format!("rank {} {verb} it in the memory of rank {}{at_end}", self.plan.rank, self.owner)
        };
        let iteration = self.iteration();
        if iteration.is_empty() {
            format!("{what} ({})", self.actor_name())
        } else {
            format!("{what} ({iteration}, {})", self.actor_name())
        }
    }

    fn iteration(&self) -> String {
        iteration_text(&self.plan.enclosing_loops(self.plan.origins[self.origin as usize].iteration))
    }

    /// Formats the location: `line 10`, `line 10 (i535=1)`.
    pub fn location(&self) -> String {
        let iteration = self.iteration();
        if self.line() == 0 {
            "the end of the program".to_owned()
        } else if iteration.is_empty() {
            format!("line {}", self.line())
        } else {
            format!("line {} ({iteration})", self.line())
        }
    }

    /// Returns whether it reads the buffer of a peer through a view of the shards of all ranks, of which the plan has a copy.
    pub fn reads_mapped_view(&self, owner: &Plan, buffer: BufferNo) -> bool {
        let is_elsewhere = |kind: &InstKind| {
            kind.touched_buffers(self.plan.rank).iter().all(|(rank, ..)| *rank != owner.rank)
        };
        let is_shard = owner.gathered_views.iter().any(|it| it.shard.buffer == buffer);
        is_shard && self.plan.rank != owner.rank && self.kind().is_some_and(is_elsewhere)
    }

    /// Returns the first instruction by which a stream of the program waits for this communication.
    /// `index` is that of its plan.
    pub fn first_wait(&self, index: PlanIndex<'_>) -> Option<usize> {
        index.first_wait_for(self.inst_ref?.inst)
    }
}

/// Returns the stream of an instruction; the entry stream if the plan has no such instruction.
pub fn stream_of(plan: &Plan, inst: usize) -> &PlanStream {
    plan.code.get(inst).and_then(|it| plan.stream_of(it)).unwrap_or(&PlanStream::Entry)
}
