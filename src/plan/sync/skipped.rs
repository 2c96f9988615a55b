//! Which communication a rank does not post that another rank waits for.
//!
//! Collectives and messages match by position, so one that is skipped in the third iteration leaves the last one without a
//! partner, and what nobody posts is not the cause. A statement is blamed only where that is certain: what a rank posts and what
//! it goes past have to be together, in order, exactly what the waiting rank's partner would post. Of a message that is known by
//! the other messages of its statement. Where ranks differ in another way, or run programs of their own, nothing is blamed.

use std::{rc::Rc, sync::Arc};

use grammar::ir::StmtId;
use rustc_hash::FxHashMap;

use super::{Blocker, CommKey, CommMatching, CommNo, CommRole, GroupNo, InstRef};
use crate::plan::{
    Communication, Direction, MAX_SKIPS, Plan, SignalId, SkipReason, SkippedComm, SkippedRole, SyncEffect,
    iteration_text,
};

/// The values of the loops around an instruction, outermost first.
pub(super) type LoopIndices = Vec<(Arc<str>, i64)>;

/// A communication that a rank goes past: an index into its `Plan::skips`, and the iteration in which others need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SkippedPost {
    /// The rank.
    pub rank: usize,
    /// Which.
    pub skip: usize,
    /// The values of the loops around what the others post.
    pub wanted: LoopIndices,
}

/// Most iterations in which a branch is not taken that are named.
const MAX_ITERATIONS: usize = 8;

/// The statement that the messages of each one match; `None`: several.
type Counterparts = FxHashMap<StmtId, Option<StmtId>>;

/// What a rank posts at a place: the statement and its iteration.
type StmtInstance = (StmtId, LoopIndices);

/// Instructions of a rank that communications match in their order.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Sequence {
    /// A member's collectives of a group.
    Collectives(GroupNo),
    /// One side of the messages from one rank to another on a group.
    Messages(GroupNo, usize, usize, Direction),
    /// What raises flags, or waits for them: those that differ from this one in their index only.
    Signals(SignalId, CommRole),
    /// Exchanges of handles.
    Shares,
}

/// Aligns what ranks post, statement by statement and iteration by iteration.
pub(super) struct Alignment<'a> {
    plans: &'a [Plan],
    matched: &'a CommMatching,
    /// Whether all ranks run one program: statements of two have nothing to do with each other.
    is_one_program: bool,
    counterparts: Option<Counterparts>,
    instances: FxHashMap<(Sequence, usize), Option<Rc<[StmtInstance]>>>,
}

impl<'a> Alignment<'a> {
    pub(super) fn new(plans: &'a [Plan], matched: &'a CommMatching) -> Self {
        let is_one_program = plans.iter().all(|it| it.program_id == 0);
        Self { plans, matched, is_one_program, counterparts: None, instances: FxHashMap::default() }
    }

    /// What is not posted of that which `at` waits for, where that is certain.
    pub(super) fn skipped(&mut self, at: InstRef, need: &Blocker) -> Option<SkippedPost> {
        if need.inst.is_some() || !self.is_one_program {
            return None;
        }
        let (me, other) = (at.rank, need.rank);
        let (mine, theirs) = match need.part? {
            (CommKey::Collective(group, _), _) => {
                let it = Sequence::Collectives(group);
                (self.instances(me, it)?, self.instances(other, it)?)
            }
            (CommKey::Message(group, from, to, _), CommRole::Side(missing)) => {
                let side = |direction| Sequence::Messages(group, from, to, direction);
                let mine = self.instances(me, side(missing.opposite()))?;
                (self.mirrored(&mine)?, self.instances(other, side(missing))?)
            }
            (CommKey::Signal(slot), _) => {
                let alike = |role| Sequence::Signals(SignalId { index: 0, ..slot }, role);
                let mine = self.instances(me, alike(CommRole::WaitsForSignal))?;
                (self.mirrored(&mine)?, self.instances(other, alike(CommRole::Signals))?)
            }
            (CommKey::Handle(..) | CommKey::Barrier(_), _) => {
                (self.instances(me, Sequence::Shares)?, self.instances(other, Sequence::Shares)?)
            }
            (CommKey::Message(..), CommRole::Member(_) | CommRole::Signals | CommRole::WaitsForSignal) => {
                return None;
            }
        };
        self.first_missing(me, other, &mine, &theirs)
    }

