//! A tiny simulator of a job: each rank makes its calls in order, and a recorder writes what a flight recorder would.
//!
//! A host that blocks waits for each call; one that runs ahead issues its calls and waits at barriers only, while the device executes the calls of a group, and of a
//! pair of ranks, one after the other. Calls that differ never complete.

#![allow(dead_code, reason = "each test uses a part of it")]

pub mod pickle;

use std::{collections::BTreeMap, fmt::Write};

/// What a call does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    AllReduce,
    AllGather,
    Broadcast,
    Barrier,
    Send(usize),
    Recv(usize),
}

/// One call of one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    pub op: Op,
    pub group: usize,
    pub elements: usize,
    pub dtype: &'static str,
    pub line: u32,
}

/// A group with its description.
#[derive(Clone, Debug)]
pub struct Group {
    pub description: &'static str,
    pub members: Vec<usize>,
}

/// A job: the calls of each rank. A rank of `gone` ends after its calls, without a dump.
#[derive(Clone, Debug)]
pub struct Job {
    pub groups: Vec<Group>,
    pub calls: Vec<Vec<Call>>,
    pub runs_ahead: bool,
    pub gone: Option<usize>,
    /// The number of records that a ring buffer keeps.
    pub kept: usize,
}

/// How far each rank got: its issued calls, and whether each completed.
pub struct Outcome {
    pub done: Vec<Vec<bool>>,
}

impl Outcome {
    pub fn hangs(&self) -> bool {
        self.done.iter().flatten().any(|it| !it)
    }
}

/// The queue of the device in which a call is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Queue {
    Collective(usize),
    Pair(usize, usize, usize),
}

fn queue(rank: usize, call: &Call) -> Queue {
    match call.op {
        Op::Send(to) => Queue::Pair(call.group, rank, to),
        Op::Recv(from) => Queue::Pair(call.group, from, rank),
        _ => Queue::Collective(call.group),
    }
}

/// Executes a job until nothing proceeds.
pub fn run(job: &Job) -> Outcome {
    let mut done: Vec<Vec<bool>> = vec![Vec::new(); job.calls.len()];
    loop {
        let mut moved = false;
        for (calls, done) in job.calls.iter().zip(&mut done) {
            let blocks = |at: usize| !job.runs_ahead || calls[at].op == Op::Barrier;
            let is_free = (0..done.len()).all(|at| done[at] || !blocks(at));
            if done.len() < calls.len() && is_free {
                done.push(false);
                moved = true;
            }
        }
        for rank in 0..job.calls.len() {
            for at in 0..done[rank].len() {
                if !done[rank][at] && completes(job, &done, rank, at) {
                    done[rank][at] = true;
                    moved = true;
                }
            }
        }
        if !moved {
            return Outcome { done };
        }
    }
}

/// Returns the issued calls of a rank in a queue.
fn issued(job: &Job, done: &[Vec<bool>], rank: usize, of: Queue, is_send: Option<bool>) -> Vec<usize> {
    let is_kind = |call: &Call| match is_send {
        Some(is_send) => matches!(call.op, Op::Send(_)) == is_send,
        None => true,
    };
    let calls = &job.calls[rank];
    (0..done[rank].len()).filter(|at| queue(rank, &calls[*at]) == of && is_kind(&calls[*at])).collect()
}

fn completes(job: &Job, done: &[Vec<bool>], rank: usize, at: usize) -> bool {
    let call = &job.calls[rank][at];
    let of = queue(rank, call);
    let others: Vec<(usize, Option<bool>)> = match call.op {
        Op::Send(to) => vec![(to, Some(false))],
        Op::Recv(from) => vec![(from, Some(true))],
        _ => job.groups[call.group].members.iter().map(|it| (*it, None)).collect(),
    };
    let kind = match call.op {
        Op::Send(_) => Some(true),
        Op::Recv(_) => Some(false),
        _ => None,
    };
    let own = issued(job, done, rank, of, kind);
    let Some(position) = own.iter().position(|it| *it == at) else { return false };
    if own[..position].iter().any(|it| !done[rank][*it]) {
        return false;
    }
    others.iter().all(|(other, kind)| {
        let theirs = issued(job, done, *other, of, *kind);
        theirs.get(position).is_some_and(|it| {
            let it = &job.calls[*other][*it];
            let is_same = call.op == it.op
                || matches!((call.op, it.op), (Op::Send(_), Op::Recv(_)) | (Op::Recv(_), Op::Send(_)));
            is_same && (call.op == Op::Barrier || call.elements == it.elements && call.dtype == it.dtype)
        })
    })
}

