//! The texts of deadlock reports: names of instructions, what a head waits for, and what a rank never does.

mod names;

use super::{Actor, Blocker, CommKey, CommRole, InstRef, WaitGraph, peer_edit::matching_peer};
use grammar::count_text;

use self::names::stream;
pub(super) use self::names::{Names, describe, ordinal, site, team};
use crate::{Communication, Direction, SignalId, SignalKind, SyncEffect};

/// What to change if a rank takes no part in the creation of a communicator.
const CREATE_EAGERLY: &str = "let all ranks of the team execute a communication of all of them first, or create communicators eagerly \
                              (`init_process_group(device_id=…)`) and check with `--p2p=communicator`";

/// Describes what a head waits for: `for rank 1 to send`.
pub(super) fn awaited_text(
    names: &Names<'_>,
    graph: &WaitGraph<'_>,
    (actor, at): (Actor, InstRef),
    blockers: &[Blocker],
) -> String {
    let ranks = || names.ranks(&blockers.iter().map(|it| it.rank).collect::<Vec<_>>());
    let each = |words: &dyn Fn(&Blocker, &Names<'_>) -> String| {
        let mut different: Vec<&Blocker> = blockers.iter().collect();
        different.dedup_by_key(|it| words(it, &Names::Numbers));
        different.into_iter().map(|it| words(it, names)).collect::<Vec<_>>().join(" and ")
    };
    if let (Actor::Host(_), Some(group)) = (actor, graph.created_by(at)) {
        return format!("for {} to create the communicator of team ({})", ranks(), team(&group.team));
    }
    match (actor, graph.effect(at)) {
        (Actor::Queue(..), _) if !graph.is_posted(at) => format!("for {} to post it", stream(graph, at)),
        (_, Some(SyncEffect::Post(Communication::P2pGroup(_)))) => {
            each(&|it, names| message(names, graph, at, it))
        }
        (_, Some(SyncEffect::Post(Communication::Collective(_)) | SyncEffect::Reshard(_))) => {
            format!("for {}", ranks())
        }
        (_, Some(SyncEffect::Barrier)) => format!("at its barrier for {}", ranks()),
        (_, Some(SyncEffect::ShareMemHandles(_))) => each(&|it, names| {
            let Some(it) = handle(graph, at, it) else { return String::new() };
            format!("for {} to share {}", names.rank(it.owner), it.text(names))
        }),
        (_, Some(SyncEffect::WaitSignal(signal))) => each(&|it, names| match it.inst {
            Some(inst) => {
                let raiser = InstRef { rank: it.rank, inst };
                format!("for {} of {}", names.inst(graph.plans, raiser), names.rank(it.rank))
            }
            None => format!("for {}", signal_cause_text(names, signal)),
        }),
        (_, Some(SyncEffect::HostWait(_))) => format!("for {}", stream(graph, at)),
        (_, Some(effect @ (SyncEffect::WaitEvent(_) | SyncEffect::Wait(_)))) => {
            each(&|it, names| match (it.inst, effect) {
                (Some(inst), SyncEffect::WaitEvent(_)) => {
                    let own = InstRef { rank: it.rank, inst };
                    format!("for {} on {}", names.inst(graph.plans, own), stream(graph, own))
                }
                (Some(inst), _) => {
                    format!("for {}", names.inst(graph.plans, InstRef { rank: it.rank, inst }))
                }
                (None, SyncEffect::WaitEvent(_)) => "for an event that is never recorded".to_owned(),
                (None, _) => "for a communication that is never posted".to_owned(),
            })
        }
        (
            _,
            Some(
                SyncEffect::Compute
                | SyncEffect::RecordEvent(_)
                | SyncEffect::Signal(_)
                | SyncEffect::ReadOutputs,
            )
            | None,
        ) => String::new(),
    }
}

/// Describes the missing side of a message: `for rank 1 to receive`; for a coalesced side,
/// `for rank 1 to receive from P2PCommunication 3 (send, line 6)`.
fn message(names: &Names<'_>, graph: &WaitGraph<'_>, at: InstRef, blocker: &Blocker) -> String {
    let Some((key, CommRole::Side(missing))) = blocker.part else { return String::new() };
    let (verb, to) = match missing {
        Direction::Recv => ("receive", "from"),
        Direction::Send => ("send", "to"),
    };
    let text = format!("for {} to {verb}", names.rank(blocker.rank));
    match own_side(names, graph, at, key) {
        Some(side) => format!("{text} {to} {side}"),
        None => text,
    }
}

