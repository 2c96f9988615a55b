//! Explains calls that others went past, and messages without partner.

use grammar::{codes::Code, count_text, ordinal};

use super::{Finding, callers_note, empty, group_of, label, waiters_text, waiting_at};
use crate::{
    blame::Reason,
    cause::is_expected,
    peers::WrongPeer,
    queues::{Call, Job, same_collective},
    record::{Kind, Rank},
    site::call_name,
    stall::{Place, Stall},
    wording::{named_at, operands, place, position, ranks_of, ranks_text, verb, what, what_at},
};

pub(super) fn passed(
    job: &Job<'_>,
    stall: &Stall,
    ranks: &[Rank],
    (later, deviant): (Call, Option<(Rank, Reason)>),
) -> Finding {
    let Some(call) = stall.waiting.first().copied() else { return empty(Code::HangDiverged) };
    let who = ranks_text(ranks);
    let waiting = ranks_of(&stall.waiting);
    let skipper = ranks.first().and_then(|it| same_collective(job, later, *it));
    let later_text = skipper.map_or_else(|| what_at(job, later), |it| what_at(job, it));
    let (code, message) = match stall.place {
        Place::Collective { .. } => (
            Code::HangDiverged,
            format!(
                "{who} {} the {} that {} {}, and {} made the {later_text} that follows",
                verb(ranks, "skip"),
                named_at(job, &stall.waiting),
                ranks_text(&waiting),
                verb(&waiting, "call"),
                verb(ranks, "have"),
            ),
        ),
        Place::Pair { pair, .. } => {
            (Code::HangPeer, unmatched_text(job, pair, call, "never", Some(&later_text)))
        }
        // It waits for no rank that could have gone on.
        Place::AnySource { .. } => return empty(Code::HangPeer),
    };
    // The rank that waits may be the one that made a call too many.
    let is_added = deviant.is_some_and(|it| !ranks.contains(&it.0));
    let is_expected = is_expected(job, stall);
    let they = ranks_text(&waiting);
    let message = match deviant {
        _ if code != Code::HangDiverged => message,
        Some((rank, _)) if is_added => format!(
            "rank {rank} makes a call that {who} {} not make: the {}",
            verb(ranks, "do"),
            what_at(job, call)
        ),
        None if !is_expected => format!(
            "{} in {}; {who} {} not called it and {} made the {later_text} that follows: {who} {} one call, or {they} {} one too many",
            waiters_text(stall),
            waiting_at(job, stall),
            verb(ranks, "have"),
            verb(ranks, "have"),
            verb(ranks, "skip"),
            verb(&waiting, "make"),
        ),
        Some(_) | None => message,
    };
    let suspects = match deviant {
        Some((rank, _)) if is_added => format!("rank {rank}"),
        None if !is_expected => format!("{who} or {they}"),
        Some(_) | None => who.clone(),
    };
    let mut labels =
        vec![label(job, call, format!("{} {} here", ranks_text(&waiting), verb(&waiting, "wait")))];
    labels.extend(skipper.map(|it| label(job, it, format!("{who} went on to here"))));
    let accused = match deviant {
        Some((rank, _)) => vec![rank],
        None if is_expected => ranks.to_vec(),
        None => Vec::new(),
    };
    let reason = match deviant {
        Some((rank, reason)) => reason_text(job, rank, reason),
        None if is_expected => expected_text(job, stall),
        None => format!("the records do not show whether {who} or {they} should have called something else"),
    };
    Finding {
        code,
        message,
        ranks: accused,
        labels,
        notes: [Some(format!("this is {}", position(job, call))), Some(reason), callers_note(job, call)]
            .into_iter()
            .flatten()
            .collect(),
        help: match stall.place {
            Place::Collective { .. } => {
                format!("look for a condition that has another value on {suspects} before this call")
            }
            Place::Pair { .. } | Place::AnySource { .. } => {
                "each send needs a receive: look at the numbers of sends and receives of the two ranks"
                    .to_owned()
            }
        },
    }
}

