//! The communications of a program, as they are estimated, beside those of traces.
//!
//! An estimate becomes a trace, so that both are measured in one way. Communications match by kind and size, in the order of one rank. Where the
//! traces have several steps, each step has all communications of the program.

use std::collections::BTreeMap;

use hir_plan::{
    Communication, Plan, World,
    timeline::{Lane, Slice, SliceKind, Timeline},
};

use super::{Call, Kernel, Measured, RankTrace, computing, pair};

/// Communications of a line of the program, and those of the traces that match them.
#[derive(Debug, Default)]
pub struct Row {
    /// The line; `None` if the program has no such communications.
    pub line: Option<u32>,
    /// What they do.
    pub name: String,
    /// The bytes of their inputs on each rank.
    pub bytes: Option<u64>,
    /// The function that posts them, if the traces have stacks.
    pub posted: Option<String>,
    /// The times in the traces.
    pub measured: Times,
    /// The times in the estimate.
    pub estimated: Times,
}

/// Times of some communications, all together, in microseconds.
#[derive(Debug, Default)]
pub struct Times {
    /// How many they are.
    pub count: usize,
    /// The time of the longest kernel of each.
    pub kernel: f64,
    /// The time of the shortest kernel of each.
    pub transfer: f64,
    /// How long another kernel computes beside the longest kernels.
    pub hidden: f64,
}

impl Times {
    fn add(&mut self, it: &Measured<'_>) {
        self.count += 1;
        self.kernel += it.kernel;
        self.transfer += it.transfer;
        self.hidden += it.hidden;
    }
}

/// Returns the communications of the rank of the first trace beside those of an estimate; `None` if the estimate has no such rank.
pub fn compare(traces: &[RankTrace], world: &World, timeline: &Timeline) -> Option<Vec<Row>> {
    let rank = traces.first()?.rank;
    // Ranks that do the same have the rows of one of them.
    let alike = timeline.classes.iter().find(|it| it.contains(&rank)).and_then(|it| it.first());
    let estimate = estimate(world, timeline);
    let (measured, estimated) = (of_rank(traces, rank)?, of_rank(&estimate, *alike.unwrap_or(&rank))?);
    // A kernel of NCCL does not say how much it communicates.
    let is_sized = measured.iter().all(|it| it.call.bytes.is_some());
    let key = |it: &Measured<'_>| (kind(&it.call.name), it.call.bytes.filter(|_| is_sized));
    let mut kinds: BTreeMap<_, [Vec<&Measured<'_>>; 2]> = BTreeMap::new();
    measured.iter().for_each(|it| kinds.entry(key(it)).or_default()[0].push(it));
    estimated.iter().for_each(|it| kinds.entry(key(it)).or_default()[1].push(it));
    // By line; those of the traces alone come last.
    let mut rows: BTreeMap<(u32, Option<&str>, bool, _), Row> = BTreeMap::new();
    for (key, [measured, estimated]) in kinds {
        // The first steps may be incomplete.
        let alone = match estimated.len() {
            0 => measured.len(),
            of_step if measured.len() < of_step => 0,
            of_step => measured.len() % of_step,
        };
        let (alone, matched) = measured.split_at(alone);
        for it in alone {
            let row = rows.entry((u32::MAX, it.call.posted.as_deref(), false, key)).or_default();
            row.set(it);
            row.measured.add(it);
        }
        for (number, it) in estimated.iter().enumerate() {
            let partners = matched.iter().skip(number).step_by(estimated.len());
            let is_alone = matched.len() <= number;
            let row = rows.entry((it.call.line.unwrap_or(0), None, is_alone, key)).or_default();
            row.set(it);
            row.estimated.add(it);
            for it in partners {
                row.posted = row.posted.take().or_else(|| it.call.posted.as_deref().map(str::to_owned));
                row.measured.add(it);
            }
        }
    }
    Some(rows.into_values().collect())
}

impl Row {
    fn set(&mut self, it: &Measured<'_>) {
        (self.line, self.name, self.bytes) = (it.call.line, it.call.name.to_string(), it.call.bytes);
        self.posted = it.call.posted.as_deref().map(str::to_owned);
    }
}

/// Returns the collectives of a rank, as it runs them; `None` without this rank.
fn of_rank(traces: &[RankTrace], rank: usize) -> Option<Vec<Measured<'_>>> {
    let number = traces.iter().position(|it| it.rank == rank)?;
    let beside = computing(traces);
    let mut found: Vec<(f64, Measured<'_>)> = Vec::new();
    for it in pair(traces).0 {
        let own = it.kernels.iter().find(|it| it.0 == number).map(|it| it.1.begin);
        found.extend(own.zip(it.measured(&beside)));
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    Some(found.into_iter().map(|it| it.1).collect())
}

/// Returns what NCCL's kernel of a collective does, by the name that PyTorch, NCCL or a plan gives it. Kernels that send and receive are of one
/// kind, also those of an all-to-all.
fn kind(name: &str) -> &'static str {
    let letters: String = name.to_lowercase().chars().filter(char::is_ascii_alphabetic).collect();
    let kinds = ["allreduce", "allgather", "reducescatter", "broadcast", "reduce"];
    kinds.into_iter().find(|it| letters.contains(it)).unwrap_or("sendrecv")
}

/// Returns an estimated timeline as traces of its ranks.
fn estimate(world: &World, timeline: &Timeline) -> Vec<RankTrace> {
    let mut ranks: BTreeMap<usize, Vec<Kernel>> = BTreeMap::new();
    for row in &timeline.rows {
        ranks.entry(row.rank).or_default();
    }
    for it in &timeline.slices {
        let row = &timeline.rows[it.row];
        let collective = match it.kind {
            SliceKind::Compute => None,
            SliceKind::Communication => Some(Box::new(call(&world[row.rank], it, &row.lane))),
            SliceKind::DataMovement | SliceKind::Wait => continue,
        };
        let kernel = |end| Kernel { name: it.label.as_str().into(), begin: it.begin, end, collective };
        ranks.entry(row.rank).or_default().extend(it.end.map(kernel));
    }
    ranks.into_iter().map(|(rank, kernels)| RankTrace { rank, kernels }).collect()
}

fn call(plan: &Plan, slice: &Slice, lane: &Lane) -> Call {
    let bytes = match plan.code[slice.inst_ref.inst].kind.communication() {
        Some(Communication::Collective(it)) => {
            it.input.iter().chain(&it.output).next().map(|it| plan.bytes_of(it))
        }
        Some(Communication::P2pGroup(it)) => it.ops.iter().map(|it| plan.bytes_of(&it.view)).max(),
        None => None,
    };
    let group = match lane {
        Lane::Queue { .. } => lane.to_string(),
        // Ranks copy from each other without meeting.
        Lane::Host | Lane::Stream(_) | Lane::Group(_) => format!("{lane} of rank {}", plan.rank),
    };
    Call {
        name: slice.label.as_str().into(),
        group: group.into(),
        size: None,
        bytes: bytes.map(|it| it as u64),
        posted: None,
        line: slice.line,
    }
}