/// Returns the dumps, as JSON with stacks, of the ranks that write one.
pub fn dumps(job: &Job, outcome: &Outcome) -> Vec<(usize, String)> {
    let ranks = (0..job.calls.len()).filter(|it| Some(*it) != job.gone);
    ranks.map(|rank| (rank, dump(job, outcome, rank))).collect()
}

/// Returns the dump of one rank.
pub fn dump(job: &Job, outcome: &Outcome, rank: usize) -> String {
    let mut config = Vec::new();
    for (name, group) in job.groups.iter().enumerate().filter(|it| it.1.members.contains(&rank)) {
        let description = group.description;
        config.push(format!(
            r#""{name}": {{"name": "{name}", "desc": "{description}", "ranks": "{:?}"}}"#,
            group.members
        ));
    }
    let mut entries = Vec::new();
    let (mut seqs, mut p2ps, mut ops) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for (at, done) in outcome.done[rank].iter().enumerate() {
        let call = &job.calls[rank][at];
        let group = &job.groups[call.group];
        let place = |it: usize| group.members.iter().position(|member| *member == it).unwrap_or(usize::MAX);
        let (name, is_p2p) = match call.op {
            Op::AllReduce => ("all_reduce".to_owned(), false),
            Op::AllGather => ("_all_gather_base".to_owned(), false),
            Op::Broadcast => ("broadcast".to_owned(), false),
            Op::Barrier => ("barrier".to_owned(), false),
            Op::Send(to) => (format!("send {}->{}", place(rank), place(to)), true),
            Op::Recv(from) => (format!("recv {}<-{}", place(rank), place(from)), true),
        };
        let counter = if is_p2p { &mut p2ps } else { &mut seqs };
        *counter.entry(call.group).or_insert(0) += 1;
        *ops.entry(call.group).or_insert(0) += 1;
        let shape = format!("[[{}]]", call.elements);
        let (inputs, outputs) = match call.op {
            Op::Barrier => ("[]", "[]"),
            Op::Recv(_) => ("[]", shape.as_str()),
            Op::Send(_) => (shape.as_str(), "[]"),
            _ => (shape.as_str(), shape.as_str()),
        };
        let types =
            |shapes: &str| if shapes == "[]" { "[]".to_owned() } else { format!(r#"["{}"]"#, call.dtype) };
        let mut entry = String::new();
        let _ = write!(
            entry,
            r#"{{"record_id": {at}, "process_group": ["{}", "{}"], "collective_seq_id": {}, "p2p_seq_id": {}, "op_id": {}, "profiling_name": "nccl:{name}", "is_p2p": {is_p2p}, "input_sizes": {inputs}, "output_sizes": {outputs}, "input_dtypes": {}, "output_dtypes": {}, "state": "{}", "retired": {done}, "time_created_ns": {}, "frames": [{{"name": "step", "filename": "train.py", "line": {}}}]}}"#,
            call.group,
            group.description,
            seqs.get(&call.group).unwrap_or(&0),
            p2ps.get(&call.group).unwrap_or(&0),
            ops[&call.group],
            types(inputs),
            types(outputs),
            if *done { "completed" } else { "scheduled" },
            1_000_000 + at * 1000 + rank,
            call.line,
        );
        entries.push(entry);
    }
    format!(
        r#"{{"version": "2.10", "pg_config": {{{}}}, "entries": [{}]}}"#,
        config.join(", "),
        entries[entries.len().saturating_sub(job.kept)..].join(",\n")
    )
}

/// Returns a job of two ranks, of which the second one leaves out a call.
pub fn two_ranks() -> Job {
    let call = |op, line| Call { op, group: 0, elements: 8, dtype: "Float", line };
    let calls = [call(Op::AllReduce, 5), call(Op::Broadcast, 6)].repeat(4);
    let mut second = calls.clone();
    second.remove(6);
    Job {
        groups: vec![Group { description: "default_pg", members: vec![0, 1] }],
        calls: vec![calls, second],
        runs_ahead: true,
        gone: None,
        kept: usize::MAX,
    }
}

/// Returns the dumps of `two_ranks` as pickles, by rank.
pub fn pickles() -> Vec<Vec<u8>> {
    let job = two_ranks();
    let texts = dumps(&job, &run(&job)).into_iter();
    texts.map(|(_, text)| pickle::pickle(&serde_json::from_str(&text).expect("JSON"))).collect()
}
