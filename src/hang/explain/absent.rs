//! Explains calls that some rank has not reached, and what the records cannot show.

use grammar::codes::Code;

use super::{
    Finding, Label, activity, callers_note, empty, group_of, label, waiting::unmatched_text, waiting_text,
};
use crate::{
    queues::{Call, Job},
    record::{Kind, Rank},
    stall::{Place, Stall},
    wording::{position, ranks_of, ranks_text, verb, what_at},
};

/// Labels a call with the ranks that wait in it, and for whom.
fn waiting_label(job: &Job<'_>, stall: &Stall, call: Call, who: &str) -> Label {
    let waiting = ranks_of(&stall.waiting);
    label(job, call, format!("{} {} here for {who}", ranks_text(&waiting), verb(&waiting, "wait")))
}

pub(super) fn missing(job: &Job<'_>, stall: &Stall, ranks: &[Rank]) -> Finding {
    let who = ranks_text(ranks);
    let has = if ranks.len() == 1 { "has" } else { "have" };
    let mut labels = Vec::new();
    let mut notes = Vec::new();
    if let Some(call) = stall.waiting.first() {
        labels.push(waiting_label(job, stall, *call, &who));
        let log = job.records.log(call.rank);
        let group = job.record(*call).group;
        let before = (0..call.at).rev().map(|at| Call { rank: call.rank, at });
        let before = before
            .filter(|_| log.is_some())
            .find(|it| job.record(*it).group == group && job.record(*it).done);
        notes.extend(before.map(|it| {
            format!(
                "{who} took part in the {} before it, {}, which completed",
                what_at(job, it),
                position(job, it)
            )
        }));
        notes.push(format!("this is {}", position(job, *call)));
    }
    Finding {
        code: Code::HangNoDump,
        message: format!(
            "{who} {has} no dump, and {}, which needs {}",
            waiting_text(job, stall),
            if ranks.len() == 1 { "it" } else { "them" }
        ),
        ranks: ranks.to_vec(),
        labels,
        notes,
        help: format!(
            "a process that ends or is killed before the time-out writes no dump: look at the log of {who} for an exception or a signal; or the file was not collected"
        ),
    }
}

pub(super) fn late(job: &Job<'_>, stall: &Stall, ranks: &[Rank]) -> Finding {
    let who = ranks_text(ranks);
    let has = if ranks.len() == 1 { "has" } else { "have" };
    let mut notes = Vec::new();
    let mut labels = Vec::new();
    if let Some(call) = stall.waiting.first() {
        labels.push(waiting_label(job, stall, *call, &who));
        notes.push(format!("this is {}", position(job, *call)));
    }
    for rank in ranks.iter().take(4) {
        notes.push(format!("{}, and it completed", activity(job, &[], *rank)));
        if let Some(last) = job.records.log(*rank).and_then(|it| it.records.len().checked_sub(1)) {
            labels.push(label(
                job,
                Call { rank: *rank, at: last as u32 },
                format!("the last call of rank {rank}"),
            ));
        }
    }
    let is_gloo = stall.waiting.first().is_some_and(|it| group_of(job, *it).backend == "gloo");
    let hides = is_gloo && job.records.ranks.iter().any(|it| has_hidden_messages(job, it.rank));
    if hides {
        notes.push("plain gloo does not record send and recv, and the numbers of its operations show that ranks made some: it may wait in one".to_owned());
    }
    let message = match (stall.place, stall.waiting.first()) {
        (Place::Pair { pair, .. }, Some(call)) => format!(
            "{}; it is late, finished, stopped or dead",
            unmatched_text(job, pair, *call, None)
                .replace("is never received", "is not received")
                .replace("is never sent", "is not sent")
        ),
        _ => format!(
            "{who} {has} not come to the call in which {}: {} late, stopped or dead{}; all calls agree so far",
            waiting_text(job, stall).replacen(" wait in ", " wait, ", 1).replacen(
                " waits in ",
                " waits, ",
                1
            ),
            if ranks.len() == 1 { "it is" } else { "they are" },
            if hides { ", or in a send or recv that gloo does not record" } else { "" },
        ),
    };
    Finding {
        code: Code::RankLate,
        message,
        ranks: ranks.to_vec(),
        labels,
        notes,
        help: format!(
            "if the job does not proceed, look at what {who} {}: `py-spy dump --pid PID` shows its stack",
            if ranks.len() == 1 { "does" } else { "do" }
        ),
    }
}

