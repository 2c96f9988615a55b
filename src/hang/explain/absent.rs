//! Explains calls that some rank has not reached, and what the records cannot show.

use grammar::{codes::Code, collective::Members, count_text, words::CommunicationType};

use super::{
    Finding, Label, callers_note, empty, group_of, label, located, waiters_text, waiting::unmatched_text,
    waiting_at,
};
use crate::{
    queues::{Call, Job},
    record::{Kind, Peer, Rank, Record},
    stall::{Place, Stall, has_lost},
    wording::{named_at, operands, place, position, ranks_of, ranks_text, verb, what_at},
};

/// Labels a call with the ranks that wait in it, and for whom.
fn waiting_label(job: &Job<'_>, stall: &Stall, call: Call, who: &str) -> Label {
    let waiting = ranks_of(&stall.waiting);
    label(job, call, format!("{} {} here for {who}", ranks_text(&waiting), verb(&waiting, "wait")))
}

pub(super) fn missing(job: &Job<'_>, stall: &Stall, ranks: &[Rank]) -> Finding {
    let who = ranks_text(ranks);
    let has = verb(ranks, "have");
    let mut labels = Vec::new();
    let mut notes = Vec::new();
    if let Some(call) = stall.waiting.first() {
        labels.push(waiting_label(job, stall, *call, &who));
        let group = job.record(*call).group;
        let before = (0..call.at).rev().map(|at| Call { rank: call.rank, at });
        // Of a message, only its two ranks know.
        let has_all = |it: &Call| match job.record(*it).peer {
            Peer::None => job.record(*it).is_collective(),
            Peer::Rank(peer) => ranks == [peer],
            Peer::Any => false,
        };
        let mut before =
            before.filter(|it| job.record(*it).group == group && job.record(*it).done && has_all(it));
        notes.extend(
            before.next().map(|it| {
                format!("the call before it, {}, completed: {who} took part in it", located(job, it))
            }),
        );
        notes.push(format!("this is {}", position(job, *call)));
    }
    let are_unreadable = ranks.iter().all(|it| job.unreadable.contains(it));
    Finding {
        code: Code::HangNoDump,
        message: format!(
            "{who} {has} no dump{}, and {} in {}, which needs {}",
            if are_unreadable { " that can be read" } else { "" },
            waiters_text(stall),
            waiting_at(job, stall),
            if ranks.len() == 1 { "it" } else { "them" }
        ),
        ranks: ranks.to_vec(),
        labels,
        notes,
        help: if are_unreadable {
            format!("the warning says why the dump of {who} cannot be read: collect it again")
        } else {
            format!(
                "a process that ends or is killed before the time-out writes no dump: look at the log of {who} for an exception or a signal; or the file was not collected"
            )
        },
    }
}

pub(super) fn late(job: &Job<'_>, stall: &Stall, ranks: &[Rank], is_proven: bool) -> Finding {
    let who = ranks_text(ranks);
    let has = verb(ranks, "have");
    let mut notes = Vec::new();
    let mut labels = Vec::new();
    if let Some(call) = stall.waiting.first() {
        labels.push(waiting_label(job, stall, *call, &who));
        notes.push(format!("this is {}", position(job, *call)));
    }
    for rank in ranks.iter().take(4) {
        let Some(last) = last_call(job, *rank) else {
            notes.push(format!("rank {rank} has no records"));
            continue;
        };
        let end = if job.record(last).done { ", and it completed" } else { "" };
        notes.push(format!("the last call of rank {rank} is {}{end}", what_at(job, last)));
        // Without a place, the note says all.
        let place = Some(label(job, last, format!("the last call of rank {rank}")));
        labels.extend(place.filter(|it| it.site.is_some()));
    }
    let is_gloo = stall.waiting.first().is_some_and(|it| group_of(job, *it).backend == "gloo");
    let hides = is_gloo && job.records.ranks.iter().any(|it| has_hidden_messages(job, it.rank));
    if hides {
        notes.push("plain gloo does not record send and recv, and the numbers of its operations show that ranks made some: it may wait in one".to_owned());
    }
    let waiting = ranks_of(&stall.waiting);
    let or_added = match is_proven {
        true => String::new(),
        false => format!(
            ", or {} {} one call too many{}",
            ranks_text(&waiting),
            verb(&waiting, "make"),
            if matches!(stall.place, Place::Pair { .. }) { " or names the wrong peer" } else { "" }
        ),
    };
    if !is_proven {
        notes.push(format!(
            "the records do not show whether {who} or {} should have done something else",
            ranks_text(&waiting)
        ));
    }
    // What is lost is not compared.
    let agree = match job.records.ranks.iter().any(|it| it.lost > 0) {
        true => "",
        false => "; all calls of the group before it agree",
    };
    let message = match (stall.place, stall.waiting.first()) {
        (Place::Pair { pair, .. }, Some(call)) => format!(
            "{}; {who} is late, finished, stopped or dead{}",
            unmatched_text(job, pair, *call, "not", None),
            or_added,
        ),
        (_, call) => format!(
            "{} in {}, and {who} {has} not come to it: {} late, finished, stopped or dead{}{or_added}{agree}",
            waiters_text(stall),
            call.map(|_| waiting_at(job, stall)).unwrap_or_default(),
            if ranks.len() == 1 { "it is" } else { "they are" },
            if hides { ", or in a send or recv that gloo does not record" } else { "" },
        ),
    };
    Finding {
        code: Code::RankLate,
        message,
        ranks: if is_proven { ranks.to_vec() } else { Vec::new() },
        labels,
        notes,
        help: format!(
            "if the job does not proceed, look at what {who} {}: `py-spy dump --pid PID` shows its stack",
            verb(ranks, "do")
        ),
    }
}

