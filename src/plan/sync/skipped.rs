//! Finds the communication that a rank does not post and another rank waits for.
//!
//! Collectives and messages match by position. If a rank skips one in the third iteration, it is the last one
//! that has no partner, so the unmatched communication is not the cause. A statement is reported only if the
//! cause is certain: what the rank posts and what it skips, taken together and in order, must be exactly what
//! the partner of the waiting rank should post. For messages, the counterpart of a statement is the one that
//! matches most of its messages. If ranks differ in any other way, or run different programs, nothing is reported.

use std::{rc::Rc, sync::Arc};

use grammar::StmtId;
use rustc_hash::FxHashMap;

use super::{Blocker, CommKey, CommMatching, CommNo, CommRole, GroupNo, InstRef};
use crate::{
    Communication, Direction, MAX_SKIPS, Plan, SignalId, SkipReason, SkippedComm, SkippedRole, SyncEffect,
    iteration_text,
};

/// The indices and values of the loops around an instruction, outermost first.
pub(super) type LoopIndices = Vec<(Arc<str>, i64)>;

/// A skipped communication and the iteration in which others need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SkippedPost {
    /// The rank.
    pub rank: usize,
    /// The skipped communication, an index into `Plan::skips`.
    pub skip: usize,
    /// The indices of the loops around the communication that others post.
    pub wanted: LoopIndices,
}

/// The maximum number of iterations that are listed for a branch that is not taken.
const MAX_ITERATIONS: usize = 8;

/// By statement: the statement that matches most of its messages; `None` if two match equally many. A rank that
/// skips a message shifts its later ones, which then match other statements.
type Counterparts = FxHashMap<StmtId, Option<StmtId>>;

/// A statement instance that a rank posts: the statement and its iteration.
type StmtInstance = (StmtId, LoopIndices);

/// A sequence of instructions of one rank whose communications match in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Sequence {
    /// The collectives of a member of a group.
    Collectives(GroupNo),
    /// One side of the messages from one rank to another on a group.
    Messages(GroupNo, usize, usize, Direction),
    /// The instructions that set, or wait for, signals that differ from this one only in their index.
    Signals(SignalId, CommRole),
    /// Exchanges of memory handles.
    Shares,
}

/// Aligns the posts of two ranks, statement by statement and iteration by iteration.
pub(super) struct Alignment<'a> {
    plans: &'a [Plan],
    matched: &'a CommMatching,
    /// True if all ranks run the same program. Statements of different programs are not comparable.
    is_one_program: bool,
    counterparts: Option<Counterparts>,
    instances: FxHashMap<(Sequence, usize), Option<Rc<[StmtInstance]>>>,
}

impl<'a> Alignment<'a> {
    pub(super) fn new(plans: &'a [Plan], matched: &'a CommMatching) -> Self {
        let is_one_program = plans.iter().all(|it| it.program_id == 0);
        Self { plans, matched, is_one_program, counterparts: None, instances: FxHashMap::default() }
    }

