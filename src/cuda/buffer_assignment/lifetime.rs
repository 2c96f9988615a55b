//! From when to when buffers are in use, as far as the plans order it.

use crate::plan::{
    Plan,
    sync::{
        CommMatching,
        happens_before::{Clock, Occurrence, walk},
    },
};

/// The use of one buffer, by all ranks.
#[derive(Clone, Debug, Default)]
pub(super) struct Lifetime {
    /// Whether nothing may take its place, nor it another's: others than the program's instructions look at it, or some
    /// instruction reads what nothing has written.
    pub needs_own_memory: bool,
    /// Which moment of all is the first that touches it; `None`: nothing does.
    pub first_use: Option<usize>,
    /// Which is the last.
    pub last_use: usize,
    /// What was known at the moments that touch it and before which no other does.
    first_accesses: Vec<Occurrence>,
    /// By actor, the number of its last instruction that touches it.
    last_accesses: Vec<(u32, u32)>,
    /// By actor, the number of its first instruction that writes to it.
    first_writes: Vec<(u32, u32)>,
}

impl Lifetime {
    /// Whether every moment that touches this one ends before any begins that touches `other`.
    pub fn ends_before(&self, other: &Self) -> bool {
        let known =
            |clock: &Clock| self.last_accesses.iter().all(|(actor, number)| clock.ended(*actor) >= *number);
        Some(self.last_use) < other.first_use && other.first_accesses.iter().all(|it| known(&it.clock))
    }

    fn record_access(&mut self, at: usize, moment: &Occurrence, written: bool) {
        self.first_use = self.first_use.or(Some(at));
        self.last_use = at;
        let clock = &moment.clock;
        let here = (moment.actor, moment.number);
        self.needs_own_memory |=
            !written && !self.first_writes.iter().any(|(actor, number)| clock.ended(*actor) >= *number);
        if written && !self.first_writes.iter().any(|(actor, _)| *actor == moment.actor) {
            self.first_writes.push(here);
        }
        let follows = |it: &Occurrence| (it.actor, it.number) == here || it.happens_before(moment);
        if !self.first_accesses.iter().any(follows) {
            self.first_accesses.push(moment.clone());
        }
        match self.last_accesses.iter_mut().find(|(actor, _)| *actor == moment.actor) {
            Some((_, number)) => *number = moment.number,
            None => self.last_accesses.push(here),
        }
    }
}

/// The use of all ranks' buffers, by rank and buffer. Where the plans give no order all are fixed.
pub(super) fn lifetimes(plans: &[Plan]) -> Vec<Vec<Lifetime>> {
    let blank = |plan: &Plan| vec![Lifetime::default(); plan.buffers.len()];
    let mut all: Vec<Vec<Lifetime>> = plans.iter().map(blank).collect();
    for (plan, all) in plans.iter().zip(&mut all) {
        let ports = plan.inputs.iter().chain(&plan.outputs).filter_map(|it| it.shard.view.as_ref());
        for buffer in ports.map(|it| it.buffer).chain(plan.live_out.iter().copied()) {
            all[buffer as usize].needs_own_memory = true;
        }
    }
    let mut at = 0;
    let walked = walk(plans, &CommMatching::from_plans(plans), &mut |moment| {
        for (rank, buffer, written) in plans[moment.rank].code[moment.inst].kind.touched_buffers(moment.rank)
        {
            let it = all.get_mut(rank).and_then(|it| it.get_mut(buffer as usize));
            if let Some(it) = it.filter(|it| !it.needs_own_memory) {
                it.record_access(at, &moment, written);
            }
        }
        at += 1;
    });
    if walked.is_err() {
        all.iter_mut().flatten().for_each(|it| it.needs_own_memory = true);
    }
    all
}

/// For each of `them`, whether something comes after its end: where not, nothing needs to ask for its place.
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