/// Returns the last call of a rank, if it has one.
fn last_call(job: &Job<'_>, rank: Rank) -> Option<Call> {
    let last = job.records.log(rank)?.records.len().checked_sub(1)?;
    Some(Call { rank, at: last as u32 })
}

/// Whether a rank made sends or receives that gloo does not record: its operations are more than its collectives.
fn has_hidden_messages(job: &Job<'_>, rank: Rank) -> bool {
    job.records.log(rank).is_some_and(|log| log.records.iter().any(|it| it.op > it.seq))
}

pub(super) fn lost(job: &Job<'_>, stall: &Stall, is_hang: bool) -> Finding {
    let Some(call) = stall.waiting.first().copied() else { return empty(Code::HangUndecided) };
    let without = match stall.place {
        Place::Collective { queue, seq } => {
            let lanes = job.queues[queue].lanes.iter();
            lanes.filter(|it| has_lost(job, it, queue, seq)).map(|it| it.rank).collect()
        }
        Place::Pair { .. } | Place::AnySource { .. } => Vec::new(),
    };
    let without: Vec<Rank> = without;
    if job.records.log(call.rank).is_some_and(|it| it.from_log) && !without.is_empty() {
        return silent(job, stall, &without);
    }
    let is_message = matches!(stall.place, Place::Pair { .. });
    let waits = |who: String| format!("{who} in {}", located(job, call));
    let why = if is_message {
        format!(
            "{}, and the records do not hold which call it meets",
            waits(format!("rank {} waits", call.rank))
        )
    } else if without.is_empty() {
        let lost = job.records.log(call.rank).map_or(0, |it| it.lost);
        format!(
            "the oldest one that rank {} kept, {}, has not completed, and {lost} before it are lost",
            call.rank,
            what_at(job, call),
        )
    } else {
        format!(
            "{}, and the records of {} do not hold whether {} made this call",
            waits(waiters_text(stall)),
            ranks_text(&without),
            if without.len() == 1 { "it has" } else { "they have" }
        )
    };
    let what = if is_hang { "the cause" } else { "whether all calls proceed" };
    let only_active = job.records.ranks.iter().any(|it| it.only_active);
    let (what, help) = if only_active {
        (
            format!("the dumps leave out what has completed, and do not show {what}"),
            "run without `TORCH_INCLUDE_ONLY_ACTIVE`, so that dumps have all calls".to_owned(),
        )
    } else {
        (
            format!("the ring buffer has lost the records that would show {what}"),
            "set `TORCH_FR_BUFFER_SIZE` (before 2.8 `TORCH_NCCL_TRACE_BUFFER_SIZE`) to a larger number and run again".to_owned(),
        )
    };
    let waits = waits(waiters_text(stall)) + &format!("; this is {}", position(job, call));
    Finding {
        code: if is_hang { Code::HangUndecided } else { Code::CallInFlight },
        message: format!("{what}: {why}"),
        ranks: Vec::new(),
        labels: vec![label(job, call, format!("rank {} waits here", call.rank))],
        notes: if is_message || !without.is_empty() { Vec::new() } else { vec![waits] },
        help,
    }
}

