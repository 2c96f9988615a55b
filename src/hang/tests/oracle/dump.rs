//! Writes what PyTorch's flight recorder holds of an executed job.
//!
//! From `FlightRecorderDetail.hpp` and `ProcessGroupNCCL.cpp`: a message of a batch is a record without events, which stays `scheduled`, and the batch is
//! a record `nccl:coalesced` behind them; `started` exists with timing only; a dump asks the events of calls that are not retired, and the
//! watchdog asks them once in an interval. The hook of other backends knows only what the watchdog has seen.

use serde_json::{Value, json};

use super::{
    device::Times,
    program::{Call, Kind, Program},
    rng::Rng,
};

/// How the dumps are written.
#[derive(Clone)]
pub struct Writing {
    pub has_timing: bool,
    pub has_frames: bool,
    /// The number of records that are kept.
    pub ring: usize,
    pub only_active: bool,
    /// Whether only what the watchdog has seen is known.
    pub is_late: bool,
    /// The interval of the watchdog in nanoseconds.
    pub poll: u64,
    /// The error of the clock of each rank, in nanoseconds.
    pub skew: Vec<i64>,
    /// The time at which each rank dumps, in nanoseconds from the start of the job.
    pub moment: Vec<u64>,
    pub timeout_ms: u64,
    /// Whether the watchdog takes calls that have timed out from its list before the dump.
    pub retires: bool,
    /// When the communicators are aborted: calls that hang complete.
    pub abort: Option<u64>,
}

impl Writing {
    /// Chooses how, but for the moments.
    pub fn choose(rng: &mut Rng, world: usize) -> Self {
        let by_host: Vec<i64> = (0..world).map(|_| rng.between(0, 100_000_000) as i64 - 50_000_000).collect();
        let size = rng.pick(&[1, 2, 4, 8]);
        let skewed = rng.percent(60);
        let only_active = rng.percent(15);
        let is_late = rng.percent(15);
        Self {
            has_timing: rng.percent(40),
            has_frames: rng.percent(75),
            ring: if only_active { 2000 } else { rng.pick(&[2000, 2000, 2000, 100, 30]) },
            only_active,
            is_late,
            poll: if is_late { rng.between(200_000, 2_000_000) } else { 100_000_000 },
            skew: (0..world).map(|rank| if skewed { by_host[rank / size] } else { 0 }).collect(),
            moment: Vec::new(),
            timeout_ms: 600_000,
            retires: rng.percent(40),
            abort: None,
        }
    }
}

/// The shapes of input and output, and their element type.
type Sizes = (Vec<u64>, Vec<u64>, &'static str);

/// A record, as the dump holds it.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    pub id: usize,
    pub group: usize,
    pub numbers: [usize; 3],
    pub name: String,
    pub size: Option<Sizes>,
    pub state: &'static str,
    pub retired: bool,
    pub line: u32,
    pub is_message: bool,
    /// Whether it is a member of a batch.
    pub is_batched: bool,
    /// When it was issued, seen to start, and seen to complete: clocks are no part of what twins are compared by.
    pub times: [Option<u64>; 3],
}

impl Record {
    /// What two jobs are compared by: everything but times.
    pub fn without_times(&self) -> Self {
        Self { times: [None; 3], ..self.clone() }
    }
}

/// What the dump of a rank holds.
#[derive(Clone)]
pub struct Log {
    pub records: Vec<Record>,
    /// The numbers of the last call of each group that was enqueued, started and completed. `pg_status` counts messages and collectives as one.
    pub status: Vec<[i64; 3]>,
}

