//! Finds writes that nothing reads.
//!
//! The plans have no race, so a read returns the value of the last preceding write in the order of the walk.
//! A write counts as read if a later read by another statement overlaps it and no single write has covered it
//! in between. If several writes together cover a write, it still counts as read. The search is therefore
//! conservative: it may miss unread writes, but never reports a write that is read.
//!
//! A statement is reported if nothing reads any of its writes, on any rank and in any iteration. The
//! statements of one communication are reported together or not at all: without one of them the others would
//! wait forever.

use grammar::StmtId;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Excess, ExcessKind, ExcessNotSearched, StmtOnRank};
use crate::{
    history::AccessHistory,
    overlap::{Footprint, Overlap, covers, overlap},
};
use hir_plan::{
    BufferNo, Direction, InstKind, Plan, View,
    sync::{CommMatching, happens_before::Occurrence},
};

/// The maximum number of writes that are tracked. A statement that writes after them counts as read.
pub const MAX_WRITES: usize = 4_000_000;

/// A statement that writes, and what is known about its writes.
struct WritingStmt {
    at: StmtOnRank,
    /// The first and the last write of its first execution: the buffer, and the rank that owns it. A HostUnit
    /// writes its own tensors first.
    targets: [(BufferNo, usize); 2],
    is_read: bool,
    overwritten: Option<StmtOnRank>,
    is_allocation: bool,
    /// Its executions (rank and loop iteration), while nothing has read it. One execution of a HostUnit has
    /// several origins.
    instances: FxHashSet<(usize, Option<u32>)>,
}

/// A write that nothing has read so far.
struct Write {
    statement: u32,
    footprint: Footprint,
}

/// Tracks writes while `happens_before::walk` visits the instructions.
#[derive(Default)]
pub struct UnreadWrites<'p> {
    plans: &'p [Plan],
    /// Index into `statements`, by program and statement.
    numbers: FxHashMap<(usize, StmtId), u32>,
    statements: Vec<WritingStmt>,
    writes: FxHashMap<(usize, BufferNo), AccessHistory<Write>>,
    /// Number of writes visited.
    seen: usize,
}

impl<'p> UnreadWrites<'p> {
    /// Creates the state before the first instruction.
    pub fn new(plans: &'p [Plan]) -> Self {
        Self { plans, ..Self::default() }
    }

    /// Visits an instruction after all instructions that happen before it.
    pub fn visit(&mut self, it: &Occurrence) {
        let plan = &self.plans[it.rank];
        let inst = &plan.code[it.inst];
        if let InstKind::Alloc { zeroed: Some(whole), .. } = &inst.kind {
            self.write((it.rank, inst.origin), it.rank, whole, true);
            return;
        }
        // The operations of a transfer have their own statements. All other accesses belong to the statement
        // of the instruction.
        let mut accesses: Vec<(u32, usize, &View, bool)> = Vec::new();
        // Each operation of a transfer is a statement of its own.
        if let InstKind::P2pGroup(group) = &inst.kind {
            let sides = group.ops.iter();
            accesses
                .extend(sides.map(|it| (it.origin, plan.rank, &it.view, it.direction == Direction::Recv)));
        } else {
            inst.kind.visit_accesses(it.rank, &mut |access| {
                accesses.push((inst.origin, access.rank, access.view, access.is_write));
            });
        }
        for (origin, rank, view, _) in accesses.iter().filter(|it| !it.3) {
            let reader = plan.origins[*origin as usize].stmt.map(|it| (plan.program_id, it));
            self.read(reader, *rank, view);
        }
        for (origin, rank, view, _) in accesses.iter().filter(|it| it.3) {
            self.write((it.rank, *origin), *rank, view, false);
        }
    }

    /// Records a read by a statement, or by the caller (`None`).
    fn read(&mut self, reader: Option<(usize, StmtId)>, rank: usize, view: &View) {
        let Some(footprint) = Footprint::of(view) else { return };
        let Some(history) = self.writes.get_mut(&(rank, view.buffer)) else { return };
        let reader = reader.and_then(|it| self.numbers.get(&it).copied());
        let statements = &mut self.statements;
        history.retain(&footprint, |it| {
            let statement = &mut statements[it.statement as usize];
            if Some(it.statement) != reader && overlap(&it.footprint, &footprint) != Overlap::None {
                statement.is_read = true;
            }
            !statement.is_read
        });
    }

