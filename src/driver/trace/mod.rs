//! Traces of jobs, of torch.profiler (Kineto, a Chrome trace of each rank) or exported from Nsight Systems: what each collective transfers,
//! what its kernel only waits, and what hides it.
//!
//! The kernel of a collective begins when its rank comes, and ends when all have come and the data is there. So the kernel of the rank that
//! comes last, which is the shortest one, is the *transfer*; what another kernel takes longer is the *skew*. Neither compares clocks.

mod compare;
mod kineto;
mod nsys;
mod ranks;
mod report;
mod sqlite;

use std::collections::BTreeMap;

use hir_plan::timeline::overlap::{intersection, length};

pub use compare::{Row, compare};
pub use ranks::{Call, Kernel, RankTrace, TraceError};
pub use report::{comparison_json, comparison_lines, json, lines};

/// Reads a file, which may have several ranks; those without a number have it from `first`.
///
/// # Errors
/// The file is no trace, or has no kernels.
pub fn read(bytes: Vec<u8>, first: usize) -> Result<Vec<RankTrace>, TraceError> {
    if bytes.starts_with(sqlite::MAGIC) {
        return nsys::parse(&bytes, first);
    }
    kineto::parse(&grammar::decode(bytes), first).map(|it| vec![it])
}

/// A collective of all ranks that have it in their traces.
struct Collective<'t> {
    /// Its kernels, by the number of the trace.
    kernels: Vec<(usize, &'t Kernel)>,
}

/// What the kernels of a collective show, in microseconds.
struct Measured<'t> {
    call: &'t Call,
    /// The longest kernel, and the number of its trace.
    longest: (usize, &'t Kernel),
    /// The number of the trace with the shortest kernel.
    last: usize,
    kernel: f64,
    transfer: f64,
    /// How long another kernel computes beside the longest one.
    hidden: f64,
}

impl<'t> Collective<'t> {
    /// Returns what its kernels show; `beside` is when each rank computes.
    fn measured(&self, beside: &[Vec<(f64, f64)>]) -> Option<Measured<'t>> {
        let time = |kernel: &Kernel| kernel.end - kernel.begin;
        let by_time = |a: &&(usize, &Kernel), b: &&(usize, &Kernel)| time(a.1).total_cmp(&time(b.1));
        let (longest, shortest) =
            (*self.kernels.iter().max_by(by_time)?, *self.kernels.iter().min_by(by_time)?);
        let own = [(longest.1.begin, longest.1.end)];
        Some(Measured {
            call: longest.1.collective.as_ref()?,
            longest,
            last: shortest.0,
            kernel: time(longest.1),
            transfer: time(shortest.1),
            hidden: length(&intersection(&own, within(&beside[longest.0], own[0]))),
        })
    }
}

/// Returns when each rank computes.
fn computing(traces: &[RankTrace]) -> Vec<Vec<(f64, f64)>> {
    traces.iter().map(|it| it.times(false)).collect()
}

/// The collectives of one kind: those of the same name, group and size.
#[derive(Debug, Default, PartialEq)]
pub struct Kind {
    /// What it does, such as `allreduce`.
    pub name: String,
    /// The name of its group.
    pub group: String,
    /// The bytes of its input on each rank, if the trace has them.
    pub bytes: Option<u64>,
    /// How many collectives these are.
    pub count: usize,
    /// The microseconds of the longest kernel of each, together.
    pub kernel: f64,
    /// The microseconds of the shortest kernel of each, together: how long the data takes.
    pub transfer: f64,
    /// The rank that comes last most often.
    pub last: usize,
    /// How often it does.
    pub last_count: usize,
    /// How long a kernel of the same rank computes beside them, in microseconds, on the rank with the longest kernels.
    pub hidden: f64,
    /// The kernel that hides most of them.
    pub beside: Option<String>,
    /// The function that posts them, if the trace has stacks.
    pub posted: Option<String>,
}

/// What the traces of a job show.
#[derive(Debug)]
pub struct Job {
    /// The kinds of collectives, those that are exposed longest first.
    pub kinds: Vec<Kind>,
    /// By trace: its rank, how long it communicates, and how long it computes meanwhile, in microseconds.
    pub ranks: Vec<(usize, f64, f64)>,
    /// What could not be paired.
    pub notes: Vec<String>,
}

/// The name, the group, the bytes and the place of a kind.
type KindKey<'t> = (&'t str, &'t str, Option<u64>, Option<&'t str>);

