//! How ranks, calls and groups are written in reports.

use std::collections::BTreeSet;

use crate::{
    agreement::type_name,
    queues::{Call, Job},
    record::{Kind, Peer, Rank, Signature},
    site::{call_name, site},
};

/// The number of ranges of ranks that are written; of more, the number of ranks.
const MAX_RANGES: usize = 8;

/// Writes ranks: `rank 2`, `ranks 0, 1 and 3`, `ranks 0 to 1022 and 1024`. Sorts them.
pub(crate) fn ranks_text(ranks: &[Rank]) -> String {
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", numbers_text(ranks))
}

/// Writes ranks without the word: `0, 1 and 3`.
pub(crate) fn numbers_text(ranks: &[Rank]) -> String {
    let mut ranks = ranks.to_vec();
    ranks.sort_unstable();
    ranks.dedup();
    let mut ranges: Vec<(Rank, Rank)> = Vec::new();
    for rank in &ranks {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => ranges.push((*rank, *rank)),
        }
    }
    let left = ranges.len().saturating_sub(MAX_RANGES);
    let more: usize = ranges[ranges.len() - left..].iter().map(|it| (it.1 - it.0 + 1) as usize).sum();
    let mut parts = Vec::new();
    for (first, last) in &ranges[..ranges.len() - left] {
        match last - first {
            0 => parts.push(first.to_string()),
            1 => parts.extend([first.to_string(), last.to_string()]),
            _ => parts.push(format!("{first} to {last}")),
        }
    }
    if more > 0 {
        parts.push(format!("{more} more"));
    }
    match parts.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, first)) => format!("{} and {last}", first.join(", ")),
        None => String::new(),
    }
}

/// Returns the verb form for these ranks: `wait` or `waits`.
pub(crate) fn verb(ranks: &[Rank], stem: &str) -> String {
    match stem {
        _ if ranks.len() != 1 => stem.to_owned(),
        "have" => "has".to_owned(),
        _ if stem.ends_with(['o', 's']) => format!("{stem}es"),
        _ => format!("{stem}s"),
    }
}

/// Returns the ranks of calls.
pub(crate) fn ranks_of(calls: &[Call]) -> Vec<Rank> {
    calls.iter().map(|it| it.rank).collect()
}

/// Writes what a call does: `all_reduce`, `send to rank 1`, `recv from rank 2`.
pub(crate) fn what(job: &Job<'_>, call: Call) -> String {
    let record = job.record(call);
    let name = call_name(job.records, record);
    let kind = job.records.signature(record.signature).kind;
    match (record.peer, kind) {
        (Peer::Rank(peer), Kind::Recv) => format!("{name} from rank {peer}"),
        (Peer::Rank(peer), _) => format!("{name} to rank {peer}"),
        (Peer::Any, _) => format!("{name} from any rank"),
        (Peer::None, _) => name.to_owned(),
    }
}

/// Writes what a call does with its place: `all_reduce (train.py:14)`.
pub(crate) fn what_at(job: &Job<'_>, call: Call) -> String {
    match place(job, call) {
        Some(place) => format!("{} ({place})", what(job, call)),
        None => format!("{} ({})", what(job, call), position(job, call)),
    }
}

/// Writes what calls of several ranks do with their places, up to three of them: `gather (train.py:15 and train.py:17)`.
pub(crate) fn named_at(job: &Job<'_>, calls: &[Call]) -> String {
    let Some(first) = calls.first().copied() else { return String::new() };
    match places(job, calls) {
        Some(places) => format!("{} ({places})", what(job, first)),
        None => what_at(job, first),
    }
}

/// Writes the places of calls, up to three of them; `None` without stacks.
pub(crate) fn places(job: &Job<'_>, calls: &[Call]) -> Option<String> {
    let places: BTreeSet<String> = calls.iter().filter_map(|it| place(job, *it)).collect();
    (!places.is_empty()).then(|| grammar::list_text(places.iter().map(String::as_str), 3, "and"))
}

/// Writes the place of a call: `train.py:14`.
pub(crate) fn place(job: &Job<'_>, call: Call) -> Option<String> {
    let site = site(job.records, job.record(call))?;
    Some(format!("{}:{}", site.file, site.line))
}

/// Writes the position of a collective in its group, `#15 of group 0`, or of a message, `#2 from rank 0 to rank 1`.
pub(crate) fn position(job: &Job<'_>, call: Call) -> String {
    let record = job.record(call);
    let group = job.records.group(record.group);
    let peer = match record.peer {
        Peer::None => return format!("#{} of {group}", record.seq),
        Peer::Any => return group.to_string(),
        Peer::Rank(peer) => peer,
    };
    let is_send = job.records.signature(record.signature).kind == Kind::Send;
    let (from, to) = if is_send { (call.rank, peer) } else { (peer, call.rank) };
    let found = job.pairs.binary_search_by_key(&(record.group, from, to), |it| it.0);
    let pair = found.map(|it| &job.pairs[it].1);
    let calls = pair.map(|it| if is_send { &it.sends } else { &it.receives });
    let at = calls.ok().and_then(|it| it.iter().position(|it| *it == call.at)).unwrap_or(0);
    // Of those that are lost, the number is not known.
    let kept = if pair.is_ok_and(|it| it.is_partial) { " of those kept" } else { "" };
    format!("#{}{kept} from rank {from} to rank {to} in {group}", at + 1)
}

/// Writes the tensors of a call: `float32 [64]`, or nothing for a barrier.
pub(crate) fn operands(job: &Job<'_>, call: Call) -> String {
    let signature = job.records.signature(job.record(call).signature);
    // Those of a group are those of its calls.
    let parts = signature.parts.iter().map(|it| tensors(job.records.signature(*it)));
    if signature.parts.is_empty() { tensors(signature) } else { grammar::list_text(parts, 3, "and") }
}

/// Writes the tensors of a signature.
pub(crate) fn tensors(signature: &Signature) -> String {
    let is_input = !signature.inputs.is_empty();
    let shapes = if is_input { &signature.inputs } else { &signature.outputs };
    let Some(first) = shapes.first() else { return String::new() };
    let shape = |it: &Vec<i64>| format!("[{}]", it.iter().map(i64::to_string).collect::<Vec<_>>().join(", "));
    let element_type = signature.element_type().map(type_name).unwrap_or("");
    let shapes = if shapes.len() > 1 && shapes.iter().all(|it| it == first) {
        format!("{} × {}", shapes.len(), shape(first))
    } else if shapes.len() > 4 {
        format!("{}, … ({} tensors)", shape(first), shapes.len())
    } else {
        shapes.iter().map(shape).collect::<Vec<_>>().join(", ")
    };
    format!("{element_type} {shapes}").trim().to_owned()
}