/// Ranks whose logs say nothing of their calls: PyTorch prints a line on each rank that lives when calls of a group time out.
fn silent(job: &Job<'_>, stall: &Stall, ranks: &[Rank]) -> Finding {
    let who = ranks_text(ranks);
    let waiting = ranks_of(&stall.waiting);
    let at = stall
        .waiting
        .first()
        .map(|it| label(job, *it, format!("{} {} here", ranks_text(&waiting), verb(&waiting, "wait"))));
    Finding {
        code: Code::HangNoDump,
        message: format!(
            "{} in {}, and the logs say nothing of the calls of {who}",
            waiters_text(stall),
            waiting_at(job, stall),
        ),
        ranks: ranks.to_vec(),
        labels: at.into_iter().collect(),
        notes: Vec::new(),
        help: format!(
            "a process that has ended, or is stopped, prints no line of the watchdog: look in the log of {who} for an exception or a signal, if this log has all of it"
        ),
    }
}

/// A call that some ranks have completed and others wait in, although it needs all: it was not one call. Logs do not name what has completed.
fn other_call(job: &Job<'_>, stall: &Stall, kind: Kind) -> Option<Finding> {
    let call = *stall.waiting.first()?;
    let Place::Collective { queue, seq } = stall.place else { return None };
    let group = job.queues[queue].group;
    let is_done = |rank: Rank| job.status(rank, group).is_some_and(|it| it.completed >= i64::from(seq));
    let lanes =
        job.queues[queue].lanes.iter().filter(|it| job.call_at(it, seq).is_none() && is_done(it.rank));
    let others: Vec<Rank> = lanes.map(|it| it.rank).collect();
    let is_printed = job.records.log(call.rank)?.from_log && kind.needs_all();
    (is_printed && !others.is_empty()).then(|| Finding {
        code: Code::HangUnknown,
        message: format!(
            "{} in {}, and {} {} completed {} call #{seq}, which the log does not name: it was another call, or one of another size or type",
            waiters_text(stall),
            waiting_at(job, stall),
            ranks_text(&others),
            verb(&others, "have"),
            if others.len() == 1 { "its" } else { "their" }
        ),
        ranks: Vec::new(),
        labels: vec![label(job, call, format!("{} here", waiters_text(stall)))],
        notes: callers_note(job, call).into_iter().collect(),
        help: format!(
            "compare what {} {} before it: dumps name all calls (`TORCH_FR_BUFFER_SIZE=20000`, before 2.8 `TORCH_NCCL_TRACE_BUFFER_SIZE`, and `TORCH_NCCL_DUMP_ON_TIMEOUT=1`)",
            ranks_text(&others),
            verb(&others, "call")
        ),
    })
}

