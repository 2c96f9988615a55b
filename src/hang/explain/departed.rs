//! Explains where one rank departs from the calls of the others.

use grammar::{codes::Code, count_text};

use super::{Finding, callers_note, in_order_of_lines, label};
use crate::{
    departure::{Count, Departure},
    divergence::How,
    queues::Job,
    record::Peer,
    wording::{operands, position, ranks_text, verb, what_at},
};

pub(super) fn departed(job: &Job<'_>, found: &Departure) -> Finding {
    let Departure { call, usual, like, how, count } = found;
    let rank = call.rank;
    let (others, they) = match like.as_slice() {
        [] => ("its earlier rounds".to_owned(), "they"),
        _ => (ranks_text(like), "the others"),
    };
    let (mine, theirs) = (what_at(job, *call), what_at(job, *usual));
    let is_message = [*call, *usual].iter().any(|it| job.record(*it).peer != Peer::None);
    let code = match how {
        How::Elements | How::ElementType => Code::HangSizes,
        How::Reordered(_) if is_message => Code::HangCycle,
        _ if is_message => Code::HangPeer,
        How::Skipped(_) | How::SkippedByHistory | How::Added(_) | How::Reordered(_) | How::Other => {
            Code::HangDiverged
        }
    };
    let more = |count: u32, what: &str| match count {
        1 => String::new(),
        _ => format!(", and {} {what} behind it", count_text(count as usize - 1, "call")),
    };
    // Of one collective that the numbers of calls before it name, the calls that differ are not recorded.
    let unseen = count.filter(|it| it.at == *call && job.key(*call) == job.key(*usual));
    let of_kind = |it: &Count| {
        it.kind
            .map_or(String::new(), |it| format!(" in groups of the kind `{}`", job.description_of_kind(it)))
    };
    let of_count = |it: &Count| {
        let (does, what) = if it.own < it.usual { ("skips", "call") } else { ("makes", "call more") };
        format!(
            "rank {rank} {does} {}{}, compared with {others}, before the {mine}",
            count_text(it.own.abs_diff(it.usual), what),
            of_kind(it),
        )
    };
    let message = match &in_order_of_lines(job, how, *call, *usual) {
        _ if unseen.is_some() => unseen.iter().map(of_count).collect(),
        How::Skipped(count) => format!(
            "rank {rank} skips the {theirs}{} that {others} {}, and goes on to the {mine}",
            more(*count, "more"),
            verb(like, "call")
        ),
        How::SkippedByHistory => {
            format!("rank {rank} skips the {theirs} that {others} {}", verb(like, "call"))
        }
        How::Added(count) => format!(
            "rank {rank} makes a call that {others} {} not make: the {mine}{}; {they} go on to the {theirs}",
            verb(like, "do"),
            more(*count, "more")
        ),
        How::Reordered(count) => format!(
            "rank {rank} makes {} in another order than {others}: it calls {mine} where {} {theirs}",
            count_text(*count as usize, "call"),
            if like.len() == 1 { "that one calls".to_owned() } else { format!("{they} call") },
        ),
        How::Elements | How::ElementType => format!(
            "rank {rank} calls {mine} with {}, and {others} with {}",
            operands(job, *call),
            operands(job, *usual)
        ),
        How::Other => {
            let of = |it| format!("{} ({})", what_at(job, it), position(job, it));
            format!(
                "rank {rank} calls {} where {others} {} {}: it skips that, or makes a call more",
                of(*call),
                verb(like, "call"),
                of(*usual)
            )
        }
    };
    let mut notes = vec![match count {
        Some(it) => format!(
            "rank {rank} is named because it has made {}{}, and the others {} when they came to the {}",
            count_text(it.own, if it.kind.is_some() { "call" } else { "record" }),
            of_kind(it),
            it.usual,
            what_at(job, it.at)
        ),
        None => format!(
            "the calls of rank {rank} before it are those of {others}; what does not proceed now is a consequence"
        ),
    }];
    notes.extend(callers_note(job, *call));
    Finding {
        code,
        message,
        ranks: vec![rank],
        labels: vec![
            label(job, *call, format!("rank {rank} calls this")),
            label(job, *usual, format!("{others} {} this there", verb(like, "call"))),
        ],
        notes,
        help: format!(
            "look for a condition, a loop bound or an order that has another value on rank {rank} before this call"
        ),
    }
}
