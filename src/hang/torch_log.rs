//! Reads what PyTorch's watchdog of NCCL prints: logs of a job without a flight recorder, or beside its dumps.
//!
//! From `ProcessGroupNCCL.cpp`. Lines of a call that timed out have `WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)`;
//! before 2.1 `TensorShape=[1]` or no size, before 2.0 no number. Others have the last numbers of a group: `last enqueued NCCL work: 5, last completed NCCL work:
//! 4` (since 2.6 without `NCCL`). With the recorder, `Stack trace of the failed collective:` is followed by `#0 all_reduce from FILE:LINE`.
//!
//! `[rankN]:` (since 2.2) and the label of `srun -l` are ranks of the world; `[Rank r]` and `[PG … Rank r]` those of a group, which
//! is the world if nothing else is said. What the lines do not name has completed or was not made, as in dumps of active calls.

use std::collections::BTreeMap;

use crate::{
    host::{self, Hosts, Place, behind, number},
    record::{
        Batch, Frame, Group, GroupId, GroupStatus, Interners, Kind, MAX_RANK, NameId, Peer, Rank, RankLog,
        Record, Signature, SignatureId, Stack, StackId, State,
    },
};

/// The frames of a stack, and the ranks of a log, that are kept.
const MAX_FRAMES: usize = 512;
const MAX_LOGS: usize = 1 << 16;

/// What a log says of one rank.
#[derive(Default)]
struct Lines {
    /// The calls that timed out, by group and number.
    calls: BTreeMap<(String, u32), (Signature, Vec<Place>)>,
    /// The last numbers that are enqueued and completed, by group.
    last: BTreeMap<String, (i64, i64)>,
    /// The groups with their descriptions.
    descriptions: BTreeMap<String, String>,
    current: Option<(String, u32)>,
}

/// Returns whether a text has lines of the watchdog.
pub(crate) fn is_log(text: &str) -> bool {
    text.contains("WorkNCCL(") || text.contains("last enqueued") || text.contains("Last enqueued")
}

/// Makes the log of each rank that a text names.
pub(crate) fn read(text: &str, file: &str, tables: &Interners, hosts: &mut Hosts) -> Vec<(Rank, RankLog)> {
    let mut ranks: BTreeMap<Rank, Lines> = BTreeMap::new();
    let mut in_stack = None;
    for line in text.lines() {
        if let Some(frame) = in_stack.and_then(|rank: Rank| Some((rank, frame_of(line)?))) {
            let lines = ranks.entry(frame.0).or_default();
            if let Some((_, stack)) = lines.current.as_ref().and_then(|it| lines.calls.get_mut(it)) {
                stack.extend((stack.len() < MAX_FRAMES).then_some(frame.1));
            }
            continue;
        }
        in_stack = None;
        let Some(rank) = rank_of(line).filter(|_| ranks.len() < MAX_LOGS) else { continue };
        let group = group_of(line);
        let name = || group.as_ref().map_or("0", |it| it.0.as_str()).to_owned();
        if line.contains("Stack trace of the failed collective:") {
            in_stack = Some(rank);
        } else if let Some((seq, signature)) = call_of(line) {
            let key = (name(), seq);
            hosts.entry(rank).or_default().timed_out |= line.contains("timeout:");
            let own = ranks.entry(rank).or_default();
            own.calls.entry(key.clone()).or_insert((signature, Vec::new()));
            own.current = Some(key);
        } else if let Some(last) = last_of(line) {
            ranks.entry(rank).or_default().last.insert(name(), last);
        } else {
            continue;
        }
        if let Some((name, description)) = group {
            ranks.entry(rank).or_default().descriptions.insert(name, description);
        }
    }
    let is_message = |it: &Signature| matches!(it.kind, Kind::Send | Kind::Recv);
    let log = |(rank, mut lines): (Rank, Lines)| {
        lines.calls.retain(|_, (signature, frames)| {
            if is_message(signature) {
                host::add_message(hosts, rank, &signature.name, frames);
            }
            !is_message(signature)
        });
        (rank, lines.log(rank, file, tables))
    };
    ranks.into_iter().map(log).collect()
}

impl Lines {
    fn log(self, rank: Rank, file: &str, tables: &Interners) -> RankLog {
        let description = |name: &str| self.descriptions.get(name).cloned().unwrap_or_default();
        let calls = self.calls.into_iter().map(|((group, seq), (signature, frames))| Call {
            description: description(&group),
            group,
            members: None,
            seq,
            signature,
            frames,
            is_over: true,
        });
        let last: Vec<(String, String, (i64, i64))> =
            self.last.iter().map(|it| (it.0.clone(), description(it.0), *it.1)).collect();
        log_of(rank, file, calls.collect(), &last, tables)
    }
}

/// Makes the log of a rank of the world that has printed nothing of its calls.
pub(crate) fn silent(rank: Rank, file: &str, tables: &Interners) -> RankLog {
    let world =
        Group { name: "0".to_owned(), description: String::new(), backend: "nccl".to_owned(), members: None };
    let mut log = log_of(rank, file, Vec::new(), &[], tables);
    log.groups.push(GroupId(tables.groups.intern(world)));
    log
}

/// A call that a log names.
pub(crate) struct Call {
    pub(crate) group: String,
    pub(crate) description: String,
    pub(crate) members: Option<Vec<Rank>>,
    pub(crate) seq: u32,
    pub(crate) signature: Signature,
    pub(crate) frames: Vec<Place>,
    /// Whether somebody has given it up.
    pub(crate) is_over: bool,
}

