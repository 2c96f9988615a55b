//! Explains messages without partner and ranks that wait for each other.

use grammar::{codes::Code, count_text, ordinal};

use super::{Finding, Label, callers_note, empty, group_of, label};
use crate::{
    blame::{Reason, departs},
    cause::same_collective,
    graph::Edge,
    peers::WrongPeer,
    queues::{Call, Job},
    record::{Kind, Rank},
    site::call_name,
    stall::{Place, Stall},
    wording::{operands, place, position, ranks_of, ranks_text, verb, what, what_at},
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
                what_at(job, call),
                ranks_text(&waiting),
                verb(&waiting, "call"),
                if ranks.len() == 1 { "has" } else { "have" },
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
    let message = match deviant {
        Some((rank, _)) if is_added && code == Code::HangDiverged => format!(
            "rank {rank} makes a call that {who} {} not make: the {}",
            if ranks.len() == 1 { "does" } else { "do" },
            what_at(job, call)
        ),
        _ => message,
    };
    let suspects = deviant.filter(|_| is_added).map_or_else(|| who.clone(), |it| format!("rank {}", it.0));
    let is_few = ranks.len() < waiting.len();
    let mut labels =
        vec![label(job, call, format!("{} {} here", ranks_text(&waiting), verb(&waiting, "wait")))];
    labels.extend(skipper.map(|it| label(job, it, format!("{who} went on to here"))));
    let is_message = matches!(stall.place, Place::Pair { .. });
    let accused = match deviant {
        Some((rank, _)) => vec![rank],
        None if is_few && !is_message => ranks.to_vec(),
        None => Vec::new(),
    };
    let reason = deviant.map(|(rank, reason)| reason_text(job, rank, reason));
    Finding {
        code,
        message,
        ranks: accused,
        labels,
        notes: [Some(format!("this is {}", position(job, call))), reason, callers_note(job, call)]
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

/// Writes that a send has no receive, or the other way round, with the numbers of both. `never` is that, or `not` if it may still get one.
pub(super) fn unmatched_text(
    job: &Job<'_>,
    pair: usize,
    call: Call,
    never: &str,
    later: Option<&str>,
) -> String {
    let ((_, from, to), pair) = &job.pairs[pair];
    let is_send = call.rank == *from;
    let calls = if is_send { &pair.sends } else { &pair.receives };
    let nth = calls.iter().position(|it| *it == call.at).map_or(1, |it| it + 1);
    let other = if is_send { *to } else { *from };
    let at = place(job, call).map(|it| format!(" ({it})")).unwrap_or_default();
    let later = later.map(|it| format!(", and went on to the {it}")).unwrap_or_default();
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

pub(super) fn cycle(
    job: &Job<'_>,
    stalls: &[Stall],
    edges: &[Edge],
    deviant: Option<(Rank, Reason)>,
) -> Finding {
    let call = |edge: &Edge| {
        let stall = &stalls[edge.stall];
        stall.waiting.iter().find(|it| it.rank == edge.from).or(stall.waiting.first()).copied()
    };
    let ranks: Vec<Rank> = edges.iter().map(|it| it.from).collect();
    let edge_text = |edge: &Edge| {
        let Some(call) = call(edge) else { return String::new() };
        let at =
            if place(job, call).is_some() { format!(", {}", position(job, call)) } else { String::new() };
        let missing = match stalls[edge.stall].blocked_by {
            Some(first) => format!("rank {} has posted its side behind the {}", edge.to, what_at(job, first)),
            None => match stalls[edge.stall].place {
                Place::Collective { .. } => format!("rank {} has not called it", edge.to),
                Place::Pair { .. } | Place::AnySource { .. } => {
                    format!("rank {} has not posted its side", edge.to)
                }
            },
        };
        format!("rank {} waits in {}{at}: {missing}", edge.from, what_at(job, call))
    };
    // A message without partner is the shorter explanation.
    let is_collective = |it: &Edge| matches!(stalls[it.stall].place, Place::Collective { .. });
    let is_unmatched = |it: &Edge| {
        matches!(stalls[it.stall].place, Place::Pair { .. }) && stalls[it.stall].blocked_by.is_none()
    };
    // The partner that went on to a collective left it out: those before only wait for it.
    let unmatched = edges
        .iter()
        .filter(|it| is_unmatched(it))
        .find(|it| edges.iter().any(|next| next.from == it.to && is_collective(next)));
    let is_messages = edges.iter().all(|it| matches!(stalls[it.stall].place, Place::Pair { .. }));
    let each = if ranks.len() == 2 { "each other" } else { "each other in a cycle" };
    let mut code = Code::HangCycle;
    let short = |edge: &Edge| {
        call(edge).map(|it| format!("rank {} in {}", edge.from, what_at(job, it))).unwrap_or_default()
    };
    let all = edges.iter().take(4).map(short).collect::<Vec<_>>().join(", ");
    let more = if edges.len() > 4 { ", …" } else { "" };
    let mut message = format!("{} wait for {each}: {all}{more}", ranks_text(&ranks));
    if let Some((edge, call)) = unmatched.and_then(|it| Some((it, call(it)?))) {
        if let Place::Pair { pair, .. } = stalls[edge.stall].place {
            code = Code::HangPeer;
            let later = edges
                .iter()
                .find(|it| it.from == edge.to)
                .and_then(&call_of(stalls))
                .map(|it| what_at(job, it));
            message = unmatched_text(job, pair, call, "never", later.as_deref());
        }
    } else if let Some((rank, reason)) = deviant {
        let edge = edges.iter().find(|it| it.from == rank);
        let mine = edge.and_then(call).map(|it| what_at(job, it)).unwrap_or_default();
        // The call that the others of the cycle wait for it to make.
        let wanted = edges.iter().find(|it| it.to == rank).and_then(call);
        let wanted =
            wanted.map(|it| format!("the {} of {}", what_at(job, it), group_of(job, it))).unwrap_or_default();
        let own = edge.and_then(call).map(|it| group_of(job, it).to_string()).unwrap_or_default();
        message = match reason {
            Reason::Order => format!(
                "rank {rank} changes the order of two groups: it calls the {mine} of {own} before {wanted}; {all}"
            ),
            Reason::History | Reason::Alone | Reason::Count { .. } => {
                format!(
                    "rank {rank} calls the {mine} of {own} before {wanted}, or skips that: {} wait for {each}",
                    ranks_text(&ranks)
                )
            }
        };
    }
    let mut notes: Vec<String> = edges.iter().take(12).map(edge_text).collect();
    if edges.len() > 12 {
        notes.push(format!("… {} more", edges.len() - 12));
    }
    notes.extend(deviant.map(|(rank, reason)| reason_text(job, rank, reason)));
    if deviant.is_none() {
        notes.push("the records do not show which of them is in the wrong order".to_owned());
    }
    let departure = departs(job, stalls).filter(|_| is_messages && deviant.is_none());
    if let Some((call, usual)) = departure {
        let text = format!(
            "rank {} departs from its earlier order: after the call before, it made the {}, and now it waits in {}",
            call.rank,
            what_at(job, usual),
            what_at(job, call)
        );
        message = format!("{message}; {text}");
        notes.extend(callers_note(job, call));
    }
    let main = deviant.map_or(0, |it| edges.iter().position(|edge| edge.from == it.0).unwrap_or(0));
    let mut order: Vec<&Edge> = edges.iter().collect();
    order.rotate_left(main);
    let mut labels: Vec<Label> = order
        .iter()
        .take(4)
        .filter_map(|edge| {
            Some(label(job, call(edge)?, format!("rank {} waits here for rank {}", edge.from, edge.to)))
        })
        .collect();
    labels.extend(
        departure
            .map(|it| label(job, it.0, format!("rank {} departs from its earlier order here", it.0.rank))),
    );
    Finding {
        code,
        message,
        ranks: deviant.map(|it| vec![it.0]).unwrap_or_default(),
        labels,
        notes,
        help: if is_messages {
            "let one of the two receive first, or post both with `batch_isend_irecv`".to_owned()
        } else {
            "all ranks must use groups in one order, and no rank may leave out a call that others make before"
                .to_owned()
        },
    }
}

/// Explains ranks that wait for each other if none of them is about to make the call that another one waits for.
pub(super) fn possible_cycle(job: &Job<'_>, stalls: &[Stall], edges: &[Edge]) -> Finding {
    let found = cycle(job, stalls, edges, None);
    let who = ranks_text(&edges.iter().map(|it| it.from).collect::<Vec<_>>());
    Finding {
        code: Code::RankLate,
        message: format!("{}, unless one of them is late", found.message),
        help: format!(
            "`isend` and `irecv` do not make the host wait: if the job does not proceed, look at what {who} do: `py-spy dump --pid PID` shows their stacks"
        ),
        ..found
    }
}

/// Returns the call of an edge.
fn call_of(stalls: &[Stall]) -> impl Fn(&Edge) -> Option<Call> + '_ {
    |edge| stalls[edge.stall].waiting.iter().find(|it| it.rank == edge.from).copied()
}

/// Says why a rank is named.
fn reason_text(job: &Job<'_>, rank: Rank, reason: Reason) -> String {
    let times = |count: usize| if count == 1 { "once".to_owned() } else { format!("{count} times") };
    match reason {
        Reason::Count { call, own, usual, at } => format!(
            "rank {rank} is named because it has called {} {}, and the others {} when they came to the {}",
            place(job, call).map_or_else(
                || what(job, call),
                |it| format!("{} ({it})", call_name(job.records, job.record(call)))
            ),
            if own == 0 { "not once".to_owned() } else { times(own) },
            times(usual),
            what_at(job, at)
        ),
        Reason::History => format!(
            "rank {rank} is named because its call never follows the one before it elsewhere in the records; those of the others do"
        ),
        Reason::Order => format!(
            "rank {rank} is named because all ranks of the cycle used the two groups in the other order in the round before"
        ),
        Reason::Alone => format!("rank {rank} is named because it waits alone, and the others wait together"),
    }
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
            deviating.map(|it| format!("rank {it} is named because the calls at its line have other sizes elsewhere in the records")),
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

pub(super) fn crossed(job: &Job<'_>, one: Call, two: Call, other: Rank) -> Finding {
    let (first, second) = (what_at(job, one), what_at(job, two));
    let (a, b) = (group_of(job, one), group_of(job, two));
    Finding {
        code: Code::HangCycle,
        message: format!(
            "rank {} issues the {first} of {a} before the {second} of {b}, rank {other} the other way round, and neither completes",
            one.rank
        ),
        ranks: Vec::new(),
        labels: vec![
            label(job, one, format!("first on rank {}, second on rank {other}", one.rank)),
            label(job, two, format!("second on rank {}, first on rank {other}", one.rank)),
        ],
        notes: vec![
            "a GPU may execute kernels of one NCCL communicator at a time: each rank then waits in another one".to_owned(),
            "the records do not show which order is the right one".to_owned(),
        ],
        help: "issue the collectives of all groups in one order on all ranks".to_owned(),
    }
}