/// Says why a call that some members have not made is one of the program.
pub(super) fn expected_text(job: &Job<'_>, stall: &Stall) -> String {
    let members = match stall.place {
        Place::Collective { queue, .. } => job.queues[queue].members.len(),
        Place::Pair { .. } | Place::AnySource { .. } => 2,
    };
    let callers = stall.ranks().count();
    if callers * 2 > members {
        format!("{callers} of {members} members have made the call")
    } else {
        "the other groups of this kind make the call at this position".to_owned()
    }
}

/// Writes that a send has no receive, or the other way round, with the numbers of both. `never` is that, or `not` if it may still get one.
pub(super) fn unmatched_text(
    job: &Job<'_>,
    pair: usize,
    call: Call,
    never: &str,
    later: Option<&str>,
) -> String {
    let ((_, from, to), pair) = &job.pairs[pair];
    let (is_send, call_rank) = (call.rank == *from, call.rank);
    let calls = if is_send { &pair.sends } else { &pair.receives };
    let nth = calls.iter().position(|it| *it == call.at).map_or(1, |it| it + 1);
    let other = if is_send { *to } else { *from };
    let at = place(job, call).map(|it| format!(" ({it})")).unwrap_or_default();
    let later = later.map(|it| format!(", and went on to the {it}")).unwrap_or_default();
    if pair.is_partial {
        let (call, posts) = if is_send { ("send", "receive") } else { ("receive", "send") };
        return format!(
            "a {call} of rank {} {} rank {other}{at} is {never} {}: rank {other} posts no {posts} for it that the records hold{later}",
            call_rank,
            if is_send { "to" } else { "from" },
            if is_send { "received" } else { "sent" },
        );
    }
    let of = |count: usize, what: &str| match count {
        0 => format!("no {what}"),
        _ => count_text(count, what),
    };
    if is_send {
        format!(
            "the {} send of rank {from} to rank {to}{at} is {never} received: rank {other} posts {} from rank {from}{later}",
            ordinal(nth),
            of(pair.receives.len(), "receive"),
        )
    } else {
        format!(
            "the {} receive of rank {to} from rank {from}{at} is {never} sent: rank {other} posts {} to rank {to}{later}",
            ordinal(nth),
            of(pair.sends.len(), "send"),
        )
    }
}

/// Says why a rank is named.
pub(super) fn reason_text(job: &Job<'_>, rank: Rank, reason: Reason) -> String {
    let times = |count: usize| if count == 1 { "once".to_owned() } else { format!("{count} times") };
    match reason {
        Reason::Count { call, own, usual, at } => format!(
            "rank {rank} is named because it has called {} {}, and the others {} when they came to the {}",
            any_peer_at(job, call),
            if own == 0 { "not once".to_owned() } else { times(own) },
            times(usual),
            if job.record(at).is_collective() { what_at(job, at) } else { any_peer_at(job, at) }
        ),
        Reason::Total { call, own, usual, at } => format!(
            "rank {rank} is named because it has made {} in groups of the kind `{}`, and the others {usual} when they came to the {}",
            count_text(own, "collective"),
            group_of(job, call).description,
            what_at(job, at)
        ),
        Reason::History => format!(
            "rank {rank} is named because its call never follows the one before it elsewhere in the records, and other ranks make another call there"
        ),
        Reason::Order => format!(
            "rank {rank} is named because all ranks of the cycle used the two groups in the other order in the round before"
        ),
        Reason::Alone => format!("rank {rank} is named because it waits alone, and the others wait together"),
    }
}

/// Describes a call with its place, without the peer of a message, which is another one on each rank.
fn any_peer_at(job: &Job<'_>, call: Call) -> String {
    let name = call_name(job.records, job.record(call));
    place(job, call).map_or_else(|| what(job, call), |it| format!("{name} ({it})"))
}