/// Makes the log of a rank of its calls that have not completed, and the last numbers that it has enqueued and completed in groups with their
/// descriptions.
pub(crate) fn log_of(
    rank: Rank,
    file: &str,
    calls: Vec<Call>,
    last: &[(String, String, (i64, i64))],
    tables: &Interners,
) -> RankLog {
    let group = |name: &str, description: &str, members: Option<Vec<Rank>>| {
        let (name, description) = (name.to_owned(), description.to_owned());
        GroupId(tables.groups.intern(Group { name, description, backend: "nccl".to_owned(), members }))
    };
    let name = |text: &str| NameId(tables.names.intern(grammar::escape_control(text)));
    let has_stacks = calls.iter().any(|it| !it.frames.is_empty());
    let members = |of: &str| calls.iter().find(|it| it.group == of).and_then(|it| it.members.clone());
    let status =
        last.iter().enumerate().map(|(number, (of, description, (enqueued, completed)))| GroupStatus {
            group: number as u32,
            of: Some(group(of, description, members(of))),
            enqueued: *enqueued,
            completed: *completed,
        });
    let status: Vec<GroupStatus> = status.collect();
    let mut records = Vec::new();
    for (number, call) in calls.into_iter().enumerate() {
        let frame = |(function, file, line): &Place| Frame {
            file: name(file),
            function: name(function),
            line: *line,
        };
        let stack = Stack { frames: call.frames.iter().map(frame).collect() };
        records.push(Record {
            signature: SignatureId(tables.signatures.intern(call.signature)),
            group: group(&call.group, &call.description, call.members),
            stack: StackId(tables.stacks.intern(stack)),
            number: number as u32,
            seq: call.seq,
            p2p_seq: 0,
            op: call.seq,
            peer: Peer::None,
            state: State::Scheduled,
            retired: call.is_over,
            done: false,
            batch: Batch::Alone,
            created: 0,
            started: 0,
            completed: 0,
            outlived: false,
            waited_long: false,
        });
    }
    let mut groups: Vec<GroupId> =
        records.iter().map(|it| it.group).chain(status.iter().filter_map(|it| it.of)).collect();
    groups.sort_unstable();
    groups.dedup();
    RankLog {
        rank,
        file: file.to_owned(),
        has_stacks,
        status,
        records,
        groups,
        lost: 1,
        has_gaps: true,
        only_active: true,
        from_log: true,
        reports_completion: true,
    }
}

fn rank_of(line: &str) -> Option<Rank> {
    let label = || line.trim_start().split_once(": ").and_then(|it| it.0.parse().ok());
    let of_group = || behind(line, "[Rank ").or_else(|| behind(line, " Rank ")).and_then(number);
    let rank = behind(line, "[rank").and_then(number).or_else(label).or_else(of_group);
    rank.filter(|it| *it <= MAX_RANK)
}

/// Returns the name and the description of the group of a line: `[PG 0 Rank 1]`, `[PG ID 0 PG GUID 0(default_pg) Rank 1]`.
fn group_of(line: &str) -> Option<(String, String)> {
    let text = behind(line, "PG GUID ").or_else(|| behind(line, "[PG "))?;
    let text = &text[..text.find(" Rank").or_else(|| text.find(']'))?];
    let (name, description) = text.split_once('(').unwrap_or((text, ""));
    Some((name.trim().to_owned(), description.trim_end_matches(')').to_owned()))
}

/// Returns the number and the signature of `WorkNCCL(…)`.
fn call_of(line: &str) -> Option<(u32, Signature)> {
    let text = behind(line, "WorkNCCL(")?;
    let of = |key: &str| behind(text, key);
    let name = of("OpType=")?.split([',', ')']).next()?.to_lowercase();
    let kind = Kind::of(&name);
    let shape = |text: &str| -> Vec<i64> {
        let list = text.trim_start_matches('[').split(']').next().unwrap_or_default();
        list.split(',').filter_map(number).collect()
    };
    let size = |key: &str| of(key).and_then(number).map(|it: i64| vec![vec![it]]);
    let inputs = of("TensorShape=").map(|it| vec![shape(it)]).or_else(|| size("NumelIn="));
    let signature = Signature {
        // As Python names it.
        name: kind.name().unwrap_or(name.trim_start_matches('_')).to_owned(),
        kind,
        inputs: inputs.unwrap_or_default(),
        outputs: size("NumelOut=").unwrap_or_default(),
        input_types: Vec::new(),
        output_types: Vec::new(),
        parts: Vec::new(),
    };
    Some((of("SeqNum=").and_then(number).unwrap_or(0), signature))
}

/// Returns the last numbers that are enqueued and completed.
fn last_of(line: &str) -> Option<(i64, i64)> {
    let text = behind(line, "ast enqueued ")?;
    let last = |text: &str| behind(text, "work: ").and_then(number);
    Some((last(text)?, last(behind(text, "last completed ")?)?))
}

/// Returns the function, file and line of `#0 all_reduce from FILE:LINE`.
fn frame_of(line: &str) -> Option<Place> {
    let text = behind(line, "#")?;
    let (_, text) = text.split_once(' ')?;
    let (function, place) = text.split_once(" from ")?;
    let (file, line) = place.rsplit_once(':')?;
    Some((function.to_owned(), file.to_owned(), line.trim().parse().ok()?))
}
