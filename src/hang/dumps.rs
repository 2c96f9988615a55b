//! The dumps of a job: among all that were read, one log for each rank.
//!
//! A folder may hold several dumps of one rank: of two backends of one process, of two moments, or of another job by mistake. Ranks may know one
//! group by different descriptions.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use rustc_hash::FxHashMap;

use crate::{
    active, earlier,
    host::Hosts,
    order,
    record::{Crosswise, Group, GroupId, Interners, Rank, RankLog, Records, SignatureId},
    wording::numbers_text,
};

/// A file with the name of a dump that cannot be read as one.
#[derive(Debug, Clone, thiserror::Error)]
#[error("`{file}` (rank {rank}): {why}")]
pub struct Skipped {
    /// The file.
    pub file: String,
    /// The rank in its name.
    pub rank: Rank,
    /// The reason.
    pub why: String,
}

/// The dumps of a job.
#[derive(Debug, Default)]
pub struct Dumps {
    /// The records.
    pub records: Records,
    /// What is known of the hosts of ranks.
    pub hosts: Hosts,
    /// Dumps that cannot be read; they count as missing.
    pub skipped: Vec<Skipped>,
    /// What hir chose among several files, for notes.
    pub notes: Vec<String>,
    /// The folders that the dumps are in: the program may be there, too.
    pub folders: Vec<PathBuf>,
    /// Files of the program that are in memory, with their paths.
    pub sources: Vec<(PathBuf, String)>,
}

/// Returns whether a name is that of a file of a Python program.
pub(crate) fn is_program(path: &Path) -> bool {
    path.extension().is_some_and(|it| it == "py")
}

/// The rank of a dump, and its log or why it cannot be read.
pub(crate) type ReadDump = (Rank, Result<RankLog, Skipped>);

/// Returns for each group the one that stands for it: ranks may know one group by another description, and some without its members.
fn same_groups(groups: &[Group]) -> Vec<GroupId> {
    let mut chosen: FxHashMap<(&str, &str), Vec<usize>> = FxHashMap::default();
    let mut same: Vec<GroupId> = (0..groups.len()).map(|at| GroupId(at as u32)).collect();
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by_key(|at| groups[*at].members.is_none());
    for at in order {
        let group = &groups[at];
        let known = chosen.entry((&group.name, &group.backend)).or_default();
        let fits = |other: &&usize| {
            let other = &groups[**other];
            match (&group.members, &other.members, group.own_description(), other.own_description()) {
                (Some(one), Some(two), ..) => one == two,
                (_, _, Some(one), Some(two)) => one == two,
                _ => true,
            }
        };
        let mut fitting = known.iter().filter(fits);
        match (fitting.next(), fitting.next()) {
            (Some(only), None) => same[at] = GroupId(*only as u32),
            _ => known.push(at),
        }
    }
    same
}

/// The ranks that know a group by a description.
type Sides<'g> = BTreeMap<&'g str, BTreeSet<Rank>>;

/// Finds groups that some ranks know by each other's descriptions.
fn crosswise(groups: &[Group], logs: &BTreeMap<Rank, Vec<RankLog>>) -> Vec<Crosswise> {
    let mut sides: BTreeMap<(&str, &Option<Vec<Rank>>), Sides<'_>> = BTreeMap::new();
    for (rank, group) in
        logs.iter().flat_map(|(rank, logs)| logs.iter().flat_map(|it| &it.groups).map(|it| (*rank, it)))
    {
        let group = &groups[group.index()];
        if let Some(description) = group.own_description() {
            let sides = sides.entry((&group.name, &group.members)).or_default();
            sides.entry(description).or_default().insert(rank);
        }
    }
    let two: Vec<_> = sides.iter().filter(|it| it.1.len() == 2).take(MAX_CROSSWISE).collect();
    let mut found = Vec::new();
    for (at, ((one, members), of_one)) in two.iter().enumerate() {
        for ((other, others), of_other) in &two[at + 1..] {
            let (mut a, mut b) = (of_one.iter(), of_other.iter().rev());
            let is_exchanged =
                members == others && a.by_ref().zip(b.by_ref()).all(|(a, b)| a.0 != b.0 && a.1 == b.1);
            let ranks: Vec<(&&str, &BTreeSet<Rank>)> = of_one.iter().collect();
            if let (true, [(first, left), (second, right)]) = (is_exchanged, ranks.as_slice()) {
                found.push(Crosswise {
                    names: [(*one).to_owned(), (*other).to_owned()],
                    descriptions: [(**first).to_owned(), (**second).to_owned()],
                    sides: [left, right].map(|it| it.iter().copied().collect()),
                });
            }
        }
    }
    found
}

/// The number of groups with two descriptions that are compared.
const MAX_CROSSWISE: usize = 64;

/// Returns why a log cannot be that of its rank: the rank is no member of its world.
fn stranger(groups: &[Group], log: &RankLog) -> Option<String> {
    let world = log.groups.iter().map(|it| &groups[it.index()]).find(|it| it.name == "0")?;
    let members = world.members.as_ref().filter(|it| !it.contains(&log.rank))?;
    Some(format!(
        "its group 0 has the members {}, and not rank {}: it is of another job, or its name has the number of another rank",
        numbers_text(members),
        log.rank
    ))
}