pub(super) fn message(job: &Job<'_>, send: Call, receive: Call, deviating: Option<Rank>) -> Finding {
    let message = format!(
        "rank {} sends {} to rank {} ({}), which receives {} ({})",
        send.rank,
        operands(job, send),
        receive.rank,
        place(job, send).unwrap_or_else(|| position(job, send)),
        operands(job, receive),
        place(job, receive).unwrap_or_else(|| position(job, receive)),
    );
    Finding {
        code: Code::HangSizes,
        message,
        ranks: deviating.into_iter().collect(),
        labels: vec![
            label(job, send, format!("rank {} sends {}", send.rank, operands(job, send))),
            label(job, receive, format!("rank {} receives {}", receive.rank, operands(job, receive))),
        ],
        notes: [
            Some(format!("this is message {}", position(job, send))),
            deviating.map(|it| {
                let call = if it == send.rank { send } else { receive };
                if place(job, call).is_some() {
                    format!("rank {it} is named because the calls at its line have other sizes elsewhere in the records")
                } else {
                    format!("rank {it} is named because no other message of its kind has this size or element type")
                }
            }),
            callers_note(job, send),
            callers_note(job, receive),
        ]
            .into_iter()
            .flatten()
            .collect(),
        help: "a send and its receive must have one size and element type".to_owned(),
    }
}

pub(super) fn wrong_peer(job: &Job<'_>, found: WrongPeer) -> Finding {
    let WrongPeer { call, expected, usual, .. } = found;
    let record = job.record(call);
    let is_receive = job.records.signature(record.signature).kind == Kind::Recv;
    let crate::record::Peer::Rank(peer) = record.peer else { return empty(Code::HangPeer) };
    let (verb, noun) = if is_receive { ("receives from", "sends") } else { ("sends to", "receives") };
    let (other, never) = if is_receive {
        ("sends to it", "never received")
    } else {
        ("waits to receive from it", "never sent")
    };
    let members =
        job.queues.iter().find(|it| it.group == record.group).map_or(0, |it| it.members.len() as i64);
    let usual = match if usual * 2 > members { usual - members } else { usual } {
        -1 => "the rank before its own".to_owned(),
        1 => "the rank after its own".to_owned(),
        before @ ..=0 => format!("the rank that is {} before its own", -before),
        after => format!("the rank that is {after} after its own"),
    };
    let message = format!(
        "rank {} {verb} rank {peer} instead of rank {expected}{}",
        call.rank,
        place(job, call).map(|it| format!(" ({it})")).unwrap_or_default()
    );
    Finding {
        code: Code::HangPeer,
        message,
        ranks: vec![call.rank],
        labels: vec![label(
            job,
            call,
            format!("rank {} {verb} rank {peer} here; every other rank names {usual}", call.rank),
        )],
        notes: [
            Some(format!("rank {expected} {other}, and that is {never}")),
            Some(format!(
                "rank {peer} has nothing that {noun} {} rank {}",
                if is_receive { "to" } else { "from" },
                call.rank
            )),
            callers_note(job, call),
        ]
        .into_iter()
        .flatten()
        .collect(),
        help: format!("look at how rank {} computes its peer", call.rank),
    }
}

pub(super) fn crossed(
    job: &Job<'_>,
    one: Call,
    two: Call,
    (other, deviant): (Rank, Option<Rank>),
) -> Finding {
    let (first, second) = (what_at(job, one), what_at(job, two));
    let (a, b) = (group_of(job, one), group_of(job, two));
    let who = match deviant {
        Some(rank) => {
            format!("rank {rank} is named because all others wait in such calls in the other order")
        }
        None => "the records do not show which order is the right one".to_owned(),
    };
    Finding {
        code: Code::HangCycle,
        message: format!(
            "rank {} issues the {first} of {a} before the {second} of {b}, rank {other} the other way round, and neither completes",
            one.rank
        ),
        ranks: deviant.into_iter().collect(),
        labels: vec![
            label(job, one, format!("first on rank {}, second on rank {other}", one.rank)),
            label(job, two, format!("second on rank {}, first on rank {other}", one.rank)),
        ],
        notes: vec![
            "a GPU may execute kernels of one NCCL communicator at a time: each rank then waits in another one".to_owned(),
            who,
        ],
        help: "issue the collectives of all groups in one order on all ranks".to_owned(),
    }
}
