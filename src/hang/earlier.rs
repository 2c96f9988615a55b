//! Finds dumps that an earlier job may have left in the folder: PyTorch overwrites the dumps of its own ranks only, and a rank that
//! cannot write one leaves the old file.

use rustc_hash::FxHashMap;

use crate::{
    record::{GroupId, Rank, RankLog, Record, Records},
    wording::ranks_text,
};

/// The nanoseconds for which two groups of ranks have to be apart: longer than clocks of hosts differ, and at least the time after which a
/// watchdog of PyTorch ends a job by default.
const APART: i64 = 600 * 1_000_000_000;

/// The nanoseconds by which a call has to complete before others make it, so that it is not of their start: more than clocks of hosts differ.
const BEFORE: i64 = 30 * 1_000_000_000;

/// Finds the dumps of an earlier start: the rank has completed a collective that needs all members before the others, which wait in it, have made it.
pub(crate) fn of_earlier_start(records: &Records) -> Vec<(Rank, String)> {
    let is_needed = |it: &Record| it.is_collective() && records.signature(it.signature).kind.needs_all();
    let mut open: FxHashMap<(GroupId, u32), i64> = FxHashMap::default();
    for it in records.ranks.iter().flat_map(|log| &log.records).filter(|it| !it.done && is_needed(it)) {
        let first = open.entry((it.group, it.seq)).or_insert(it.created);
        *first = it.created.min(*first);
    }
    let by = |log: &RankLog| {
        let done = log.records.iter().filter(|it| it.done && it.completed > 0 && is_needed(it));
        let mut before = done.filter_map(|it| Some(open.get(&(it.group, it.seq))? - it.completed));
        before.find(|it| *it > BEFORE)
    };
    let why = |by: i64| {
        format!(
            "it has completed a call {} seconds before the other ranks made it: it is of an earlier start of the job",
            by / 1_000_000_000
        )
    };
    records.ranks.iter().filter_map(|log| Some((log.rank, why(by(log)?)))).collect()
}

/// Says which ranks have made their last call long before the other ones made the first one that they have recorded.
pub(crate) fn note(logs: &[RankLog]) -> Option<String> {
    let mut times: Vec<(i64, i64, Rank)> = logs.iter().filter_map(times).collect();
    times.sort_unstable();
    let mut latest = i64::MIN;
    // The last gap: what is behind it is the job of today.
    let (mut newer, mut gap) = (0, 0);
    for (at, (first, last, _)) in times.iter().enumerate() {
        let between = first.saturating_sub(latest);
        if at > 0 && between >= APART {
            (newer, gap) = (at, between);
        }
        latest = latest.max(*last);
    }
    let mut ranks: Vec<Rank> = times[..newer].iter().map(|it| it.2).collect();
    ranks.sort_unstable();
    (newer > 0).then(|| {
        format!(
            "the last call of {} is {} older than every recorded call of the other ranks: are their dumps those of an earlier job? PyTorch leaves them in the folder",
            ranks_text(&ranks),
            duration(gap)
        )
    })
}

/// Returns when a rank made the first and the last call that it has recorded, and its number.
fn times(log: &RankLog) -> Option<(i64, i64, Rank)> {
    let created = || log.records.iter().map(|it| it.created);
    Some((created().min()?, created().max()?, log.rank))
}

/// Returns a duration of at least some minutes in words.
fn duration(nanoseconds: i64) -> String {
    let minutes = nanoseconds / 60_000_000_000;
    match minutes {
        0..120 => format!("{minutes} minutes"),
        120..2880 => format!("{} hours", minutes / 60),
        _ => format!("{} days", minutes / 1440),
    }
}
