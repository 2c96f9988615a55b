//! Writes that nothing reads.
//!
//! The plans have no race, so a read gets what the last write before it, in the order of the walk, has left. A write is read if a later
//! read by another statement overlaps it, and no single write has covered it since. What several writes cover together counts as
//! read where any of it is: less is found than could be, and nothing that is read.
//!
//! A statement is reported if nothing reads any of its writes, on all ranks and in all iterations. Statements that take part in one
//! communication stand or fall together: without one of them the others would wait for ever.

use grammar::ir::StmtId;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Excess, ExcessKind, ExcessNotSearched, StmtOnRank};
use crate::{
    check::{
        history::AccessHistory,
        overlap::{Footprint, Overlap, covers, overlap},
    },
    plan::{
        BufferNo, Communication, Direction, InstKind, Plan, SyncEffect, View,
        sync::{CommMatching, happens_before::Occurrence},
    },
};

/// Most writes that are followed: a statement that writes after them counts as read.
pub const MAX_WRITES: usize = 4_000_000;

/// What is known of a statement that writes.
struct WritingStmt {
    at: StmtOnRank,
    /// What its first instance writes first and last: the buffer, and the rank whose memory it is. A HostUnit writes tensors of its own first.
    targets: [(BufferNo, usize); 2],
    is_read: bool,
    overwritten: Option<StmtOnRank>,
    is_allocation: bool,
    /// Its instances, as long as nothing reads it: the rank, and the loop iteration. A HostUnit has several origins in one instance.
    instances: FxHashSet<(usize, Option<u32>)>,
}

/// A write that nothing has read so far.
struct Write {
    statement: u32,
    footprint: Footprint,
}

/// Follows writes while `order::walk` visits the instructions.
pub struct UnreadWrites<'p> {
    plans: &'p [Plan],
    /// By program and statement, an index into `statements`.
    numbers: FxHashMap<(usize, StmtId), u32>,
    statements: Vec<WritingStmt>,
    writes: FxHashMap<(usize, BufferNo), AccessHistory<Write>>,
    /// How many writes were seen.
    seen: usize,
}

impl<'p> UnreadWrites<'p> {
    /// Before the first instruction.
    pub fn new(plans: &'p [Plan]) -> Self {
        Self {
            plans,
            numbers: FxHashMap::default(),
            statements: Vec::new(),
            writes: FxHashMap::default(),
            seen: 0,
        }
    }

    /// An instruction, after all that happen before it.
    pub fn visit(&mut self, it: &Occurrence) {
        let plan = &self.plans[it.rank];
        let inst = &plan.code[it.inst];
        if let InstKind::Alloc { buffer, zero: true } = inst.kind {
            let whole = View::contiguous(buffer, vec![plan.buffers[buffer as usize].len]);
            self.write((it.rank, inst.origin), it.rank, &whole, true);
            return;
        }
        // Sides of a transfer have statements of their own; all other accesses are the instruction's.
        let mut accesses: Vec<(u32, usize, &View, bool)> = Vec::new();
        match inst.kind.effect() {
            SyncEffect::Post(Communication::Transfer(transfer)) => {
                let sides = transfer.ops.iter();
                accesses.extend(
                    sides.map(|it| (it.origin, plan.rank, &it.view, it.direction == Direction::Recv)),
                );
            }
            SyncEffect::Post(Communication::Collective(_))
            | SyncEffect::ShareMemHandles(_)
            | SyncEffect::Barrier
            | SyncEffect::Compute
            | SyncEffect::RecordEvent(_)
            | SyncEffect::WaitEvent(_)
            | SyncEffect::Wait(_)
            | SyncEffect::Signal(_)
            | SyncEffect::WaitSignal(_)
            | SyncEffect::Reshard(_)
            | SyncEffect::ReadOutputs => inst.kind.visit_accesses(it.rank, &mut |access| {
                accesses.push((inst.origin, access.rank, access.view, access.is_write));
            }),
        }
        for (origin, rank, view, _) in accesses.iter().filter(|it| !it.3) {
            let reader = plan.origins[*origin as usize].stmt.map(|it| (plan.program_id, it));
            self.read(reader, *rank, view);
        }
        for (origin, rank, view, _) in accesses.iter().filter(|it| it.3) {
            self.write((it.rank, *origin), *rank, view, false);
        }
    }

    /// A read by a statement, or by the caller.
    fn read(&mut self, reader: Option<(usize, StmtId)>, rank: usize, view: &View) {
        let Some(place) = Footprint::of(view) else { return };
        let Some(history) = self.writes.get_mut(&(rank, view.buffer)) else { return };
        let reader = reader.and_then(|it| self.numbers.get(&it).copied());
        let statements = &mut self.statements;
        history.retain(&place, |it| {
            let statement = &mut statements[it.statement as usize];
            if Some(it.statement) != reader && overlap(&it.footprint, &place) != Overlap::None {
                statement.is_read = true;
            }
            !statement.is_read
        });
    }

    fn write(&mut self, at: StmtOnRank, rank: usize, view: &View, is_allocation: bool) {
        let Some(place) = Footprint::of(view) else { return };
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
        history.retain(&place, |it| {
            let is_covered = covers(&place, &it.footprint);
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
            history.push(&place, Write { statement: number, footprint: place.clone() });
        }
    }

    /// Everything has been visited: the caller reads its memory. What nothing reads, and what was not followed.
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

    /// Statements that communicate, by program; those that take part in one communication are all read if one is.
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

/// The name of a buffer that a statement of the program allocates. The tensors of a HostUnit have names of their own, and the staging
/// buffers of a communication have none.
fn name_in_program(plan: &Plan, buffer: BufferNo) -> Option<String> {
    let is_it = |kind: &InstKind| matches!(kind, InstKind::Alloc { buffer: it, .. } if *it == buffer);
    let origin = plan.code.iter().find(|it| is_it(&it.kind))?.origin;
    let stmt = plan.origins[origin as usize].stmt?;
    let is_in_program =
        plan.allocations.iter().any(|it| it.buffer == buffer) && !plan.comm_names.posts_unit(stmt);
    is_in_program.then(|| plan.buffers[buffer as usize].name.clone())
}

/// The set that a number belongs to.
fn find_root(parents: &mut [usize], mut it: usize) -> usize {
    while parents[it] != it {
        parents[it] = parents[parents[it]];
        it = parents[it];
    }
    it
}