/// A kind, how often each rank comes last, and how long each kernel computes beside it.
type Sums<'t> = (Kind, BTreeMap<usize, usize>, BTreeMap<&'t str, f64>);

/// Returns what the traces of a job show.
pub fn analyze(traces: &[RankTrace]) -> Job {
    let beside = computing(traces);
    let of_rank = |(trace, compute): (&RankTrace, &Vec<(f64, f64)>)| {
        let communication = trace.times(true);
        (trace.rank, length(&communication), length(&intersection(&communication, compute)))
    };
    let ranks = traces.iter().zip(&beside).map(of_rank).collect();
    let (collectives, notes) = pair(traces);
    let mut kinds: BTreeMap<KindKey<'_>, Sums<'_>> = BTreeMap::new();
    for it in collectives.iter().filter_map(|it| it.measured(&beside)) {
        let call = it.call;
        // Calls of one kind at several places are several kinds.
        let key = (&*call.name, &*call.group, call.bytes, call.posted.as_deref());
        let (kind, last, names) = kinds.entry(key).or_default();
        kind.count += 1;
        kind.kernel += it.kernel;
        kind.transfer += it.transfer;
        kind.hidden += it.hidden;
        *last.entry(traces[it.last].rank).or_default() += 1;
        let own = (it.longest.1.begin, it.longest.1.end);
        for kernel in traces[it.longest.0].computing(own) {
            let both = kernel.end.min(own.1) - kernel.begin.max(own.0);
            *names.entry(&*kernel.name).or_default() += both;
        }
    }
    let mut kinds: Vec<Kind> = kinds
        .into_iter()
        .map(|((name, group, bytes, posted), (kind, last, names))| {
            let (name, group, posted) = (name.to_owned(), group.to_owned(), posted.map(str::to_owned));
            let (last, last_count) = last.into_iter().max_by_key(|it| it.1).unwrap_or_default();
            let beside = names.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|it| it.0.to_owned());
            Kind { name, group, bytes, posted, last, last_count, beside, ..kind }
        })
        .collect();
    kinds.sort_by(|a, b| (b.kernel - b.hidden).total_cmp(&(a.kernel - a.hidden)));
    Job { kinds, ranks, notes }
}

/// Returns the part of disjoint ascending intervals that may touch another interval.
fn within(all: &[(f64, f64)], of: (f64, f64)) -> &[(f64, f64)] {
    let from = all.partition_point(|it| it.1 <= of.0);
    let to = all.partition_point(|it| it.0 < of.1);
    all.get(from..to.max(from)).unwrap_or(&[])
}

/// Pairs the collectives of the traces: the n-th of a group on one rank is the n-th on the others. A group of which the traces have different
/// numbers is not paired: some trace begins later, or ends earlier.
fn pair(traces: &[RankTrace]) -> (Vec<Collective<'_>>, Vec<String>) {
    let mut groups: BTreeMap<&str, Vec<(usize, Vec<&Kernel>)>> = BTreeMap::new();
    for (number, trace) in traces.iter().enumerate() {
        let mut own: BTreeMap<&str, Vec<&Kernel>> = BTreeMap::new();
        for it in &trace.kernels {
            if let Some(call) = &it.collective {
                own.entry(&call.group).or_default().push(it);
            }
        }
        for (group, calls) in own {
            groups.entry(group).or_default().push((number, calls));
        }
    }
    let (mut found, mut notes) = (Vec::new(), Vec::new());
    for (group, members) in groups {
        let counts: Vec<usize> = members.iter().map(|it| it.1.len()).collect();
        let count = counts.iter().copied().min().unwrap_or(0);
        if counts.iter().any(|it| *it != count) {
            notes.push(format!(
                "group {group}: the traces have {counts:?} collectives, and are compared from the end: profile the same steps on all ranks"
            ));
        }
        let size = members.iter().flat_map(|it| &it.1).find_map(|it| it.collective.as_ref()?.size);
        if members.len() < size.unwrap_or(2) {
            let all = size.map_or_else(String::new, |it| format!("{it} "));
            notes.push(format!(
                "group {group}: traces of {} of its {all}ranks: transfers may contain waits for the others",
                members.len()
            ));
        }
        for back in (1..=count).rev() {
            let kernels =
                members.iter().map(|(number, calls)| (*number, calls[calls.len() - back])).collect();
            found.push(Collective { kernels });
        }
    }
    (found, notes)
}

#[cfg(test)]
mod tests;