    fn write(&mut self, at: StmtOnRank, rank: usize, view: &View, is_allocation: bool) {
        let Some(footprint) = Footprint::of(view) else { return };
        let plan = &self.plans[at.0];
        let Some(stmt) = plan.origins[at.1 as usize].stmt else { return };
        let next = self.statements.len() as u32;
        let number = *self.numbers.entry((plan.program_id, stmt)).or_insert(next);
        if number == next {
            self.statements.push(WritingStmt {
                at,
                targets: [(view.buffer, rank); 2],
                is_read: false,
                overwritten: None,
                is_allocation,
                instances: FxHashSet::default(),
            });
        }
        let history = self.writes.entry((rank, view.buffer)).or_default();
        let statements = &mut self.statements;
        history.retain(&footprint, |it| {
            let is_covered = covers(&footprint, &it.footprint);
            let statement = &mut statements[it.statement as usize];
            if is_covered && it.statement != number {
                statement.overwritten.get_or_insert(at);
            }
            !is_covered && !statement.is_read
        });
        let statement = &mut self.statements[number as usize];
        let frame = |it: StmtOnRank| plan.origins[it.1 as usize].iteration;
        if statement.at.0 == at.0 && frame(statement.at) == frame(at) {
            statement.targets[1] = (view.buffer, rank);
        }
        statement.is_allocation &= is_allocation;
        self.seen += 1;
        statement.is_read |= self.seen > MAX_WRITES;
        if !statement.is_read {
            statement.instances.insert((at.0, frame(at)));
            history.push(&footprint, Write { statement: number, footprint: footprint.clone() });
        }
    }

    /// Records the reads by the caller at the end of the program. Returns the writes that nothing reads, and
    /// whether some writes were not tracked.
    pub fn finish(mut self, matched: &CommMatching) -> (Vec<Excess>, Option<ExcessNotSearched>) {
        let plans = self.plans;
        for plan in plans {
            let outputs = plan.outputs.iter().filter_map(|it| it.shard.view.as_ref());
            outputs.for_each(|view| self.read(None, plan.rank, view));
            let inputs = plan.inputs.iter().filter_map(|it| Some(it.shard.view.as_ref()?.buffer));
            for buffer in inputs.chain(plan.live_out.iter().copied()) {
                let whole = View::contiguous(buffer, vec![plan.buffers[buffer as usize].len]);
                self.read(None, plan.rank, &whole);
            }
        }
        let communicates = self.merge_communication_reads(matched);
        let of = |it: &WritingStmt| {
            let stmt = plans[it.at.0].origins[it.at.1 as usize].stmt;
            ExcessKind::UnreadWrite {
                target: it
                    .targets
                    .iter()
                    .find_map(|(buffer, rank)| Some((name_in_program(&plans[*rank], *buffer)?, *rank))),
                overwritten_by: it.overwritten,
                is_allocation: it.is_allocation,
                communicates: stmt
                    .is_some_and(|it_stmt| communicates.contains_key(&(plans[it.at.0].program_id, it_stmt))),
            }
        };
        let unread = self.statements.iter().filter(|it| !it.is_read);
        let found = unread
            .map(|it| Excess {
                stmt: it.at,
                kind: of(it),
                ranks: it.instances.iter().map(|it| it.0).collect(),
                count: it.instances.len(),
            })
            .collect();
        (found, (self.seen > MAX_WRITES).then_some(ExcessNotSearched::Writes))
    }

    /// Marks all statements of a communication as read if one of them is. Returns the communicating
    /// statements, by program, and the set of each.
    fn merge_communication_reads(&mut self, matched: &CommMatching) -> FxHashMap<(usize, StmtId), usize> {
        let mut sets: FxHashMap<(usize, StmtId), usize> = FxHashMap::default();
        let mut parents: Vec<usize> = Vec::new();
        for (number, comm) in (0..).zip(&matched.comms) {
            let mut first = None;
            for part in &comm.parts {
                let plan = &self.plans[part.inst_ref.rank];
                let origin = matched.origin(self.plans, part.inst_ref, number);
                let Some(stmt) = plan.origins[origin as usize].stmt else { continue };
                let set = *sets.entry((plan.program_id, stmt)).or_insert_with(|| {
                    parents.push(parents.len());
                    parents.len() - 1
                });
                let root = find_root(&mut parents, set);
                match first {
                    None => first = Some(root),
                    Some(it) => {
                        let it = find_root(&mut parents, it);
                        parents[root] = it;
                    }
                }
            }
        }
        let mut is_read = vec![false; parents.len()];
        let mut roots: FxHashMap<u32, usize> = FxHashMap::default();
        for (stmt, set) in &sets {
            if let Some(number) = self.numbers.get(stmt) {
                let root = find_root(&mut parents, *set);
                is_read[root] |= self.statements[*number as usize].is_read;
                roots.insert(*number, root);
            }
        }
        for (number, root) in roots {
            self.statements[number as usize].is_read |= is_read[root];
        }
        sets
    }
}

/// Returns the name of a buffer that a statement of the program allocates. Returns `None` for the tensors of
/// a HostUnit, which have their own names, and for staging buffers of communications, which have none.
fn name_in_program(plan: &Plan, buffer: BufferNo) -> Option<String> {
    let is_it = |kind: &InstKind| matches!(kind, InstKind::Alloc { buffer: it, .. } if *it == buffer);
    let origin = plan.code.iter().find(|it| is_it(&it.kind))?.origin;
    let stmt = plan.origins[origin as usize].stmt?;
    let is_in_program =
        plan.allocations.iter().any(|it| it.buffer == buffer) && !plan.comm_names.posts_unit(stmt);
    is_in_program.then(|| plan.buffers[buffer as usize].name.clone())
}

/// Returns the representative of the set that contains `it`.
fn find_root(parents: &mut [usize], mut it: usize) -> usize {
    while parents[it] != it {
        parents[it] = parents[parents[it]];
        it = parents[it];
    }
    it
}
