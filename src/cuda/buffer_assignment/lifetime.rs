//! Lifetimes of buffers, as far as the plans order the accesses.

use rustc_hash::FxHashMap;

use super::Workspace;
use crate::epilogue::{collective_epilogues, parts_read_by_runs, product_epilogues};
use hir_plan::{
    BufferNo, Plan, Transfer, World,
    sync::happens_before::{Clock, Occurrence, walk},
};

/// The accesses of all ranks to one buffer.
#[derive(Clone, Debug, Default)]
pub(super) struct Lifetime {
    /// Whether the buffer neither gives its memory to another buffer nor takes memory from one: an instruction reads it before the program
    /// writes it, or its accesses are not known.
    pub needs_own_memory: bool,
    /// Whether the caller of the program accesses it before or after the run.
    pub is_callers: bool,
    /// Position of its first access in the order in which `walk` visits all occurrences; `None` if there is
    /// no access.
    pub first_use: Option<usize>,
    /// Position of its last access in that order.
    pub last_use: usize,
    /// Accesses that no other access to the buffer happens before.
    first_accesses: Vec<Occurrence>,
    /// For each actor, the number of its last instruction that accesses the buffer.
    last_accesses: Vec<(u32, u32)>,
    /// For each actor, the number of its first instruction that writes the buffer.
    first_writes: Vec<(u32, u32)>,
}

impl Lifetime {
    /// Returns that of a buffer that needs its own memory.
    fn of_own_memory() -> Self {
        Self { needs_own_memory: true, ..Self::default() }
    }

    /// Returns true if every access to this buffer ends before any access to `other` begins.
    pub fn ends_before(&self, other: &Self) -> bool {
        let known =
            |clock: &Clock| self.last_accesses.iter().all(|(actor, number)| clock.ended(*actor) >= *number);
        Some(self.last_use) < other.first_use && other.first_accesses.iter().all(|it| known(&it.clock))
    }

    fn record_access(&mut self, at: usize, occurrence: &Occurrence, written: bool) {
        self.first_use = self.first_use.or(Some(at));
        self.last_use = at;
        let clock = &occurrence.clock;
        let here = (occurrence.actor, occurrence.number);
        self.needs_own_memory |=
            !written && !self.first_writes.iter().any(|(actor, number)| clock.ended(*actor) >= *number);
        if written && !self.first_writes.iter().any(|(actor, _)| *actor == occurrence.actor) {
            self.first_writes.push(here);
        }
        let follows = |it: &Occurrence| (it.actor, it.number) == here || it.happens_before(occurrence);
        if !self.first_accesses.iter().any(follows) {
            self.first_accesses.push(occurrence.clone());
        }
        match self.last_accesses.iter_mut().find(|(actor, _)| *actor == occurrence.actor) {
            Some((_, number)) => *number = occurrence.number,
            None => self.last_accesses.push(here),
        }
    }
}

/// Computes the lifetimes of the buffers of all ranks, by rank and buffer, and behind them those of the workspaces of the rank. If the plans
/// cannot be ordered, every buffer needs its own memory.
///
/// The operands of a matrix product that a `relu` or a sum follows live until that has ended. Its result thus shares no
/// memory with them, and the epilogue of the product can compute it. For the same reason, what a collective reads lives
/// until its epilogue has ended, and a buffer of which elementwise instructions read a part, such as the gates of an MLP, until these
/// have ended.
pub(super) fn lifetimes<'a>(
    world: &World,
    workspaces: impl Fn(usize) -> &'a [Workspace],
) -> Vec<Vec<Lifetime>> {
    let blank = |plan: &Plan| vec![Lifetime::default(); plan.buffers.len() + workspaces(plan.rank).len()];
    let mut all: Vec<Vec<Lifetime>> = world.iter().map(blank).collect();
    for (plan, all) in world.iter().zip(&mut all) {
        for buffer in plan.caller_buffers() {
            all[buffer as usize].is_callers = true;
        }
    }
    let mut at = 0;
    // By rank: the matrix product of each instruction that its epilogue may compute.
    let products: Vec<FxHashMap<usize, usize>> = world
        .iter()
        .map(|plan| {
            let found = product_epilogues(&plan.code, |it| plan.buffers[it as usize].dtype);
            found.iter().map(|it| (it.follower as usize, it.product as usize)).collect()
        })
        .collect();
    let epilogues: Vec<FxHashMap<usize, usize>> =
        world.iter().map(|plan| collective_epilogues(&plan.code, &plan.peer_collectives)).collect();
    let parts: Vec<FxHashMap<usize, Vec<BufferNo>>> =
        world.iter().map(|plan| parts_read_by_runs(&plan.code, |it| plan.buffers[it as usize].len)).collect();
    let walked = walk(world, &mut |occurrence| {
        let plan = &world[occurrence.rank];
        let mut touched = plan.code[occurrence.inst].kind.touched_buffers(occurrence.rank);
        if let Some(product) = products[occurrence.rank].get(&occurrence.inst) {
            let operands = plan.code[*product].kind.touched_buffers(occurrence.rank);
            touched.extend(operands.into_iter().filter(|(_, _, written)| !written));
        }
        if let Some(number) = epilogues[occurrence.rank].get(&occurrence.inst) {
            let transfers = plan.peer_collectives[*number].phases.all().iter().flat_map(|it| &it.transfers);
            let read = transfers.flat_map(Transfer::inputs).filter(|it| it.rank == occurrence.rank);
            touched.extend(read.map(|it| (it.rank, it.view.buffer, false)));
        }
        let read = parts[occurrence.rank].get(&occurrence.inst).into_iter().flatten();
        touched.extend(read.map(|it| (occurrence.rank, *it, false)));
        let own = (plan.buffers.len() as BufferNo..).zip(workspaces(occurrence.rank));
        touched.extend(
            own.filter(|(_, it)| it.inst == occurrence.inst)
                .map(|(number, _)| (occurrence.rank, number, true)),
        );
        for (rank, buffer, written) in touched {
            let it = all.get_mut(rank).and_then(|it| it.get_mut(buffer as usize));
            if let Some(it) = it.filter(|it| it.is_callers || !it.needs_own_memory) {
                it.record_access(at, &occurrence, written);
            }
        }
        at += 1;
    });
    // Iterations that are not executed order nothing.
    let may_end_early = world.iter().any(|it| !it.exits.is_empty());
    if walked.is_err() || may_end_early {
        all.iter_mut().flatten().for_each(|it| *it = Lifetime::of_own_memory());
    }
    all
}

/// Returns lifetimes of buffers each of which needs its own memory, by rank and buffer.
pub(super) fn unordered_lifetimes(world: &World) -> Vec<Vec<Lifetime>> {
    world.iter().map(|plan| vec![Lifetime::of_own_memory(); plan.buffers.len()]).collect()
}

/// Returns, for each lifetime, whether its last accesses happen before the first accesses of other buffers.
/// If not, no buffer can reuse its memory.
pub(super) fn are_reusable(them: &[&Lifetime]) -> Vec<bool> {
    let mut latest: Vec<u32> = Vec::new();
    for it in them.iter().flat_map(|it| &it.first_accesses) {
        for actor in 0..it.clock.actors() {
            latest.resize(latest.len().max(actor + 1), 0);
            latest[actor] = latest[actor].max(it.clock.ended(actor as u32));
        }
    }
    let followed = |(actor, number): &(u32, u32)| latest.get(*actor as usize).is_some_and(|it| it >= number);
    them.iter().map(|it| it.last_accesses.iter().all(followed)).collect()
}