pub(super) fn unknown(job: &Job<'_>, stall: &Stall) -> Finding {
    let Some(call) = stall.waiting.first().copied() else { return empty(Code::HangUnknown) };
    let kind = job.records.signature(job.record(call).signature).kind;
    let waiting = ranks_of(&stall.waiting);
    let at = position(job, call);
    let completed: Vec<Rank> = match stall.place {
        Place::Collective { queue, seq } => {
            let lanes = job.queues[queue].lanes.iter();
            lanes
                .filter_map(|it| job.call_at(it, seq))
                .filter(|it| job.record(*it).done)
                .map(|it| it.rank)
                .collect()
        }
        Place::Pair { .. } | Place::AnySource { .. } => Vec::new(),
    };
    if let Place::AnySource { .. } = stall.place {
        return any_source(job, call);
    }
    if let Some(found) = other_call(job, stall, kind) {
        return found;
    }
    let mut notes = vec![format!("this is {at}")];
    // Other calls complete on all members at nearly one time. The root of a broadcast may be done before the others, that of a reduction after them.
    // Those that completed it wait for the others in a later call.
    let is_partly = !stall.behind.is_empty()
        && !completed.is_empty()
        && kind.collective().map(CommunicationType::facts).is_some_and(|it| match (it.from, it.to) {
            (Members::Root, _) => completed.len() > 1,
            (_, Members::Root) => waiting.len() > 1,
            _ => kind == Kind::AllToAll,
        });
    let unstarted = unstarted(job, stall);
    let unfinished = unfinished(job, stall);
    let is_timed_out = stall.is_given_up(job);
    let is_hang = is_partly && has_waited(job, &stall.waiting) || is_timed_out;
    let partly = if !unfinished.is_empty() {
        format!("{} {} not completed it", ranks_text(&waiting), verb(&waiting, "have"))
    } else if let (Place::Pair { .. }, [one]) = (stall.place, stall.waiting.as_slice()) {
        format!("rank {} has not completed it", one.rank)
    } else if let Place::Pair { .. } = stall.place {
        "neither has completed it".to_owned()
    } else if completed.is_empty() {
        "no member has completed it".to_owned()
    } else {
        format!(
            "{} completed it, {} {} not",
            ranks_text(&completed),
            ranks_text(&waiting),
            verb(&waiting, "have")
        )
    };
    notes.extend(callers_note(job, call));
    let or_runs = if is_timed_out { "" } else { ", or the job still runs" };
    let help = match kind.hidden() {
        Some(hidden) => format!(
            "the records do not hold {hidden}: compare it on all members at this line; if it is the same, the device or the network is stuck{or_runs}"
        ),
        None => format!("the device or the network is stuck (`NCCL_DEBUG=INFO` shows more){or_runs}"),
    };
    let why = if is_hang { ": the records cannot show why" } else { "" };
    // The places and sizes at which ranks wait: those of an all-to-all and the lines of a root may differ.
    let mut sides: Vec<(String, Vec<Call>)> = Vec::new();
    for it in &stall.waiting {
        let side = format!("{} {}", operands(job, *it), place(job, *it).unwrap_or_default());
        match sides.iter_mut().find(|it| it.0 == side) {
            Some(found) => found.1.push(*it),
            None => sides.push((side, vec![*it])),
        }
    }
    let has_sizes =
        kind == Kind::AllToAll && stall.waiting.iter().any(|it| operands(job, *it) != operands(job, call));
    let agrees = if has_sizes {
        "their sizes are not the same, which splits may explain"
    } else {
        "what the records hold of it agrees"
    };
    // Without other logs, and without the members.
    let is_alone = matches!(stall.place, Place::Collective { queue, .. } if job.queues[queue].lanes.len() == 1)
        && group_of(job, call).members.is_none();
    let (who, agrees, help) = match stall.place {
        Place::Pair { .. } => ("both ranks have made their side of".to_owned(), agrees, help),
        Place::Collective { .. } if is_alone => (
            format!("rank {} has called", call.rank),
            "no other member of the group is known",
            "give the dumps or the logs of all ranks: which member is missing, or calls something else, only they show".to_owned(),
        ),
        Place::Collective { .. } | Place::AnySource { .. } => ("all members have called".to_owned(), agrees, help),
    };
    let labels = sides.iter().take(4).filter_map(|(_, calls)| {
        let ranks = ranks_of(calls);
        Some(label(job, *calls.first()?, format!("{} {} here", ranks_text(&ranks), verb(&ranks, "wait"))))
    });
    let late = match unstarted.as_slice() {
        [] if !unfinished.is_empty() => {
            let first: Vec<Rank> = unfinished.iter().copied().filter(|it| waiting.contains(it)).collect();
            let others = unfinished.iter().copied().filter(|it| !waiting.contains(it)).collect::<Vec<_>>();
            if !others.is_empty() {
                notes.push(format!("{} {} such a call, too", ranks_text(&others), verb(&others, "have")));
            }
            format!(
                "; the others have completed later calls of the group, which need {}: the device of {} is stuck behind it, or the watchdog is",
                ranks_text(&first),
                if first.len() == 1 { "this rank" } else { "these ranks" }
            )
        }
        [] => String::new(),
        _ => format!(
            "; it has started on the others, and not on {}: {} device is stuck before it",
            ranks_text(&unstarted),
            if unstarted.len() == 1 { "its" } else { "their" }
        ),
    };
    Finding {
        code: if is_hang { Code::HangUnknown } else { Code::CallInFlight },
        message: format!("{who} {}, {agrees}, and {partly}{why}{late}", named_at(job, &stall.waiting)),
        ranks: if unstarted.is_empty() { unfinished } else { unstarted },
        labels: labels.collect(),
        notes,
        help,
    }
}

