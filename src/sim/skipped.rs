//! Which communication a rank goes past that another rank waits for.
//!
//! Collectives and messages match by position, so one that is skipped in the third iteration leaves the last one without a
//! partner. The two sequences are therefore aligned first, by statement and iteration: what is missing at the first place where
//! they differ is the cause, and a plan says of it why it is not posted.

use std::sync::Arc;

use grammar::ir::StmtId;

use super::{
    InstRef,
    book::{Book, Need, Part},
    machine::Condition,
};
use crate::plan::{InstKind, Meaning, Plan, Skip, SkippedRole, Slot, Why};

/// The values of the loops around an instruction, outermost first.
pub(super) type Iteration = Vec<(Arc<str>, i64)>;

/// A communication that a rank goes past: an index into its `Plan::skips`, and the iteration in which others need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Skipped {
    /// The rank.
    pub rank: usize,
    /// Which.
    pub skip: usize,
    /// The values of the loops around what the others post.
    pub wanted: Iteration,
}

/// A communication that a rank goes past, and that others wait for.
#[derive(Clone, Debug, PartialEq)]
pub struct NeverPosted {
    /// The rank.
    pub rank: usize,
    /// What it does not do: `never posts P2PCommunication 38 (send, line 21)`.
    pub what: String,
    /// Why not: `` `IF Manual ( rank != 3 )` (line 20) is false there in streamIdx=1..7``.
    pub why: String,
    /// Who waits for it, indices into `Deadlock::waits`.
    pub waits: Vec<usize>,
}

/// Most iterations in which a branch is not taken that are named.
const MAX_ITERATIONS: usize = 8;

