//! Which communication a rank goes past that another rank waits for.
//!
//! Collectives and messages match by position, so one that is skipped in the third iteration leaves the last one without a
//! partner, and what nobody posts is not the cause. A statement is blamed only where that is certain: what a rank posts and what
//! it goes past have to be together, in order, exactly what the waiting rank's partner would post. Of a message that is known by
//! the other messages of its statement. Where ranks differ in another way, or run programs of their own, nothing is blamed.

use std::sync::Arc;

use grammar::ir::StmtId;
use rustc_hash::FxHashMap;

use super::{
    InstRef,
    book::{Book, Need, Part},
    machine::Condition,
};
use crate::plan::{Direction, InstKind, MOST_SKIPS, Plan, Skip, SkippedRole, Slot, Why, iteration_text};

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

/// The statement that the messages of each one match; `None`: several.
pub(super) type Counterparts = FxHashMap<StmtId, Option<StmtId>>;

/// What a rank posts at a place: the statement and its iteration.
type Place = (StmtId, Iteration);

impl Book<'_> {
    /// What is not posted of that which `at` waits for, where that is certain.
    pub(super) fn skipped(&self, at: InstRef, need: &Need) -> Option<Skipped> {
        if need.inst.is_some() || self.machine.plans.iter().any(|it| it.program != 0) {
            return None;
        }
        let (me, other) = (at.rank, need.rank);
        let (mine, theirs) = match need.part? {
            Part::Member(group) => {
                let posts = |rank| {
                    (0..).map_while(|which| self.meetings.get(&(group, rank, which)).copied()).collect()
                };
                (self.places(me, posts(me))?, self.places(other, posts(other))?)
            }
            Part::Side((group, from, to, direction, _)) => {
                let sides = |direction| {
                    let key = |which| (group, from, to, direction, which);
                    (0..).map_while(|which| self.messages.get(&key(which)).copied()).collect()
                };
                let mine = self.mirrored(self.places(me, sides(direction.mirror()))?)?;
                (mine, self.places(other, sides(direction))?)
            }
            Part::Flag(slot) => {
                let is_alike = |it: Slot| Slot { index: slot.index, ..it } == slot;
                let awaits = self.all_of(me, &|it| awaited(it).is_some_and(is_alike));
                let raises = |it: &InstKind| matches!(it, InstKind::Signal { slot } if is_alike(*slot));
                (self.mirrored(self.places(me, awaits)?)?, self.places(other, self.all_of(other, &raises))?)
            }
            Part::Share => {
                let shares =
                    |rank| self.all_of(rank, &|it: &InstKind| matches!(it, InstKind::Exchange { .. }));
                (self.places(me, shares(me))?, self.places(other, shares(other))?)
            }
        };
        self.first_missing(me, other, mine, &theirs)
    }

    /// The instructions of a rank that are of some kind.
    fn all_of(&self, rank: usize, is: &dyn Fn(&InstKind) -> bool) -> Vec<usize> {
        let code = self.machine.plans[rank].code.iter().enumerate();
        code.filter(|(_, it)| is(&it.kind)).map(|(inst, _)| inst).collect()
    }

    /// The statements and iterations of instructions.
    fn places(&self, rank: usize, insts: Vec<usize>) -> Option<Vec<Place>> {
        insts.into_iter().map(|inst| self.origin(InstRef { rank, inst })).collect()
    }

    /// The first of `mine` that the other rank goes past, if with all that it goes past it would post exactly these.
    fn first_missing(&self, me: usize, other: usize, mine: Vec<Place>, theirs: &[Place]) -> Option<Skipped> {
        let skips = &self.machine.plans[other].skips;
        // What else it goes past is not known.
        if skips.len() >= MOST_SKIPS {
            return None;
        }
        let mut posted = theirs.iter().peekable();
        let (mut first, mut from) = (None, 0);
        for wanted in mine {
            if posted.next_if(|it| **it == wanted).is_some() {
                continue;
            }
            let plan = &self.machine.plans[other];
            let fits = |it: &Skip| it.stmt == wanted.0 && may_be(plan, it, me, &wanted.1);
            // Both are in the order of the program.
            from += skips.get(from..)?.iter().position(fits)?;
            first.get_or_insert(Skipped { rank: other, skip: from, wanted: wanted.1 });
        }
        first.filter(|_| posted.next().is_none())
    }

    /// The places of the other sides: a statement's counterpart is the one that it has wherever it has any.
    fn mirrored(&self, places: Vec<Place>) -> Option<Vec<Place>> {
        places.into_iter().map(|(stmt, iteration)| Some((self.counterpart(stmt)?, iteration))).collect()
    }

    /// The statement whose sides of messages, or flags, match those of another one, if it is always the same.
    fn counterpart(&self, stmt: StmtId) -> Option<StmtId> {
        let counterparts = self.counterparts.get_or_init(|| self.all_counterparts());
        counterparts.get(&stmt).copied().flatten()
    }

    fn all_counterparts(&self) -> Counterparts {
        let mut found = Counterparts::default();
        let mut pair = |one: Option<Place>, two: Option<Place>| {
            let (Some((stmt, _)), Some((other, _))) = (one, two) else { return };
            let known = found.entry(stmt).or_insert(Some(other));
            *known = known.filter(|it| *it == other);
        };
        let place = |rank, inst| self.origin(InstRef { rank, inst });
        for ((group, from, to, direction, which), inst) in &self.messages {
            let theirs = (*group, *from, *to, direction.mirror(), *which);
            if let (Direction::Send, Some(there)) = (direction, self.messages.get(&theirs)) {
                pair(place(*from, *inst), place(*to, *there));
                pair(place(*to, *there), place(*from, *inst));
            }
        }
        for (rank, plan) in self.machine.plans.iter().enumerate() {
            for (inst, it) in plan.code.iter().enumerate() {
                let Some(slot) = awaited(&it.kind) else { continue };
                if let Some(there) = self.conditions.get(&Condition::Slot(slot)) {
                    // A statement may raise one flag and await another: only who awaits asks.
                    pair(place(rank, inst), place(slot.from, *there));
                }
            }
        }
        found
    }

    /// The statement and the iteration of an instruction.
    fn origin(&self, at: InstRef) -> Option<Place> {
        let plan = &self.machine.plans[at.rank];
        let origin = plan.origins[plan.code[at.inst].origin as usize];
        Some((origin.stmt?, plan.loops_around(origin.frame)))
    }
}