/// Returns the statement of a coalesced side: `P2PCommunication 3 (send, line 6)`; `None` if it is the
/// statement of the P2P group.
fn own_side(names: &Names<'_>, graph: &WaitGraph<'_>, at: InstRef, key: CommKey) -> Option<String> {
    let number = graph.matched.comms_of(at).iter().find(|it| graph.matched.comm(**it).key == key)?;
    let origin = graph.matched.origin(graph.plans, at, *number);
    let plan = &graph.plans[at.rank];
    (origin != plan.code[at.inst].origin).then(|| names.origin(plan, origin))
}

/// A handle of a buffer that a rank does not share.
struct MissingHandle {
    /// The rank.
    owner: usize,
    /// The transfer for which it would share the buffer.
    number: u32,
    /// Its role in the transfer: `sender to`.
    role: &'static str,
    /// The other rank of the transfer.
    peer: usize,
}

impl MissingHandle {
    /// Returns the handle in words: `P2PCommunication 3 as sender to rank 0`.
    fn text(&self, names: &Names<'_>) -> String {
        format!("P2PCommunication {} as {} {}", self.number, self.role, names.rank(self.peer))
    }
}

/// Returns the handle for which a ShareMemHandles waits.
fn handle(graph: &WaitGraph<'_>, at: InstRef, blocker: &Blocker) -> Option<MissingHandle> {
    let (
        Some((CommKey::Handle(from, to, index), CommRole::Side(side))),
        Some(SyncEffect::ShareMemHandles(handles)),
    ) = (blocker.part, graph.effect(at))
    else {
        return None;
    };
    let (owner, role, peer) = match side {
        Direction::Send => (from, "sender to", to),
        Direction::Recv => (to, "receiver from", from),
    };
    let same = handles.iter().find(|it| it.peer == owner && it.index == index && it.direction != side);
    Some(MissingHandle { owner, number: same.map_or(0, |it| it.number), role, peer })
}

/// Describes what sets a signal: `a send of rank 3`.
fn signal_cause_text(names: &Names<'_>, signal: SignalId) -> String {
    let rank = names.rank(signal.from);
    match signal.kind {
        SignalKind::Ready => format!("a send of {rank}"),
        SignalKind::PutReady => format!("a receive of {rank}"),
        SignalKind::Done => format!("{rank} to complete a receive"),
        SignalKind::PutDone => format!("{rank} to complete a send"),
        SignalKind::TeamReady(_) => format!("{rank} to reach the collective"),
        SignalKind::TeamDone(_) => format!("{rank} to complete the collective"),
        SignalKind::TeamData(_) => format!("the data of {rank} for the collective"),
        SignalKind::TeamResult(_) => format!("the share of the result that {rank} reduces"),
    }
}

/// Describes, for the first line of a report, what no rank ever does although a head waits for it.
pub(super) fn never_happens_text(graph: &WaitGraph<'_>, at: InstRef, blocker: &Blocker) -> String {
    let (rank, me) = (blocker.rank, at.rank);
    let waiting = describe(graph.plans, at);
    if let (None, Some(group)) = (blocker.part, graph.created_by(at)) {
        let team = team(&group.team);
        return format!(
            "rank {rank} never creates the communicator of team ({team}), as rank {me} does in {waiting}"
        );
    }
    let side = |key| own_side(&Names::Numbers, graph, at, key).unwrap_or_else(|| waiting.clone());
    match blocker.part {
        Some((key @ CommKey::Message(..), CommRole::Side(Direction::Recv))) => {
            format!("rank {rank} never receives what rank {me} sends in {}", side(key))
        }
        Some((key @ CommKey::Message(..), _)) => {
            format!("rank {rank} never sends what rank {me} receives in {}", side(key))
        }
        Some((CommKey::Collective(group, which), _)) => {
            let team = team(&graph.matched.groups[group as usize].team);
            let what = ordinal(which);
            format!("rank {rank} never posts the {what} collective of team ({team}), {waiting} of rank {me}")
        }
        Some((CommKey::Handle(..), _)) => {
            let what = handle(graph, at, blocker).map_or(String::new(), |it| it.text(&Names::Numbers));
            format!("rank {rank} never shares {what}, for which rank {me} waits in {waiting}")
        }
        Some((CommKey::Barrier(which), _)) => {
            let what = ordinal(which);
            format!(
                "rank {rank} never executes the {what} ShareMemHandles, where all ranks wait: rank {me} in {waiting}"
            )
        }
        Some((CommKey::Signal(signal), _)) => {
            let what = match signal.kind {
                SignalKind::Ready => "posts the send",
                SignalKind::PutReady => "posts the receive",
                SignalKind::Done => "completes the receive",
                SignalKind::PutDone => "completes the send",
                SignalKind::TeamReady(_)
                | SignalKind::TeamDone(_)
                | SignalKind::TeamData(_)
                | SignalKind::TeamResult(_) => "takes part in the collective",
            };
            format!("rank {rank} never {what} that rank {me} waits for in {waiting}")
        }
        None => match graph.effect(at) {
            Some(SyncEffect::WaitEvent(_)) => {
                format!("rank {me} waits at {waiting} for an event that it never records")
            }
            _ => format!("rank {me} waits at {waiting} for a communication that it never posts"),
        },
    }
}

