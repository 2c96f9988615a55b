//! Makes a Host IR program of the calls that do not proceed.
//!
//! The program has the calls that did not finish, for each rank in its order: all of them were issued, so that a rank posts all of them and then waits. What
//! completed is left out. A group whose members made different calls becomes several teams, one for each side: in Host IR, members of one team that
//! post different communications are rejected before they run. Sizes are numbered, so that equal ones stay equal. Every collective but broadcast and
//! reduce is an all-reduce of the same members, with the name of the call beside it.
//!
//! `hir-run` deadlocks on it if the order, the members or the peers of the calls are why they hang. A receive from any rank has no counterpart
//! and is left out, and what the records do not hold (E0808) is not in the program either, so that it may complete.

use std::sync::Arc;

use grammar::{
    attr,
    dtype::DType,
    ir::{Expr, InfixOp, Mesh, OpStmt, StmtId, TensorId},
    ops::Op,
    words::{Backend, CommunicationType, P2pType, RedOp},
};
use hir_ir::build::{Dim, ProgramBuilder, apply, assigned, numbered, op, wait};
use rustc_hash::FxHashMap;

use crate::{
    cause::{Cause, analyse},
    dumps::Dumps,
    queues::{Call, Job},
    record::{Batch, GroupId, Kind, Peer, Rank},
    stall::Place,
    wording::{operands, place, what},
};

/// Returns the text of the program.
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
        out: ProgramBuilder::default(),
        buffers: Vec::new(),
        comments: FxHashMap::default(),
    };
    let bodies = job.world.iter().map(|rank| (*rank, writer.body(*rank)));
    let bodies: Vec<(Rank, Vec<Statement>)> = bodies.collect();
    writer.declare();
    let mut begin = 0;
    while begin < bodies.len() {
        let (first, body) = &bodies[begin];
        let same =
            bodies[begin..].windows(2).take_while(|it| it[1].0 == it[0].0 + 1 && it[1].1 == *body).count();
        if !body.is_empty() {
            writer.add_ranks((*first, bodies[begin + same].0), body);
        }
        begin += same + 1;
    }
    let [inputs, outputs] = [0, 1].map(|at| writer.buffers.iter().map(|it| it[at]).collect::<Vec<_>>());
    let program = writer.out.finish(&inputs, &outputs);
    let text = grammar::print_commented(&program, &writer.comments);
    format!("// The calls that did not finish, from the flight recorder.\n{text}")
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
    /// The type of a communication, and the index of the team.
    Collective {
        kind: CommunicationType,
        team: usize,
    },
}

struct Writer<'j> {
    job: &'j Job<'j>,
    sides: Sides,
    sizes: FxHashMap<i64, usize>,
    /// The teams of groups and sides, by index.
    numbers: FxHashMap<(GroupId, usize), usize>,
    teams: Vec<Vec<usize>>,
    /// The number of teams that have these members.
    orders: FxHashMap<Vec<Rank>, usize>,
    out: ProgramBuilder,
    /// What calls with a numbered size read, and what they write.
    buffers: Vec<[TensorId; 2]>,
    comments: FxHashMap<StmtId, String>,
}

impl Writer<'_> {
    /// Returns the statements of a rank.
    fn body(&mut self, rank: Rank) -> Vec<Statement> {
        open_calls(self.job, &self.sides, rank).into_iter().map(|it| self.statement(it)).collect()
    }

    fn statement(&mut self, call: Call) -> Statement {
        let record = self.job.record(call);
        let signature = self.job.records.signature(record.signature);
        let next = self.sizes.len();
        let size = *self.sizes.entry(signature.elements()).or_insert(next);
        let at = place(self.job, call).map(|it| format!(", {it}")).unwrap_or_default();
        let remark = format!("{}({}){at}", what(self.job, call), operands(self.job, call));
        let operation = match (signature.kind, record.peer) {
            (Kind::Send, Peer::Rank(peer)) => Operation::Send { peer },
            (Kind::Recv, Peer::Rank(peer)) => Operation::Receive { peer },
            (kind, _) => {
                let kind = match kind {
                    Kind::Broadcast => CommunicationType::Broadcast,
                    Kind::Reduce => CommunicationType::Reduce,
                    _ => CommunicationType::Allreduce,
                };
                Operation::Collective { kind, team: self.team(record.group, call.rank) }
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
        self.teams.push(members.into_iter().map(|it| it as usize).collect());
        self.numbers.insert((group, side), team);
        team
    }

    /// Declares the tensors of each size, and gives those that calls write their values.
    fn declare(&mut self) {
        let count = self.job.world.last().map_or(1, |it| *it as usize + 1);
        let mesh = Arc::new(Mesh::new(vec![count], (0..count).collect()));
        for size in 1..=self.sizes.len() {
            let mut tensor = || self.out.tensor(vec![Dim::of(size as i64)], DType::Float, Arc::clone(&mesh));
            let [input, output] = [tensor(), tensor()];
            self.buffers.push([input, output]);
        }
        for [input, output] in &self.buffers {
            self.out.add(assigned(*output, apply(Op::Set, [*input])));
        }
    }

    fn add_ranks(&mut self, (first, last): (Rank, Rank), body: &[Statement]) {
        let conditions = match (first, last) {
            (first, last) if first == last => vec![(InfixOp::Eq, first)],
            (first, last) => vec![(InfixOp::Ge, first), (InfixOp::Le, last)],
        };
        for (operator, of) in &conditions {
            let (rank, of) = (self.out.rank(), self.out.int((*of).into()));
            let condition = self.out.expr(Expr::Infix(*operator, rank, of));
            self.out.begin_if(condition);
        }
        let mut posted = Vec::with_capacity(body.len());
        for it in body {
            let post = self.post(it);
            let number = self.out.work();
            let id = self.out.add(numbered(number, post.with(attr::BACKEND, Backend::Nccl)));
            self.comments.insert(id, it.remark.clone());
            posted.push(number);
        }
        for number in posted {
            self.out.add(wait(number));
        }
        conditions.iter().for_each(|_| self.out.end());
    }

    fn post(&mut self, it: &Statement) -> OpStmt {
        let [input, output] = self.buffers[it.size];
        let mut transfer = |kind, buffer, peer: Rank| {
            let peer = self.out.int(peer.into());
            op(Op::P2PCommunication)
                .with(attr::P2P_TYPE, kind)
                .with(attr::BUFFER, buffer)
                .with(attr::PEER, peer)
        };
        match it.operation {
            Operation::Send { peer } => transfer(P2pType::Send, input, peer),
            Operation::Receive { peer } => transfer(P2pType::Recv, output, peer),
            Operation::Collective { kind, team } => {
                let mut post =
                    op(Op::Communication).with(attr::TYPE, kind).with(attr::TEAM, self.teams[team].clone());
                if kind != CommunicationType::Allreduce {
                    post = post.with(attr::ROOT, self.out.int(0));
                }
                if kind != CommunicationType::Broadcast {
                    post = post.with(attr::RED_OP, RedOp::Sum);
                }
                post.with(attr::INPUT, input).with(attr::OUTPUT, output)
            }
        }
    }
}