    /// The statements and iterations of a sequence's instructions.
    fn instances(&mut self, rank: usize, it: Sequence) -> Option<Rc<[StmtInstance]>> {
        if let Some(known) = self.instances.get(&(it, rank)) {
            return known.clone();
        }
        let mut posts = Vec::new();
        for at in (0..self.plans.get(rank)?.code.len()).map(|inst| InstRef { rank, inst }) {
            let parts = self.matched.comms_of(at).iter().copied().filter(|comm| self.belongs(*comm, at, it));
            // Handles are exchanged together.
            let most = if it == Sequence::Shares { 1 } else { usize::MAX };
            posts.extend(parts.take(most).map(|comm| (at, comm)));
        }
        let places: Option<Rc<[StmtInstance]>> =
            posts.into_iter().map(|(at, comm)| self.instance(at, comm)).collect();
        self.instances.insert((it, rank), places.clone());
        places
    }

    /// Whether an instruction's part in a communication is one of a sequence.
    fn belongs(&self, comm: CommNo, at: InstRef, it: Sequence) -> bool {
        let comm = self.matched.comm(comm);
        let plays = |role| comm.part(at.rank, role) == Some(at);
        match (comm.key, it) {
            (CommKey::Collective(group, _), Sequence::Collectives(wanted)) => group == wanted,
            (
                CommKey::Message(group, from, to, _),
                Sequence::Messages(wanted, sender, receiver, direction),
            ) => (group, from, to) == (wanted, sender, receiver) && plays(CommRole::Side(direction)),
            (CommKey::Signal(slot), Sequence::Signals(wanted, role)) => {
                SignalId { index: 0, ..slot } == wanted && plays(role)
            }
            (CommKey::Handle(..), Sequence::Shares) => true,
            (
                CommKey::Collective(..)
                | CommKey::Message(..)
                | CommKey::Signal(_)
                | CommKey::Handle(..)
                | CommKey::Barrier(_),
                Sequence::Collectives(_) | Sequence::Messages(..) | Sequence::Signals(..) | Sequence::Shares,
            ) => false,
        }
    }

    /// The first of `mine` that the other rank goes past, if with all that it goes past it would post exactly these.
    fn first_missing(
        &self,
        me: usize,
        other: usize,
        mine: &[StmtInstance],
        theirs: &[StmtInstance],
    ) -> Option<SkippedPost> {
        let skips = &self.plans[other].skips;
        // What else it goes past is not known.
        if skips.len() >= MAX_SKIPS {
            return None;
        }
        let mut posted = theirs.iter().peekable();
        let (mut first, mut from) = (None, 0);
        for wanted in mine {
            if posted.next_if(|it| *it == wanted).is_some() {
                continue;
            }
            let plan = &self.plans[other];
            let fits = |it: &SkippedComm| it.stmt == wanted.0 && is_posted_in(plan, it, me, &wanted.1);
            // Both are in the order of the program.
            from += skips.get(from..)?.iter().position(fits)?;
            first.get_or_insert(SkippedPost { rank: other, skip: from, wanted: wanted.1.clone() });
        }
        first.filter(|_| posted.next().is_none())
    }

    /// The places of the other sides: a statement's counterpart is the one that it has wherever it has any.
    fn mirrored(&mut self, places: &[StmtInstance]) -> Option<Rc<[StmtInstance]>> {
        let counterparts = match self.counterparts.take() {
            Some(known) => known,
            None => self.all_counterparts(),
        };
        let other =
            |(stmt, iteration): &StmtInstance| Some((counterparts.get(stmt).copied()??, iteration.clone()));
        let places = places.iter().map(other).collect();
        self.counterparts = Some(counterparts);
        places
    }

    /// The statements whose sides of messages, or flags, match those of another one, if it is always the same.
    fn all_counterparts(&self) -> Counterparts {
        let mut found = Counterparts::default();
        let mut pair = |comm: CommNo, one: InstRef, two: InstRef| {
            let (Some((stmt, _)), Some((other, _))) = (self.instance(one, comm), self.instance(two, comm))
            else {
                return;
            };
            let known = found.entry(stmt).or_insert(Some(other));
            *known = known.filter(|it| *it == other);
        };
        for (number, comm) in (0..).zip(&self.matched.comms) {
            let find = |role| comm.parts.iter().find(|it| it.role == role).map(|it| it.inst_ref);
            match comm.key {
                CommKey::Message(..) => {
                    let sides = [Direction::Send, Direction::Recv].map(|it| find(CommRole::Side(it)));
                    if let [Some(send), Some(recv)] = sides {
                        pair(number, send, recv);
                        pair(number, recv, send);
                    }
                }
                CommKey::Signal(_) => {
                    // A statement may raise one flag and await another: only the one that awaits asks.
                    if let (Some(awaits), Some(raises)) =
                        (find(CommRole::WaitsForSignal), find(CommRole::Signals))
                    {
                        pair(number, awaits, raises);
                    }
                }
                CommKey::Collective(..) | CommKey::Handle(..) | CommKey::Barrier(_) => (),
            }
        }
        found
    }