/// Returns what the dump of a rank holds.
pub fn log(program: &Program, times: &[Times], writing: &Writing, rank: usize) -> Log {
    let now = writing.moment[rank];
    let mut made: Vec<Record> = Vec::new();
    // Numbers of collectives, messages and operations of each group.
    let mut numbers = vec![[0; 3]; program.groups.len()];
    for ((_, call), times) in program.calls(rank).zip(times) {
        let Some(issued) = times.issued.filter(|&it| it <= now) else { break };
        let number = &mut numbers[call.group];
        let ranks = &program.groups[call.group].ranks;
        let place = |it: usize| ranks.iter().position(|&other| other == it).unwrap_or(0);
        let own = place(rank);
        let message = |it: &super::program::Message| match it.sends {
            true => format!("nccl:send {own}->{}", place(it.peer)),
            false => format!("nccl:recv {own}<-{}", place(it.peer)),
        };
        let shapes = sizes(call, ranks.len() as u64);
        let mut record = Record {
            id: 0,
            group: call.group,
            numbers: *number,
            name: String::new(),
            size: Some((shapes.0, shapes.1, call.dtype.0)),
            state: "scheduled",
            retired: false,
            line: call.line,
            is_message: true,
            is_batched: false,
            times: [Some(issued), None, None],
        };
        let abort = writing.abort.filter(|&it| it <= now);
        let (started, done) = (times.started.or(abort), times.done.or(abort));
        match &call.kind {
            Kind::Batch(all) => {
                number[1] += 1;
                for it in all {
                    number[2] += 1;
                    made.push(Record {
                        id: made.len(),
                        numbers: *number,
                        name: message(it),
                        is_batched: true,
                        ..record.clone()
                    });
                }
                record.name = "nccl:coalesced".to_owned();
                record.size = None;
            }
            Kind::Message(it) => {
                (number[1], number[2]) = (number[1] + 1, number[2] + 1);
                record.name = message(it);
            }
            _ => {
                (number[0], number[2]) = (number[0] + 1, number[2] + 1);
                record.name = format!("nccl:{}", name(&call.kind));
                record.is_message = false;
            }
        }
        record.numbers = *number;
        record.id = made.len();
        observe(&mut record, started, done, rank, writing);
        made.push(record);
    }
    let mut status = vec![[-1; 3]; program.groups.len()];
    // The members of a batch are no works.
    for it in made.iter().filter(|it| !it.is_batched) {
        for (last, seen) in status[it.group].iter_mut().zip(it.times) {
            if seen.is_some() {
                *last = it.numbers[usize::from(it.is_message)] as i64;
            }
        }
    }
    let lost = made.len().saturating_sub(writing.ring);
    made.drain(..lost);
    made.retain(|it| !writing.only_active || it.state != "completed");
    Log { records: made, status }
}

/// Sets what the watchdog and the dump know of a call.
fn observe(record: &mut Record, started: Option<u64>, done: Option<u64>, rank: usize, writing: &Writing) {
    let now = writing.moment[rank];
    let seen = |at: u64| {
        let poll = (at / writing.poll + 1) * writing.poll + (rank as u64 * 7919) % writing.poll;
        if poll <= now { Some(poll) } else { (!writing.is_late && at <= now).then_some(now) }
    };
    if writing.has_timing {
        record.times[1] = started.and_then(seen);
    }
    record.times[2] = done.and_then(seen);
    record.state = match record.times {
        [_, _, Some(_)] => "completed",
        [_, Some(_), None] => "started",
        _ => "scheduled",
    };
    let timed_out = record.times[0].is_some_and(|it| it + writing.timeout_ms * 1_000_000 <= now);
    record.retired = match record.times[2] {
        Some(at) => at < now,
        None => writing.retires && timed_out,
    };
}

/// Returns the functions of PyTorch on the stack of a call, the innermost first.
fn functions(record: &Record) -> Vec<&'static str> {
    match record.name.trim_start_matches("nccl:") {
        "coalesced" => vec!["_coalescing_manager", "batch_isend_irecv"],
        "all_reduce" => vec!["all_reduce"],
        "all_reduce_barrier" => vec!["barrier"],
        "broadcast" => vec!["broadcast"],
        "reduce" => vec!["reduce"],
        "_all_gather_base" => vec!["all_gather_into_tensor"],
        "_reduce_scatter_base" => vec!["reduce_scatter_tensor"],
        "all_to_all" => vec!["all_to_all_single"],
        it if record.is_batched && it.starts_with("send") => vec!["isend", "batch_isend_irecv"],
        _ if record.is_batched => vec!["irecv", "batch_isend_irecv"],
        it if it.starts_with("send") => vec!["send"],
        _ => vec!["recv"],
    }
}

fn name(kind: &Kind) -> &'static str {
    match kind {
        Kind::AllReduce => "all_reduce",
        Kind::Barrier => "all_reduce_barrier",
        Kind::Broadcast(_) => "broadcast",
        Kind::Reduce(_) => "reduce",
        Kind::AllGather => "_all_gather_base",
        Kind::ReduceScatter => "_reduce_scatter_base",
        Kind::AllToAll => "all_to_all",
        Kind::Message(_) | Kind::Batch(_) => "",
    }
}

