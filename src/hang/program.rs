//! Writes the calls that do not proceed as a Host IR program.
//!
//! The program has the calls that did not finish, for each rank in its order: all of them were issued, so that a rank posts all of them and then waits. What
//! completed is left out. A group whose members made different calls becomes several teams, one for each side: in Host IR, members of one team that
//! post different communications are rejected before they run. Sizes are numbered, so that equal ones stay equal. Every collective but broadcast and
//! reduce is an all-reduce of the same members, with the name of the call beside it.
//!
//! `hir-run` deadlocks on it if the order, the members or the peers of the calls are why they hang. A receive from any rank has no counterpart
//! and is left out, and what the records do not hold (E0808) is not in the program either, so that it may complete.

use std::fmt::Write;

use rustc_hash::FxHashMap;

use crate::{
    cause::{Cause, analyse},
    dumps::Dumps,
    queues::{Call, Job},
    record::{Batch, GroupId, Kind, Peer, Rank},
    stall::Place,
    wording::{operands, place, what},
};

/// Returns the program.
pub fn program(dumps: &Dumps) -> String {
    let unreadable: Vec<Rank> = dumps.skipped.iter().map(|it| it.rank).collect();
    let job = Job::new(&dumps.records, &unreadable);
    let mut writer = Writer {
        job: &job,
        sides: sides(&job),
        sizes: FxHashMap::default(),
        numbers: FxHashMap::default(),
        teams: Vec::new(),
        orders: FxHashMap::default(),
    };
    let bodies = job.world.iter().map(|rank| (*rank, writer.body(*rank)));
    let bodies: Vec<(Rank, Vec<Statement>)> = bodies.collect();
    let mut text = header(&job, writer.sizes.len());
    let mut number = 10;
    let mut begin = 0;
    while begin < bodies.len() {
        let (first, body) = &bodies[begin];
        let same =
            bodies[begin..].windows(2).take_while(|it| it[1].0 == it[0].0 + 1 && it[1].1 == *body).count();
        if !body.is_empty() {
            writer.write_ranks(&mut text, (*first, bodies[begin + same].0), body, &mut number);
        }
        begin += same + 1;
    }
    text.push_str("} // %HostIrContainer\n");
    text
}

/// Returns the header, which spells each tensor in full, and what gives the outputs their values.
fn header(job: &Job<'_>, sizes: usize) -> String {
    let count = job.world.last().map_or(1, |it| it + 1);
    let mesh = (0..count).map(|it| it.to_string()).collect::<Vec<_>>().join(" ");
    let tensor = |number: usize, size: usize| {
        format!("T{number}_g_float[iS{number}{{{size}}}] (DeviceMesh{{{mesh}}})")
    };
    let list =
        |of: fn(usize) -> usize| (1..=sizes).map(|it| tensor(of(it), it)).collect::<Vec<_>>().join(", ");
    let mut text =
        String::from("// The calls that did not finish, from the flight recorder.\n%options roots=team\n");
    let _ = writeln!(text, "%HostIrContainer {{ ({}) -> ({}) :", list(input_of), list(output_of));
    for size in 1..=sizes {
        let _ = writeln!(text, "  T{}\n     = Set( T{} )", output_of(size), input_of(size));
    }
    text
}

/// Returns the number of the tensor that calls with a numbered size read.
fn input_of(size: usize) -> usize {
    2 * size
}