/// Returns the ranks that have not completed a collective, although all other members have completed a later one of the group, as `pg_status` counts them: of
/// this collective and of others like it.
fn unfinished(job: &Job<'_>, stall: &Stall) -> Vec<Rank> {
    let Place::Collective { queue, seq } = stall.place else { return Vec::new() };
    let description = |queue: usize| job.records.group(job.queues[queue].group).own_description();
    let of = |queue: usize, seq: u32| {
        let lanes = &job.queues[queue].lanes;
        let done = |rank: Rank| job.status(rank, job.queues[queue].group).map_or(0, |it| it.completed);
        let (ahead, waiting): (Vec<Rank>, Vec<Rank>) =
            lanes.iter().map(|it| it.rank).partition(|it| done(*it) > i64::from(seq));
        let is_head = |rank: &Rank| job.queues[queue].lane(*rank).is_some_and(|it| it.head == Some(seq));
        let is_one_side = !ahead.is_empty() && waiting.iter().all(is_head);
        if is_one_side { waiting } else { Vec::new() }
    };
    let own = of(queue, seq);
    if own.is_empty() {
        return own;
    }
    let like = (0..job.queues.len()).filter(|it| *it != queue && description(*it) == description(queue));
    let heads = like.filter_map(|at| Some((at, job.queues[at].lanes.iter().filter_map(|it| it.head).min()?)));
    own.into_iter().chain(heads.flat_map(|(at, seq)| of(at, seq))).collect()
}

/// Whether ranks have issued or completed calls long after others completed the ones in which some wait: states are noticed late.
fn has_waited(job: &Job<'_>, waiting: &[Call]) -> bool {
    let records = || job.records.ranks.iter().flat_map(|it| &it.records);
    let is_same = |a: &Record, b: &Record| (a.group, a.seq) == (b.group, b.seq) && b.is_collective();
    let Some(first) = waiting.first().map(|it| job.record(*it)) else { return false };
    let done = records().filter(|it| it.done && is_same(first, it)).map(|it| it.completed).min();
    let last = records().map(|it| it.completed.max(it.created)).max();
    done.zip(last).is_some_and(|(done, last)| last - done > LONG)
}

/// The nanoseconds after which the other members have noticed that a collective has completed.
const LONG: i64 = 10_000_000_000;

/// Returns the ranks on which the kernel of a call has not started, while it has on others: that of a rank that waits for nothing before it. All
/// ranks of a job record starts, or none.
fn unstarted(job: &Job<'_>, stall: &Stall) -> Vec<Rank> {
    let has_started = |it: &&Call| job.record(**it).started != 0;
    // Of a message, the other side may have completed it from a buffer.
    let shows_starts = || job.records.ranks.iter().flat_map(|it| &it.records).any(|it| it.started != 0);
    let is_half =
        matches!(stall.place, Place::Pair { .. }) && stall.absent.is_empty() && stall.waiting.len() == 1;
    let others_started = stall.waiting.iter().any(|it| has_started(&it)) || is_half && shows_starts();
    if !others_started {
        return Vec::new();
    }
    let is_first = |it: &&Call| {
        job.records.log(it.rank).is_some_and(|log| {
            let before = &log.records[..it.at as usize];
            before.iter().all(|it| it.done)
        })
    };
    let late = stall.waiting.iter().filter(|it| !has_started(it) && is_first(it));
    late.map(|it| it.rank).collect()
}

/// Explains a receive from any rank.
fn any_source(job: &Job<'_>, call: Call) -> Finding {
    let group = job.record(call).group;
    let to_it = job.pairs.iter().filter(|((of, _, to), _)| (*of, *to) == (group, call.rank));
    let open =
        to_it.filter_map(|((_, from, _), pair)| Some(Call { rank: *from, at: *pair.sends.get(pair.sent)? }));
    let open: Vec<Call> = open.collect();
    let mut labels = vec![label(job, call, format!("rank {} waits here", call.rank))];
    let (code, message, help) = match open.first() {
        Some(send) => {
            labels.push(label(job, *send, format!("the send of rank {} to it", send.rank)));
            let others = match open.len() - 1 {
                0 => String::new(),
                more => format!(" (and of {})", count_text(more, "other rank")),
            };
            let at = place(job, *send).unwrap_or_else(|| position(job, *send));
            (
                Code::CallInFlight,
                format!(
                    "rank {} waits in {}, and a send of rank {} to it ({at}){others} has not completed",
                    call.rank,
                    what_at(job, call),
                    send.rank
                ),
                "the records do not hold the tag (`tag=`): compare it on both ranks; if it is the same, the network is stuck, or the job still runs",
            )
        }
        None => (
            Code::RankLate,
            format!(
                "rank {} waits in {}, and the records hold no open send to it",
                call.rank,
                what_at(job, call)
            ),
            "look at which rank should send here: the records do not hold it",
        ),
    };
    let notes = callers_note(job, call).into_iter().collect();
    Finding { code, message, ranks: Vec::new(), labels, notes, help: help.to_owned() }
}