impl Book<'_> {
    /// What is not posted of that which `at` waits for, if a rank is known to go past it.
    pub(super) fn skipped(&self, at: InstRef, need: &Need) -> Option<Skipped> {
        match need.part? {
            Part::Member(group, ordinal) => {
                let posts = |rank, which| self.meetings.get(&(group, rank, which)).copied();
                let role = |_| SkippedRole::Collective;
                self.aligned(at.rank, need.rank, 0..=ordinal, &posts, &posts, &role)
            }
            Part::Side((group, from, to, direction, last)) => {
                let mine =
                    |_, which| self.messages.get(&(group, from, to, direction.mirror(), which)).copied();
                let theirs = |_, which| self.messages.get(&(group, from, to, direction, which)).copied();
                let role = |rank| match rank == from {
                    true => SkippedRole::Send(Some(to)),
                    false => SkippedRole::Recv(Some(from)),
                };
                self.aligned(at.rank, need.rank, 0..=last, &mine, &theirs, &role)
            }
            Part::Flag(slot) => self.unraised(slot),
            Part::Share if self.is_same(at.rank, need.rank) => {
                self.find(need.rank, SkippedRole::Share, self.origin(at))
            }
            Part::Share => None,
        }
    }

    /// What stands for a flag that is never raised.
    fn unraised(&self, slot: Slot) -> Option<Skipped> {
        let sends = |rank: usize, sender: usize, receiver: usize| match rank == sender {
            true => SkippedRole::Send(Some(receiver)),
            false => SkippedRole::Recv(Some(sender)),
        };
        let role = |rank: usize| match slot.meaning {
            Meaning::Ready | Meaning::PutDone => sends(rank, slot.from, slot.to),
            Meaning::Done | Meaning::PutReady => sends(rank, slot.to, slot.from),
            Meaning::TeamReady | Meaning::TeamDone => SkippedRole::Collective,
        };
        let of = |which: usize| Slot { index: which as u32, ..slot };
        let mut awaits: Vec<Option<usize>> = Vec::new();
        let code = &self.machine.plans.get(slot.to)?.code;
        for (inst, it) in code.iter().enumerate() {
            if let InstKind::Await { slot: other } = it.kind
                && of(other.index as usize) == other
                && let None = awaits.get(other.index as usize)
            {
                awaits.resize(other.index as usize, None);
                awaits.push(Some(inst));
            }
        }
        let mine = |_, which: usize| awaits.get(which).copied().flatten();
        let theirs = |_, which: usize| self.conditions.get(&Condition::Slot(of(which))).copied();
        self.aligned(slot.to, slot.from, 0..=slot.index as usize, &mine, &theirs, &role)
    }

    /// What a rank goes past, at the first place where what it posts differs from what `me` posts.
    fn aligned(
        &self,
        me: usize,
        other: usize,
        places: std::ops::RangeInclusive<usize>,
        mine: &dyn Fn(usize, usize) -> Option<usize>,
        theirs: &dyn Fn(usize, usize) -> Option<usize>,
        role: &dyn Fn(usize) -> SkippedRole,
    ) -> Option<Skipped> {
        for which in places {
            let here = mine(me, which).map(|inst| self.origin(InstRef { rank: me, inst }));
            let there = theirs(other, which).map(|inst| self.origin(InstRef { rank: other, inst }));
            let same = match (&here, &there) {
                (Some(here), Some(there)) if role(me) == role(other) && self.is_same(me, other) => {
                    here == there
                }
                // The two sides of a message are different statements.
                (Some(here), Some(there)) => here.1 == there.1,
                (None, _) | (_, None) => false,
            };
            if same {
                continue;
            }
            // Statements of another program are not known by those of this one.
            let known = |(stmt, iteration): (Option<StmtId>, Iteration)| {
                (stmt.filter(|_| self.is_same(me, other)), iteration)
            };
            let lacking = here.and_then(|it| self.find(other, role(other), known(it)));
            let found = lacking.or_else(|| there.and_then(|it| self.find(me, role(me), known(it))));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// A communication that a rank goes past, which would have the role, at a place if the other ranks' statement is the same.
    fn find(
        &self,
        rank: usize,
        role: SkippedRole,
        (stmt, iteration): (Option<StmtId>, Iteration),
    ) -> Option<Skipped> {
        let plan = self.machine.plans.get(rank)?;
        let fits = |it: &(usize, &Skip)| {
            let same = match role {
                SkippedRole::Collective | SkippedRole::Share => it.1.role == role && Some(it.1.stmt) == stmt,
                SkippedRole::Send(_) => matches!(it.1.role, SkippedRole::Send(None)) || it.1.role == role,
                SkippedRole::Recv(_) => matches!(it.1.role, SkippedRole::Recv(None)) || it.1.role == role,
            };
            same && may_be(plan, it.1, &iteration)
        };
        let all: Vec<(usize, &Skip)> = plan.skips.iter().enumerate().filter(fits).collect();
        let known: Vec<&(usize, &Skip)> = all.iter().filter(|it| it.1.role == role).collect();
        let candidates = if known.is_empty() { all.iter().collect() } else { known };
        // Where it may be one of several statements, nobody knows which was meant.
        let (skip, first) = candidates.first()?;
        let is_one = candidates.iter().all(|(_, it)| it.stmt == first.stmt);
        is_one.then(|| Skipped { rank, skip: *skip, wanted: iteration.clone() })
    }

    /// Whether two ranks run the same program.
    fn is_same(&self, one: usize, two: usize) -> bool {
        let program = |rank: usize| self.machine.plans.get(rank).map(|it| it.program);
        program(one) == program(two)
    }

    /// The statement and the iteration of an instruction.
    fn origin(&self, at: InstRef) -> (Option<StmtId>, Iteration) {
        let plan = &self.machine.plans[at.rank];
        let origin = plan.origins[plan.code[at.inst].origin as usize];
        (origin.stmt, iteration(plan, origin.frame))
    }
}

/// The values of the loops around a frame.
pub(super) fn iteration(plan: &Plan, mut frame: Option<u32>) -> Iteration {
    let mut found = Vec::new();
    while let Some(it) = frame.map(|at| &plan.frames[at as usize]) {
        found.push((Arc::clone(&it.name), it.value));
        frame = it.parent;
    }
    found.reverse();
    found
}

/// Whether what a rank goes past would be posted in an iteration, as far as the names of loops tell.
fn may_be(plan: &Plan, skip: &Skip, wanted: &Iteration) -> bool {
    let value = |name: &str| wanted.iter().find(|it| &*it.0 == name).map(|it| it.1);
    let around = iteration(plan, skip.frame);
    let fits = around.iter().all(|(name, is)| value(name).is_none_or(|it| it == *is));
    let outside = match &skip.why {
        Why::Loop { index, start, stop, .. } => value(index).is_none_or(|it| !(*start..*stop).contains(&it)),
        Why::Branch(..) | Why::Elsewhere(_) => true,
    };
    fits && outside
}

/// What a rank does not do, and why. A statement that it runs in other iterations it only lacks in these.
pub(super) fn explain(plan: &Plan, skipped: &Skipped) -> (String, String) {
    let it = &plan.skips[skipped.skip];
    let runs = plan.code.iter().any(|inst| plan.origins[inst.origin as usize].stmt == Some(it.stmt));
    let verb = match (it.role, runs) {
        (SkippedRole::Share, false) => "never executes",
        (SkippedRole::Share, true) => "does not execute",
        (SkippedRole::Send(_) | SkippedRole::Recv(_) | SkippedRole::Collective, false) => "never posts",
        (SkippedRole::Send(_) | SkippedRole::Recv(_) | SkippedRole::Collective, true) => "does not post",
    };
    let alike = || plan.skips.iter().filter(|other| other.stmt == it.stmt && other.why == it.why);
    let (around, why) = match &it.why {
        Why::Branch(text, value) if runs => {
            (iterations(&[iteration(plan, it.frame)]), format!("{text} is {value} there"))
        }
        Why::Branch(text, value) => {
            let all: Vec<Iteration> = alike().map(|it| iteration(plan, it.frame)).collect();
            (String::new(), format!("{text} is {value} there{}", iterations(&all)))
        }
        Why::Loop { text, index, start, stop } => {
            let wanted = skipped.wanted.iter().find(|(name, _)| name == index);
            let wanted = wanted.map_or(String::new(), |(name, value)| format!(" in {name}={value}"));
            let runs = match stop - start {
                1 => format!("runs there for {index}={start} only"),
                2.. => format!("runs there for {index}={start}..{} only", stop - 1),
                _ => "does not run there".to_owned(),
            };
            (wanted, format!("{text} {runs}"))
        }
        Why::Elsewhere(tensor) => (String::new(), format!("it holds no part of `{tensor}`")),
    };
    (format!("{verb} {}{around}", it.name), why)
}

/// ` in streamIdx=1..7`; nothing outside of loops.
fn iterations(all: &[Iteration]) -> String {
    let one = |it: &Iteration| {
        it.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    };
    if all.iter().any(Vec::is_empty) {
        return String::new();
    }
    // One loop, and values that follow each other.
    if let ([first, .., last], true) = (all, all.iter().all(|it| it.len() == 1)) {
        let follows = all.windows(2).all(|it| it[0][0].0 == it[1][0].0 && it[0][0].1 + 1 == it[1][0].1);
        if follows {
            return format!(" in {}..{}", one(first), last[0].1);
        }
    }
    let mut texts: Vec<String> = all.iter().take(MAX_ITERATIONS).map(one).collect();
    if all.len() > MAX_ITERATIONS {
        texts.push("…".to_owned());
    }
    format!(" in {}", texts.join(", "))
}