/// Compares the numbers of matching operations that both ranks post:
/// `rank 0 posts 2 sends to rank 1, but rank 1 posts 1 receive from rank 0`.
pub(super) fn counts(graph: &WaitGraph<'_>, at: InstRef, blocker: &Blocker) -> Option<String> {
    let matched = graph.matched;
    let count = |rank: usize, wanted: &dyn Fn(CommKey, CommRole) -> bool| {
        let parts = matched.comms.iter().flat_map(|comm| comm.parts.iter().map(move |it| (comm.key, it)));
        parts.filter(|(key, it)| it.inst_ref.rank == rank && wanted(*key, it.role)).count()
    };
    let (rank, me) = (blocker.rank, at.rank);
    match blocker.part? {
        (CommKey::Message(group, from, to, _), CommRole::Side(missing)) => {
            let sides = |rank, direction| {
                count(rank, &|key, role| {
                    matches!(key, CommKey::Message(a, b, c, _) if (a, b, c) == (group, from, to))
                        && role == CommRole::Side(direction)
                })
            };
            let (sends, receives) = (sides(from, Direction::Send), sides(to, Direction::Recv));
            let (sends, receives) = (count_text(sends, "send"), count_text(receives, "receive"));
            let text = match missing {
                Direction::Recv => {
                    format!(
                        "rank {me} posts {sends} to rank {rank}, but rank {rank} posts {receives} from rank {me}"
                    )
                }
                Direction::Send => {
                    format!(
                        "rank {me} posts {receives} from rank {rank}, but rank {rank} posts {sends} to rank {me}"
                    )
                }
            };
            Some(text + &elsewhere(graph, blocker, missing))
        }
        (CommKey::Collective(group, _), _) => {
            let posts =
                |rank| count(rank, &|key, _| matches!(key, CommKey::Collective(it, _) if it == group));
            let (mine, theirs) = (count_text(posts(me), "collective"), posts(rank));
            Some(format!("rank {me} posts {mine} on this team, rank {rank} posts {theirs}"))
        }
        (CommKey::Barrier(_), _) => {
            let posts = |rank| count(rank, &|key, _| matches!(key, CommKey::Barrier(_)));
            Some(format!(
                "rank {me} executes {} ShareMemHandles, rank {rank} executes {}",
                posts(me),
                posts(rank)
            ))
        }
        (CommKey::Handle(..), _) => {
            let earlier = describe(graph.plans, earlier_handle(graph, at, blocker)?);
            Some(format!(
                "ShareMemHandles exchanges the handle of a buffer once: rank {rank} has shared its buffer in {earlier} and does \
                 not share it again, but the buffer of rank {me} is new in {}",
                describe(graph.plans, at)
            ))
        }
        (CommKey::Message(..) | CommKey::Signal(_), _) => None,
    }
}

/// Returns the last ShareMemHandles in which the rank of `blocker` shared a buffer for the same direction and
/// peer, if that was the statement of `at` in another iteration.
fn earlier_handle(graph: &WaitGraph<'_>, at: InstRef, blocker: &Blocker) -> Option<InstRef> {
    let (CommKey::Handle(from, to, _), role) = blocker.part? else { return None };
    let origin = |it: InstRef| {
        let plan = &graph.plans[it.rank];
        plan.origins[plan.code[it.inst].origin as usize]
    };
    let shared = graph.matched.comms.iter().filter_map(|comm| match comm.key {
        CommKey::Handle(a, b, _) if (a, b) == (from, to) => comm.part(blocker.rank, role),
        _ => None,
    });
    shared.filter(|it| origin(*it).stmt == origin(at).stmt).max_by_key(|it| it.inst)
}

