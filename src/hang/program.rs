//! Writes the calls that do not proceed as a Host IR program, on which `hir-run` deadlocks as the job did.
//!
//! The program has the calls that did not finish, for each rank in its order: all of them were issued, so that a rank posts all of them and then waits. What
//! completed is left out. A group whose members made different calls becomes several teams, one for each side: in Host IR, members of one team that
//! post different communications are rejected before they run. Sizes are numbered, so that equal ones stay equal. What Host IR has
//! other rules for (gather, scatter, all-to-all) is an all-reduce of the same members, with the name of the call beside it.

use std::fmt::Write;

use rustc_hash::FxHashMap;

use crate::{
    cause::{Cause, analyse},
    files::Dumps,
    queues::{Call, Job},
    record::{Batch, GroupId, Kind, Peer, Rank},
    stall::Place,
    wording::{operands, place, what},
};

/// Returns the program.
pub fn program(dumps: &Dumps) -> String {
    let unreadable: Vec<Rank> = dumps.skipped.iter().map(|it| it.rank).collect();
    let job = Job::new(&dumps.records, &unreadable);
    let mut writer =
        Writer { job: &job, sides: sides(&job), sizes: FxHashMap::default(), teams: FxHashMap::default() };
    let bodies: Vec<(Rank, Vec<Call>)> =
        job.world.iter().map(|it| (*it, open_calls(&job, &writer.sides, *it))).collect();
    let mut text = String::new();
    let mut number = 10;
    let mut begin = 0;
    while begin < bodies.len() {
        let body = writer.body(&bodies[begin].1);
        let same = bodies[begin..]
            .windows(2)
            .take_while(|it| it[1].0 == it[0].0 + 1 && writer.body(&it[1].1) == body);
        let end = begin + same.count();
        if !body.is_empty() {
            writer.write_ranks(&mut text, (bodies[begin].0, bodies[end].0), &body, &mut number);
        }
        begin = end + 1;
    }
    let count = job.world.last().map_or(1, |it| it + 1);
    let mesh = (0..count).map(|it| it.to_string()).collect::<Vec<_>>().join(" ");
    let tensor = |number: usize, size: usize| {
        format!("T{number}_g_float[iS{number}{{{size}}}] (DeviceMesh{{{mesh}}})")
    };
    let mut header = String::from("// The calls that did not finish, from the flight recorder.\n");
    let sizes = 1..=writer.sizes.len();
    let inputs: Vec<String> = sizes.clone().map(|it| tensor(2 * it, it)).collect();
    let outputs: Vec<String> = sizes.clone().map(|it| tensor(2 * it + 1, it)).collect();
    let _ = writeln!(header, "%HostIrContainer {{ ({}) -> ({}) :", inputs.join(", "), outputs.join(", "));
    for size in sizes {
        let _ =
            writeln!(header, "  {}\n     = Set( {} )", tensor(2 * size + 1, size), tensor(2 * size, size));
    }
    // The tensors of a body are known by then.
    for size in 1..=writer.sizes.len() {
        for number in [2 * size, 2 * size + 1] {
            text = text.replace(&format!("${number}$"), &tensor(number, size));
        }
    }
    format!("{header}{text}}} // %HostIrContainer\n")
}

/// The side on which each rank is in a group whose members made different calls, and the position from which on.
type Sides = FxHashMap<(GroupId, Rank), (usize, u32)>;

fn sides(job: &Job<'_>) -> Sides {
    let mut sides = Sides::default();
    let mut found = analyse(job);
    for cause in std::mem::take(&mut found.causes) {
        match cause {
            Cause::Diverged(it) => {
                let group = job.queues[it.queue].group;
                let mut known: Vec<u32> = Vec::new();
                for call in it.calls() {
                    let key = job.key(*call);
                    let side = known.iter().position(|it| *it == key).unwrap_or_else(|| {
                        known.push(key);
                        known.len() - 1
                    });
                    sides.insert((group, call.rank), (side, it.seq));
                }
            }
            Cause::Uneven { queue, seq, odd } => {
                let queue = &job.queues[queue];
                let side = |rank: Rank| usize::from(odd.iter().any(|it| it.rank == rank));
                sides.extend(queue.lanes.iter().map(|it| ((queue.group, it.rank), (side(it.rank), seq))));
            }
            // Those that completed it are in a later call.
            Cause::Unknown { stall } => {
                let stall = &found.stalls[stall];
                if let Place::Collective { seq, .. } = stall.place {
                    let group = stall.group(job);
                    sides.extend(stall.behind.iter().map(|it| ((group, *it), (1, seq + 1))));
                }
            }
            _ => (),
        }
    }
    sides
}