/// Returns the shapes of input and output.
fn sizes(call: &Call, members: u64) -> (Vec<u64>, Vec<u64>) {
    let shape = |size: u64| vec![size];
    match call.kind {
        Kind::AllGather => (shape(call.size), shape(call.size * members)),
        Kind::ReduceScatter => (shape(call.size * members), shape(call.size)),
        Kind::AllToAll => (vec![members, call.size], vec![members, call.size]),
        _ => (shape(call.size), shape(call.size)),
    }
}

/// The time of the job's start, nanoseconds since 1970.
const START: i64 = 1_760_000_000_000_000_000;

/// Returns the file of a rank: a pickle as JSON if it has stacks, PyTorch's own JSON otherwise.
pub fn file(program: &Program, log: &Log, writing: &Writing, rank: usize) -> Value {
    let clock = |it: Option<u64>| match it {
        Some(at) => json!(START + at as i64 + writing.skew[rank]),
        None if writing.has_frames => Value::Null,
        None => json!(0),
    };
    // Groups are numbered in each process.
    let own: Vec<usize> =
        (0..program.groups.len()).filter(|&it| program.groups[it].ranks.contains(&rank)).collect();
    let pg_id = |group: usize| own.iter().position(|&it| it == group);
    let entries: Vec<Value> = log
        .records
        .iter()
        .map(|it| {
            let mut value = entry(program, it, writing, &clock);
            value["pg_id"] = json!(pg_id(it.group));
            value
        })
        .collect();
    let mut groups = serde_json::Map::new();
    let mut status = serde_json::Map::new();
    for (number, &group) in own.iter().enumerate() {
        let it = &program.groups[group];
        let ranks: Vec<String> = it.ranks.iter().map(usize::to_string).collect();
        let ranks = format!("[{}]", ranks.join(", "));
        groups.insert(it.name.clone(), json!({ "name": it.name, "desc": it.desc, "ranks": ranks }));
        let shown = |it: i64| if writing.has_frames { json!(it) } else { json!(it.to_string()) };
        let [enqueued, started, completed] = log.status[group].map(shown);
        let value = json!({
            "last_enqueued_collective": enqueued, "last_started_collective": started,
            "last_completed_collective": completed,
        });
        status.insert(number.to_string(), value);
    }
    json!({
        "version": "2.10", "comm_lib_version": "2.27.5", "nccl_comm_state": {},
        "pg_config": groups, "pg_status": status, "entries": entries,
    })
}

fn entry(program: &Program, it: &Record, writing: &Writing, clock: &dyn Fn(Option<u64>) -> Value) -> Value {
    let group = &program.groups[it.group];
    let list = |of: &dyn Fn(&Sizes) -> Value| match &it.size {
        Some(size) => json!([of(size)]),
        None => json!([]),
    };
    let mut value = json!({
        "record_id": it.id, "process_group": [group.name, group.desc],
        "collective_seq_id": it.numbers[0], "p2p_seq_id": it.numbers[1], "op_id": it.numbers[2],
        "profiling_name": it.name, "state": it.state, "retired": it.retired, "is_p2p": it.is_message,
        "timeout_ms": writing.timeout_ms, "thread_id": "139872", "thread_name": "python",
        "time_created_ns": clock(it.times[0]),
        "time_discovered_started_ns": clock(it.times[1]),
        "time_discovered_completed_ns": clock(it.times[2]),
        "input_sizes": list(&|size| json!(size.0)), "output_sizes": list(&|size| json!(size.1)),
        "input_dtypes": list(&|size| json!(size.2)), "output_dtypes": list(&|size| json!(size.2)),
    });
    if writing.has_frames {
        let library = "/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py";
        let called =
            functions(it).into_iter().map(|name| json!({ "name": name, "filename": library, "line": 2900 }));
        // A branch that others do not take is a function of its own: no line of `step` that is before a call is behind it in the file.
        let own = [(if it.line < 200 { "step" } else { "branch" }, it.line), ("<module>", 300)];
        let own = own.map(|(name, line)| json!({ "name": name, "filename": "/job/train.py", "line": line }));
        value["frames"] = called.chain(own).collect();
    }
    value
}