/// Returns what to change so that the operation exists for which a head waits.
pub(super) fn help(graph: &WaitGraph<'_>, at: InstRef, blocker: &Blocker) -> Option<String> {
    let (rank, me) = (blocker.rank, at.rank);
    if blocker.part.is_none() && graph.created_by(at).is_some() {
        return Some(CREATE_EAGERLY.to_owned());
    }
    let missing = match blocker.part? {
        (CommKey::Message(..), CommRole::Side(missing)) => missing,
        (CommKey::Handle(..), _) => {
            return Some(match earlier_handle(graph, at, blocker) {
                Some(_) => format!(
                    "allocate the buffer of rank {me} before the loop, so that both ranks keep their buffers, or allocate a new one in every iteration on both ranks"
                ),
                None => format!("list the transfer in a ShareMemHandles on rank {rank}, too"),
            });
        }
        (CommKey::Barrier(_), _) => {
            return Some(format!(
                "a ShareMemHandles waits for all ranks: execute as many on rank {rank} as on rank {me}"
            ));
        }
        (CommKey::Collective(..), _) => {
            return Some(format!("post it on rank {rank}, too, or remove it on all ranks"));
        }
        (CommKey::Signal(SignalId { kind: SignalKind::Ready, .. }), _) => {
            return Some(format!("post the send on rank {rank}, or remove the receive of rank {me}"));
        }
        (CommKey::Signal(SignalId { kind: SignalKind::PutReady, .. }), _) => {
            return Some(format!("post the receive on rank {rank}, or remove the send of rank {me}"));
        }
        (CommKey::Message(..) | CommKey::Signal(_), _) => return None,
    };
    let (own, other) = match missing {
        Direction::Recv => ("send", format!("receive from rank {me}")),
        Direction::Send => ("receive", format!("send to rank {me}")),
    };
    match unmatched_operation(graph, blocker, missing) {
        Some(it) if it.peer == me => None,
        Some(UnmatchedOp { what, peer, origin }) => {
            let change =
                matching_peer(graph, at, blocker, origin).unwrap_or("make the peers agree".to_owned());
            Some(format!(
                "{change}: the {own} of rank {me} names rank {rank}, and {what} of rank {rank} names rank {peer}"
            ))
        }
        None => Some(format!("add a {other} on rank {rank}, or remove the {own} of rank {me}")),
    }
}

/// Describes the first unmatched operation of the same kind on the rank of `blocker`:
/// `; P2PCommunication 4 (recv, line 8) of rank 1 waits for rank 2`.
fn elsewhere(graph: &WaitGraph<'_>, blocker: &Blocker, missing: Direction) -> String {
    let found = unmatched_operation(graph, blocker, missing);
    found.map_or(String::new(), |UnmatchedOp { what, peer, .. }| {
        format!("; {what} of rank {} waits for rank {peer}", blocker.rank)
    })
}

/// A send or a receive without a partner.
struct UnmatchedOp {
    /// Its name in reports.
    what: String,
    /// The rank that it names as its peer.
    peer: usize,
    /// Its statement, an index into the rank's `Plan::origins`.
    origin: u32,
}

/// Returns the first unmatched operation of the same kind on the rank of `blocker`, which may have a wrong
/// peer.
fn unmatched_operation(graph: &WaitGraph<'_>, blocker: &Blocker, missing: Direction) -> Option<UnmatchedOp> {
    (0..).zip(&graph.matched.comms).find_map(|(number, comm)| {
        let CommKey::Message(_, from, to, _) = comm.key else { return None };
        let peer = match missing {
            Direction::Recv => from,
            Direction::Send => to,
        };
        let own = comm.part(blocker.rank, CommRole::Side(missing)).filter(|_| comm.parts.len() == 1)?;
        let origin = graph.matched.origin(graph.plans, own, number);
        Some(UnmatchedOp { what: graph.plans[blocker.rank].describe_origin(origin), peer, origin })
    })
}