    /// The statement and the iteration of a part of a communication.
    fn instance(&self, at: InstRef, comm: CommNo) -> Option<StmtInstance> {
        let plan = &self.plans[at.rank];
        let origin = plan.origins[self.matched.origin(self.plans, at, comm) as usize];
        Some((origin.stmt?, plan.enclosing_loops(origin.iteration)))
    }
}

/// Whether what a rank goes past would be posted in an iteration, and with `peer` if with one rank.
fn is_posted_in(plan: &Plan, skip: &SkippedComm, peer: usize, wanted: &LoopIndices) -> bool {
    let value = |name: &str| wanted.iter().find(|it| &*it.0 == name).map(|it| it.1);
    let around = plan.enclosing_loops(skip.iteration);
    let fits = around.iter().all(|(name, is)| value(name) == Some(*is));
    let outside = match &skip.reason {
        SkipReason::Loop { index, start, stop, .. } => {
            value(index).is_some_and(|it| !(*start..*stop).contains(&it))
        }
        SkipReason::Branch(..) | SkipReason::OutsideMesh(_) => true,
    };
    let meets = match skip.role {
        SkippedRole::Send(it) | SkippedRole::Recv(it) => it.is_none_or(|it| it == peer),
        SkippedRole::Collective | SkippedRole::ShareMemHandles => true,
    };
    fits && outside && meets
}

/// What a rank does not do, and why. A statement that it runs in other iterations it only lacks in these.
pub(super) fn explain(plan: &Plan, skipped: &SkippedPost) -> (String, String) {
    let it = &plan.skips[skipped.skip];
    let runs = is_posted_somewhere(plan, it.stmt);
    let verb = match (it.role, runs) {
        (SkippedRole::ShareMemHandles, false) => "never executes",
        (SkippedRole::ShareMemHandles, true) => "does not execute",
        (SkippedRole::Send(_) | SkippedRole::Recv(_) | SkippedRole::Collective, false) => "never posts",
        (SkippedRole::Send(_) | SkippedRole::Recv(_) | SkippedRole::Collective, true) => "does not post",
    };
    let alike = || plan.skips.iter().filter(|other| other.stmt == it.stmt && other.reason == it.reason);
    let (around, why) = match &it.reason {
        SkipReason::Branch(text, value) if runs => {
            (iterations(&[plan.enclosing_loops(it.iteration)]), format!("{text} is {value} there"))
        }
        SkipReason::Branch(text, value) => {
            let all: Vec<LoopIndices> = alike().map(|it| plan.enclosing_loops(it.iteration)).collect();
            (String::new(), format!("{text} is {value} there{}", iterations(&all)))
        }
        SkipReason::Loop { text, index, start, stop } => {
            let wanted = iterations(std::slice::from_ref(&skipped.wanted));
            let runs = match stop - start {
                1 => format!("runs there for {index}={start} only"),
                2.. => format!("runs there for {index}={start}..{} only", stop - 1),
                _ => "does not run there".to_owned(),
            };
            (wanted, format!("{text} {runs}"))
        }
        SkipReason::OutsideMesh(tensor) => (String::new(), format!("it holds no part of `{tensor}`")),
    };
    let name = plan.comm_names.text(it.stmt, "").unwrap_or_else(|| "a communication".to_owned());
    (format!("{verb} {name}{around}"), why)
}

/// Whether a rank posts a statement in some iteration.
fn is_posted_somewhere(plan: &Plan, stmt: StmtId) -> bool {
    let is_of = |origin: u32| plan.origins[origin as usize].stmt == Some(stmt);
    plan.code.iter().any(|inst| match inst.kind.effect() {
        SyncEffect::Post(Communication::Transfer(it)) => it.ops.iter().any(|side| is_of(side.origin)),
        _ => is_of(inst.origin),
    })
}

/// ` in streamIdx=1..7`; nothing outside of loops.
fn iterations(all: &[LoopIndices]) -> String {
    let one = |it: &LoopIndices| iteration_text(it);
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