/// The flag that an instruction awaits.
fn awaited(kind: &InstKind) -> Option<Slot> {
    if let InstKind::Await { slot } = kind { Some(*slot) } else { None }
}

/// Whether what a rank goes past would be posted in an iteration, and with `peer` if with one rank.
fn may_be(plan: &Plan, skip: &Skip, peer: usize, wanted: &Iteration) -> bool {
    let value = |name: &str| wanted.iter().find(|it| &*it.0 == name).map(|it| it.1);
    let around = plan.loops_around(skip.frame);
    let fits = around.iter().all(|(name, is)| value(name) == Some(*is));
    let outside = match &skip.why {
        Why::Loop { index, start, stop, .. } => value(index).is_some_and(|it| !(*start..*stop).contains(&it)),
        Why::Branch(..) | Why::Elsewhere(_) => true,
    };
    let meets = match skip.role {
        SkippedRole::Send(it) | SkippedRole::Recv(it) => it.is_none_or(|it| it == peer),
        SkippedRole::Collective | SkippedRole::Share => true,
    };
    fits && outside && meets
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
            (iterations(&[plan.loops_around(it.frame)]), format!("{text} is {value} there"))
        }
        Why::Branch(text, value) => {
            let all: Vec<Iteration> = alike().map(|it| plan.loops_around(it.frame)).collect();
            (String::new(), format!("{text} is {value} there{}", iterations(&all)))
        }
        Why::Loop { text, index, start, stop } => {
            let wanted = iterations(std::slice::from_ref(&skipped.wanted));
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
    let one = |it: &Iteration| iteration_text(it);
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