/// Returns the number of the tensor that they write.
fn output_of(size: usize) -> usize {
    2 * size + 1
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
            Cause::Uneven { queue, seq, deviating } => {
                let queue = &job.queues[queue];
                let side = |rank: Rank| usize::from(deviating.iter().any(|it| it.rank == rank));
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

/// A call of a rank. Ranks whose statements are equal share a branch.
#[derive(PartialEq, Eq)]
struct Statement {
    remark: String,
    operation: Operation,
    size: usize,
}

#[derive(PartialEq, Eq)]
enum Operation {
    Send {
        peer: Rank,
    },
    Receive {
        peer: Rank,
    },
    /// The type of a communication, with its attributes, and the index of the team.
    Collective {
        kind: &'static str,
        attributes: &'static str,
        team: usize,
    },
}

struct Writer<'j> {
    job: &'j Job<'j>,
    sides: Sides,
    sizes: FxHashMap<i64, usize>,
    /// The teams of groups and sides, by index.
    numbers: FxHashMap<(GroupId, usize), usize>,
    teams: Vec<String>,
    /// The number of teams that have these members.
    orders: FxHashMap<Vec<Rank>, usize>,
}

impl Writer<'_> {
    /// Returns the statements of a rank.
    fn body(&mut self, rank: Rank) -> Vec<Statement> {
        open_calls(self.job, &self.sides, rank).into_iter().map(|it| self.statement(it)).collect()
    }

    fn statement(&mut self, call: Call) -> Statement {
        let record = self.job.record(call);
        let signature = self.job.records.signature(record.signature);
        let next = self.sizes.len() + 1;
        let size = *self.sizes.entry(signature.elements()).or_insert(next);
        let at = place(self.job, call).map(|it| format!(", {it}")).unwrap_or_default();
        let remark = format!("// {}({}){at}", what(self.job, call), operands(self.job, call));
        let operation = match (signature.kind, record.peer) {
            (Kind::Send, Peer::Rank(peer)) => Operation::Send { peer },
            (Kind::Recv, Peer::Rank(peer)) => Operation::Receive { peer },
            (kind, _) => {
                let (kind, attributes) = match kind {
                    Kind::Broadcast => ("Broadcast", "root=0"),
                    Kind::Reduce => ("Reduce", "root=0, red_op=SUM"),
                    _ => ("Allreduce", "red_op=SUM"),
                };
                Operation::Collective { kind, attributes, team: self.team(record.group, call.rank) }
            }
        };
        Statement { remark, operation, size }
    }

    /// Returns the team of a group and side: its members, in another order than those of every other one. Host IR tells teams apart by their
    /// order.
    fn team(&mut self, group: GroupId, rank: Rank) -> usize {
        let side = self.sides.get(&(group, rank)).map_or(0, |it| it.0);
        if let Some(known) = self.numbers.get(&(group, side)) {
            return *known;
        }
        let mut members = self.job.queue(group).map(|it| it.members.clone()).unwrap_or_default();
        let used = self.orders.entry(members.clone()).or_insert(0);
        if !members.is_empty() {
            let count = members.len();
            if *used / count % 2 == 1 {
                members.reverse();
            }
            members.rotate_left(*used % count);
        }
        *used += 1;
        let team = self.teams.len();
        self.teams.push(members.iter().map(Rank::to_string).collect::<Vec<_>>().join(" "));
        self.numbers.insert((group, side), team);
        team
    }

    fn write_ranks(
        &self,
        text: &mut String,
        (first, last): (Rank, Rank),
        body: &[Statement],
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
        for it in body {
            let (input, output) = (input_of(it.size), output_of(it.size));
            let _ = writeln!(text, "{indent}{}", it.remark);
            let _ = match &it.operation {
                Operation::Send { peer } => writeln!(
                    text,
                    "{indent}P2PCommunication {number} (type=send, buffer=T{input}, peer={peer}, backend=NCCL)"
                ),
                Operation::Receive { peer } => writeln!(
                    text,
                    "{indent}P2PCommunication {number} (type=recv, buffer=T{output}, peer={peer}, backend=NCCL)"
                ),
                Operation::Collective { kind, attributes, team } => writeln!(
                    text,
                    "{indent}Communication {number} (type={kind}, team=({}), {attributes}, input=T{input}, output=T{output}, backend=NCCL)",
                    self.teams[*team]
                ),
            };
            *number += 1;
        }
        for number in begin..*number {
            let _ = writeln!(text, "{indent}Wait(Communication {number})");
        }
    }
}