/// Whether a rank made sends or receives that gloo does not record: its operations are more than its collectives.
fn has_hidden_messages(job: &Job<'_>, rank: Rank) -> bool {
    job.records.log(rank).is_some_and(|log| log.records.iter().any(|it| it.op > it.seq))
}

pub(super) fn lost(job: &Job<'_>, stall: &Stall) -> Finding {
    let Some(call) = stall.waiting.first().copied() else { return empty(Code::HangUndecided) };
    let lost = job.records.log(call.rank).map_or(0, |it| it.lost);
    Finding {
        code: Code::HangUndecided,
        message: format!(
            "the ring buffer has lost the records that would show the cause: the oldest one that rank {} kept, {}, has not completed, and {lost} before it are lost",
            call.rank,
            what_at(job, call),
        ),
        ranks: Vec::new(),
        labels: vec![label(job, call, "the oldest record".to_owned())],
        notes: vec![waiting_text(job, stall)],
        help: "set `TORCH_FR_BUFFER_SIZE` to a larger number (2000 is the default) and run again".to_owned(),
    }
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
        return Finding {
            code: Code::RankLate,
            message: format!("rank {} waits in {}, and no rank sends to it", call.rank, what_at(job, call)),
            ranks: Vec::new(),
            labels: vec![label(job, call, format!("rank {} waits here", call.rank))],
            notes: callers_note(job, call).into_iter().collect(),
            help: "look at which rank should send here: the records do not hold it".to_owned(),
        };
    }
    let mut notes = vec![format!("this is {at}")];
    // What only the root passes may end early on some members; other calls complete on all of them at nearly one time.
    let has_root =
        matches!(kind, Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter | Kind::AllToAll);
    let is_hang = has_root && !completed.is_empty() || timed_out(job, stall);
    let partly = if completed.is_empty() {
        "no member has completed it".to_owned()
    } else {
        format!(
            "{} completed it, {} {} not",
            ranks_text(&completed),
            ranks_text(&waiting),
            if waiting.len() == 1 { "has" } else { "have" }
        )
    };
    notes.extend(callers_note(job, call));
    let help = match kind.hidden() {
        Some(hidden) => format!(
            "the records do not hold {hidden}: compare it on all members at this line; if it is the same, the device or the network is stuck, or the job still runs"
        ),
        None => "the device or the network is stuck (`NCCL_DEBUG=INFO` shows more), or the job still runs"
            .to_owned(),
    };
    let why = if is_hang { ": the records cannot show why" } else { "" };
    Finding {
        code: if is_hang { Code::HangUnknown } else { Code::CallInFlight },
        message: format!(
            "all members have called {}, what the records hold of it agrees, and {partly}{why}",
            what_at(job, call)
        ),
        ranks: Vec::new(),
        labels: vec![label(job, call, format!("{} {} here", ranks_text(&waiting), verb(&waiting, "wait")))],
        notes,
        help,
    }
}

/// Whether the watchdog of NCCL has given up a call: it is out of its list and has not completed.
pub(crate) fn timed_out(job: &Job<'_>, stall: &Stall) -> bool {
    stall.waiting.iter().any(|it| {
        let reports = job.records.log(it.rank).is_some_and(|it| it.reports_completion);
        reports && group_of(job, *it).backend != "gloo" && job.record(*it).retired && !job.record(*it).done
    })
}