    /// Returns the skipped communication that `at` waits for, if it is certain.
    pub(super) fn skipped(&mut self, at: InstRef, blocker: &Blocker) -> Option<SkippedPost> {
        if blocker.inst.is_some() || !self.is_one_program {
            return None;
        }
        let (me, other) = (at.rank, blocker.rank);
        let (mine, theirs) = match blocker.part? {
            (CommKey::Collective(group, _), _) => {
                let it = Sequence::Collectives(group);
                (self.instances(me, it)?, self.instances(other, it)?)
            }
            (CommKey::Message(group, from, to, _), CommRole::Side(missing)) => {
                let side = |direction| Sequence::Messages(group, from, to, direction);
                let mine = self.instances(me, side(missing.opposite()))?;
                (self.mirrored(&mine)?, self.instances(other, side(missing))?)
            }
            (CommKey::Signal(signal), _) => {
                let alike = |role| Sequence::Signals(SignalId { index: 0, ..signal }, role);
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

    /// Returns the statement instances of a sequence.
    fn instances(&mut self, rank: usize, it: Sequence) -> Option<Rc<[StmtInstance]>> {
        if let Some(known) = self.instances.get(&(it, rank)) {
            return known.clone();
        }
        let mut posts = Vec::new();
        for at in (0..self.plans.get(rank)?.code.len()).map(|inst| InstRef { rank, inst }) {
            let parts = self.matched.comms_of(at).iter().copied().filter(|comm| self.belongs(*comm, at, it));
            // The handles of one instruction are exchanged together.
            let most = if it == Sequence::Shares { 1 } else { usize::MAX };
            posts.extend(parts.take(most).map(|comm| (at, comm)));
        }
        let places: Option<Rc<[StmtInstance]>> =
            posts.into_iter().map(|(at, comm)| self.instance(at, comm)).collect();
        self.instances.insert((it, rank), places.clone());
        places
    }

    /// Returns whether the part of an instruction in a communication belongs to a sequence.
    fn belongs(&self, comm: CommNo, at: InstRef, it: Sequence) -> bool {
        let comm = self.matched.comm(comm);
        let plays = |role| comm.part(at.rank, role) == Some(at);
        match (comm.key, it) {
            (CommKey::Collective(group, _), Sequence::Collectives(wanted)) => group == wanted,
            (
                CommKey::Message(group, from, to, _),
                Sequence::Messages(wanted, sender, receiver, direction),
            ) => (group, from, to) == (wanted, sender, receiver) && plays(CommRole::Side(direction)),
            (CommKey::Signal(signal), Sequence::Signals(wanted, role)) => {
                SignalId { index: 0, ..signal } == wanted && plays(role)
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

    /// Returns the first of `mine` that the other rank skips, if the posts and skips of that rank together
    /// are exactly `mine`.
    fn first_missing(
        &self,
        me: usize,
        other: usize,
        mine: &[StmtInstance],
        theirs: &[StmtInstance],
    ) -> Option<SkippedPost> {
        let skips = &self.plans[other].skips;
        // The list of skips is truncated.
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
            // Both lists are in program order.
            from += skips.get(from..)?.iter().position(fits)?;
            first.get_or_insert(SkippedPost { rank: other, skip: from, wanted: wanted.1.clone() });
        }
        first.filter(|_| posted.next().is_none())
    }

    /// Maps statement instances to those of the other side. The counterpart of a statement is the same for
    /// all its messages.
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

    /// Returns the counterpart of each statement with messages or signals.
    fn all_counterparts(&self) -> Counterparts {
        let mut counts: FxHashMap<StmtId, FxHashMap<StmtId, usize>> = FxHashMap::default();
        let mut pair = |comm: CommNo, one: InstRef, two: InstRef| {
            let (Some((stmt, _)), Some((other, _))) = (self.instance(one, comm), self.instance(two, comm))
            else {
                return;
            };
            *counts.entry(stmt).or_default().entry(other).or_default() += 1;
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
                    // A statement may set one signal and wait for another. Only the waiting side is looked
                    // up.
                    if let (Some(waits), Some(signals)) =
                        (find(CommRole::WaitsForSignal), find(CommRole::Signals))
                    {
                        pair(number, waits, signals);
                    }
                }
                CommKey::Collective(..) | CommKey::Handle(..) | CommKey::Barrier(_) => (),
            }
        }
        let most_frequent = |others: &FxHashMap<StmtId, usize>| {
            let most = others.values().copied().max()?;
            let mut all = others.iter().filter(|it| *it.1 == most).map(|it| *it.0);
            all.next().filter(|_| all.next().is_none())
        };
        counts.iter().map(|(stmt, others)| (*stmt, most_frequent(others))).collect()
    }

    /// Returns the statement instance of a part of a communication.
    fn instance(&self, at: InstRef, comm: CommNo) -> Option<StmtInstance> {
        let plan = &self.plans[at.rank];
        let origin = plan.origins[self.matched.origin(self.plans, at, comm) as usize];
        Some((origin.stmt?, plan.enclosing_loops(origin.iteration)))
    }
}

/// Returns whether a skipped communication would have been posted in an iteration, and with `peer` if it has
/// a peer.
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

/// What a rank does not do, and the reason.
pub(super) struct SkipText {
    /// The verb for one rank and for several: `never posts`, `never post`.
    pub verb: [&'static str; 2],
    /// The communication, with its iteration if the rank posts it in others.
    pub what: String,
    /// The reason, before and after the ranks to which it applies: `` `IF …` (line 20) is false`` and
    /// `` in streamIdx=1..7``.
    pub reason: [String; 2],
}

/// Describes a skipped communication. If the rank runs the statement in other iterations, the text is limited
/// to the missing ones.
pub(super) fn explain(plan: &Plan, skipped: &SkippedPost) -> SkipText {
    let it = &plan.skips[skipped.skip];
    let runs = is_posted_somewhere(plan, it.stmt);
    let verb = match (it.role, runs) {
        (SkippedRole::ShareMemHandles, false) => ["never executes", "never execute"],
        (SkippedRole::ShareMemHandles, true) => ["does not execute", "do not execute"],
        (SkippedRole::Send(_) | SkippedRole::Recv(_) | SkippedRole::Collective, false) => {
            ["never posts", "never post"]
        }
        (SkippedRole::Send(_) | SkippedRole::Recv(_) | SkippedRole::Collective, true) => {
            ["does not post", "do not post"]
        }
    };
    let alike = || plan.skips.iter().filter(|other| other.stmt == it.stmt && other.reason == it.reason);
    let (around, reason) = match &it.reason {
        SkipReason::Branch(text, value) if runs => {
            let around = iterations(&[plan.enclosing_loops(it.iteration)]);
            (around, [format!("{text} is {value}"), String::new()])
        }
        SkipReason::Branch(text, value) => {
            let all: Vec<LoopIndices> = alike().map(|it| plan.enclosing_loops(it.iteration)).collect();
            (String::new(), [format!("{text} is {value}"), iterations(&all)])
        }
        SkipReason::Loop { text, index, start, stop, .. } => {
            let wanted = iterations(std::slice::from_ref(&skipped.wanted));
            let range = match stop - start {
                1 => format!(" for {index}={start} only"),
                2.. => format!(" for {index}={start}..{} only", stop - 1),
                _ => String::new(),
            };
            let runs = if range.is_empty() { "does not run" } else { "runs" };
            (wanted, [format!("{text} {runs}"), range])
        }
        SkipReason::OutsideMesh(tensor) => {
            (String::new(), [format!("no part of `{tensor}` is"), String::new()])
        }
    };
    let name = plan.comm_names.text(it.stmt, "").unwrap_or_else(|| "a communication".to_owned());
    SkipText { verb, what: format!("{name}{around}"), reason }
}

/// Returns whether a rank posts a statement in some iteration.
fn is_posted_somewhere(plan: &Plan, stmt: StmtId) -> bool {
    let is_of = |origin: u32| plan.origins[origin as usize].stmt == Some(stmt);
    plan.code.iter().any(|inst| match inst.kind.effect() {
        SyncEffect::Post(Communication::P2pGroup(it)) => it.ops.iter().any(|side| is_of(side.origin)),
        _ => is_of(inst.origin),
    })
}

/// Formats iterations: ` in streamIdx=1..7`. Empty outside loops.
fn iterations(all: &[LoopIndices]) -> String {
    let one = |it: &LoopIndices| iteration_text(it);
    if all.iter().any(Vec::is_empty) {
        return String::new();
    }
    // One loop with consecutive values.
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