/// Whether two logs of one rank cannot be of one process: they have no call in common, or other calls at one time.
fn are_of_two_jobs(one: &RankLog, two: &RankLog) -> bool {
    let mut calls: FxHashMap<i64, Vec<SignatureId>> = FxHashMap::default();
    one.records.iter().for_each(|it| calls.entry(it.created).or_default().push(it.signature));
    let mut shared =
        two.records.iter().filter_map(|it| Some((it.signature, calls.get(&it.created)?))).peekable();
    let has_none = !one.records.is_empty() && !two.records.is_empty() && shared.peek().is_none();
    has_none || shared.any(|(own, others)| !others.contains(&own))
}

/// Chooses one log for each rank and backend, and joins the logs of several backends of one process.
///
/// # Errors
/// No log is left: why the first dump cannot be read, if there is one.
pub(crate) fn combine(read: Vec<ReadDump>, tables: Interners) -> Result<Dumps, Option<Skipped>> {
    let mut dumps = Dumps::default();
    let mut by_rank: BTreeMap<Rank, Vec<RankLog>> = BTreeMap::new();
    let (mut doubles, mut first) = (0, None);
    for (rank, log) in read {
        match log {
            Ok(log) => by_rank.entry(rank).or_default().push(log),
            Err(skipped) => dumps.skipped.push(skipped),
        }
    }
    dumps.records = order::by_first_use(&mut by_rank, tables);
    dumps.records.crosswise = crosswise(&dumps.records.groups, &by_rank);
    let same = same_groups(&dumps.records.groups);
    for (rank, mut logs) in by_rank {
        for log in &mut logs {
            let status = log.status.iter_mut().filter_map(|it| it.of.as_mut());
            let groups = log.records.iter_mut().map(|it| &mut it.group).chain(&mut log.groups).chain(status);
            groups.for_each(|it| *it = same[it.index()]);
        }
        let strangers: Vec<RankLog> =
            logs.extract_if(.., |it| stranger(&dumps.records.groups, it).is_some()).collect();
        let why = |it: &RankLog| stranger(&dumps.records.groups, it).unwrap_or_default();
        dumps.skipped.extend(strangers.iter().map(|it| Skipped {
            file: it.file.clone(),
            rank,
            why: why(it),
        }));
        logs.sort_by_key(|it| (!it.has_stacks, it.records.is_empty()));
        let mut logs = logs.into_iter();
        let Some(mut kept) = logs.next() else { continue };
        let backends = |log: &RankLog| -> BTreeSet<&str> {
            let groups = log.records.iter().map(|it| &dumps.records.groups[it.group.index()]);
            groups.map(|it| it.backend.as_str()).collect()
        };
        let mut known = backends(&kept);
        let (same_backend, other): (Vec<RankLog>, Vec<RankLog>) =
            logs.partition(|it| !backends(it).is_disjoint(&known) || known.is_empty());
        if let Some(other) = same_backend.iter().find(|it| are_of_two_jobs(it, &kept)) {
            let why = format!(
                "`{}` is of the same rank and has other calls: one of them is of another job",
                other.file
            );
            dumps.skipped.push(Skipped { file: kept.file, rank, why });
            continue;
        }
        for log in same_backend.into_iter().chain(other) {
            let own = backends(&log);
            if !known.is_empty() && !own.is_empty() && known.is_disjoint(&own) {
                // Two backends of one process: one clock.
                kept.records.extend(log.records);
                kept.records.sort_by_key(|it| it.created);
                kept.groups.extend(log.groups);
                kept.lost += log.lost;
                known.extend(own);
            } else {
                doubles += 1;
                first.get_or_insert((log.file, kept.file.clone()));
            }
        }
        dumps.records.ranks.push(kept);
    }
    if let Some((ignored, kept)) = first {
        let more = match doubles - 1 {
            0 => String::new(),
            more => format!(", and so for {}", grammar::count_text(more, "more file")),
        };
        dumps.notes.push(format!("read `{kept}`, not `{ignored}` of the same rank{more}"));
    }
    // Another file may have the dump of the same rank.
    let logs = &dumps.records.ranks;
    dumps.skipped.retain(|it| logs.binary_search_by_key(&it.rank, |log| log.rank).is_err());
    if dumps.records.ranks.is_empty() {
        return Err(dumps.skipped.into_iter().next());
    }
    for (rank, why) in earlier::of_earlier_start(&dumps.records) {
        let logs = &mut dumps.records.ranks;
        if let Ok(at) = logs.binary_search_by_key(&rank, |it| it.rank) {
            dumps.skipped.push(Skipped { file: logs.remove(at).file, rank, why });
        }
    }
    active::name_status(&mut dumps.records);
    active::mark_active(&mut dumps.records);
    active::mark_aborted(&mut dumps.records);
    Ok(dumps)
}