/// Returns the calls of a rank that did not finish, and those of a group from where its members differ.
fn open_calls(job: &Job<'_>, sides: &Sides, rank: Rank) -> Vec<Call> {
    let Some(log) = job.records.log(rank) else { return Vec::new() };
    let calls = log.records.iter().enumerate().filter(|(_, record)| {
        let is_marker = record.batch == Batch::P2pEnd;
        let is_member = record.batch == Batch::Member && record.peer == Peer::None;
        let differs = record.peer == Peer::None
            && sides.get(&(record.group, rank)).is_some_and(|it| record.seq >= it.1);
        (!record.done || differs) && !is_marker && !is_member && record.peer != Peer::Any
    });
    calls.map(|(at, _)| Call { rank, at: at as u32 }).collect()
}

struct Writer<'j> {
    job: &'j Job<'j>,
    sides: Sides,
    sizes: FxHashMap<i64, usize>,
    /// The groups and sides with the same members, in the order of their teams.
    teams: FxHashMap<Vec<Rank>, Vec<(GroupId, usize)>>,
}

impl Writer<'_> {
    /// Returns the statements of calls, with `#` for the number of each.
    fn body(&mut self, calls: &[Call]) -> Vec<String> {
        calls.iter().map(|it| self.statement(*it)).collect()
    }

    fn statement(&mut self, call: Call) -> String {
        let record = self.job.record(call);
        let signature = self.job.records.signature(record.signature);
        let next = self.sizes.len() + 1;
        let size = *self.sizes.entry(signature.elements()).or_insert(next);
        let (input, output) = (format!("${}$", 2 * size), format!("${}$", 2 * size + 1));
        let at = place(self.job, call).map(|it| format!(", {it}")).unwrap_or_default();
        let remark = format!("// {}({}){at}", what(self.job, call), operands(self.job, call));
        let statement = match (signature.kind, record.peer) {
            (Kind::Send, Peer::Rank(peer)) => {
                format!("P2PCommunication # (type=send, buffer={input}, peer={peer}, backend=NCCL)")
            }
            (Kind::Recv, Peer::Rank(peer)) => {
                format!("P2PCommunication # (type=recv, buffer={output}, peer={peer}, backend=NCCL)")
            }
            (kind, _) => {
                let team = self.team(record.group, call.rank);
                let kind = match kind {
                    Kind::Broadcast => "type=Broadcast, team=TEAM, root=0",
                    Kind::Reduce => "type=Reduce, team=TEAM, root=0, red_op=SUM",
                    _ => "type=Allreduce, team=TEAM, red_op=SUM",
                };
                let kind = kind.replace("TEAM", &format!("({team})"));
                format!("Communication # ({kind}, input={input}, output={output}, backend=NCCL)")
            }
        };
        format!("{remark}\n{statement}")
    }

    /// Returns the team of a group and side: its members, in another order than those of every other one. Host IR tells teams apart by their
    /// order.
    fn team(&mut self, group: GroupId, rank: Rank) -> String {
        let queue = self.job.queues.iter().find(|it| it.group == group);
        let mut members = queue.map(|it| it.members.clone()).unwrap_or_default();
        let side = self.sides.get(&(group, rank)).map_or(0, |it| it.0);
        let known = self.teams.entry(members.clone()).or_default();
        let number = known.iter().position(|it| *it == (group, side)).unwrap_or_else(|| {
            known.push((group, side));
            known.len() - 1
        });
        if !members.is_empty() {
            let count = members.len();
            if number / count % 2 == 1 {
                members.reverse();
            }
            members.rotate_left(number % count);
        }
        members.iter().map(Rank::to_string).collect::<Vec<_>>().join(" ")
    }

    fn write_ranks(
        &self,
        text: &mut String,
        (first, last): (Rank, Rank),
        body: &[String],
        number: &mut usize,
    ) {
        let conditions: Vec<String> = match (first, last) {
            (first, last) if first == last => vec![format!("rank == {first}")],
            (first, last) => vec![format!("rank >= {first}"), format!("rank <= {last}")],
        };
        let mut indent = "  ".to_owned();
        for condition in conditions {
            let _ = writeln!(text, "{indent}IF Manual ( {condition} ):");
            indent.push_str("  ");
        }
        let begin = *number;
        for statement in body {
            for line in statement.lines() {
                let line = if line.starts_with("//") {
                    line.to_owned()
                } else {
                    line.replacen('#', &number.to_string(), 1)
                };
                let _ = writeln!(text, "{indent}{line}");
            }
            *number += 1;
        }
        for number in begin..*number {
            let _ = writeln!(text, "{indent}Wait(Communication {number})");
        }
    }
}
