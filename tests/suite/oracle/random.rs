//! Random programs, without the waits that they need.

use super::program::{Item, Kind, Node, Program, Role, Scalar, Shape, Stmt, Stream};
use crate::rng::Rng;

const INPUT: usize = 0;
pub const SHARDED: usize = 1;
const OUT: usize = 2;
const WIDE_OUT: usize = 3;
const LOCALS: [usize; 3] = [4, 5, 6];
const WIDE: usize = 7;
pub const SYMMETRIC: usize = 8;
pub const VIEW: usize = 9;
/// Views of rows.
const ROWS: [usize; 3] = [10, 11, 12];

/// Which statements a program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Streams, storage, loops and views of rows.
    Local,
    /// And collectives.
    Collectives,
    /// And sends, receives and groups.
    Messages,
    /// And transfers over peer memory, and symmetric memory.
    Peers,
    /// All.
    All,
}

pub const MIXES: [Mix; 5] = [Mix::Local, Mix::Collectives, Mix::Messages, Mix::Peers, Mix::All];

pub struct Builder<'a> {
    pub rng: &'a mut Rng,
    pub program: Program,
    pub mix: Mix,
    pub number: usize,
    /// Parts that have been written, and those that may be.
    pub written: Vec<usize>,
    pub bound: Vec<usize>,
    pub streams: usize,
    pub posted: Vec<(usize, Stream)>,
    pub all: u8,
}

/// Returns a random program without the waits that it needs.
pub fn skeleton(rng: &mut Rng, mix: Mix) -> Program {
    let ranks = if mix == Mix::Local && rng.below(2) == 0 { 1 } else { 2 + rng.below(2) };
    let shapes = [
        Shape::Part,
        Shape::Shard,
        Shape::Part,
        Shape::Wide,
        Shape::Part,
        Shape::Part,
        Shape::Part,
        Shape::Wide,
    ];
    let roles = [Role::Input, Role::Input, Role::Output, Role::Output];
    let local = |at: usize| roles.get(at).copied().unwrap_or(Role::Local);
    let mut tensors: Vec<_> = shapes.iter().enumerate().map(|it| (*it.1, local(it.0))).collect();
    tensors.extend([(Shape::Shard, Role::Symmetric), (Shape::Wide, Role::View)]);
    tensors.extend(ROWS.map(|_| (Shape::Part, Role::View)));
    let program = Program { ranks, tensors, nodes: Vec::new() };
    let streams = 1 + rng.below(3);
    let all = (1 << ranks) - 1;
    let (written, bound) = (vec![INPUT], Vec::new());
    let mut it = Builder { rng, program, mix, number: 0, written, bound, streams, posted: Vec::new(), all };
    it.allocate(OUT);
    it.allocate(WIDE_OUT);
    for _ in 0..3 + it.rng.below(9) {
        it.action();
    }
    for tensor in [OUT, WIDE_OUT] {
        if !it.written.contains(&tensor) {
            let from = vec![it.part(true)];
            let stream = it.stream();
            it.push(stream, Stmt::Compute { out: vec![tensor], from });
        }
    }
    it.program
}

impl Builder<'_> {
    pub fn stream(&mut self) -> Stream {
        self.rng.below(self.streams).checked_sub(1).map(Scalar::Const)
    }

    pub fn push(&mut self, stream: Stream, stmt: Stmt) {
        self.push_on(self.all, stream, stmt);
    }

    pub fn push_on(&mut self, ranks: u8, stream: Stream, stmt: Stmt) {
        self.program.nodes.push(Node::One(Item { ranks, stream, stmt }));
    }

    pub fn allocate(&mut self, tensor: usize) {
        let (stream, zero) =
            (if self.rng.below(3) == 0 { self.stream() } else { None }, self.rng.below(3) > 0);
        self.push(stream, Stmt::Allocate { tensor, zero });
        self.bound.push(tensor);
        if zero {
            self.written.push(tensor);
        }
    }

    pub fn is_part(&self, tensor: usize) -> bool {
        self.program.tensors[tensor].0 == Shape::Part
    }

    /// Returns a part to read or to write.
    pub fn part(&mut self, reads: bool) -> usize {
        let all = if reads { &self.written } else { &self.bound };
        let all: Vec<usize> = all.iter().copied().filter(|it| self.is_part(*it)).collect();
        self.rng.choose_cloned(&all)
    }

    /// Returns a tensor that has a part for each rank, to read or to write.
    pub fn wide(&mut self, reads: bool) -> usize {
        if !self.bound.contains(&WIDE) {
            self.allocate(WIDE);
        }
        let all: Vec<usize> =
            [WIDE, WIDE_OUT].into_iter().filter(|it| !reads || self.written.contains(it)).collect();
        let it = if all.is_empty() { WIDE } else { self.rng.choose_cloned(&all) };
        if reads && !self.written.contains(&it) {
            let stream = self.stream();
            self.push(stream, Stmt::Compute { out: vec![it], from: vec![INPUT] });
            self.written.push(it);
        }
        it
    }

    pub fn wrote(&mut self, tensor: usize) {
        if !self.written.contains(&tensor) {
            self.written.push(tensor);
        }
    }

    pub fn action(&mut self) {
        let limit = match self.mix {
            Mix::Local => 9,
            Mix::Collectives => 13,
            Mix::Messages | Mix::Peers | Mix::All => 17,
        };
        match self.rng.below(limit) {
            0..=3 => self.compute(),
            4 | 5 => match LOCALS.into_iter().find(|it| !self.bound.contains(it)) {
                Some(it) => self.allocate(it),
                None => self.free(),
            },
            6 => self.free(),
            7 if self.rng.below(2) == 0 => self.select(),
            7 => self.rows(),
            8 => match self.rng.below(6) {
                0 => {
                    let stream = self.stream();
                    self.push(stream, Stmt::HostSync);
                }
                1..=3 => {
                    let (stream, other) = (self.stream(), self.stream());
                    if stream != other {
                        self.push(stream, Stmt::Sync(other));
                    }
                }
                _ => self.wait(),
            },
            9..=12 => self.collective(),
            _ => match (self.mix, self.rng.below(4)) {
                (Mix::Messages, _) | (Mix::All, 0 | 1) => self.messages(),
                (Mix::Peers, 0) | (Mix::All, 2) => self.view(),
                _ => self.transfer(),
            },
        }
    }

    pub fn compute(&mut self) {
        let (out, mut from) = (self.part(false), vec![self.part(true)]);
        if self.rng.below(3) == 0 {
            from.push(self.part(true));
        }
        let ranks = if self.rng.below(4) == 0 { 1 << self.rng.below(self.program.ranks) } else { self.all };
        let stream = self.stream();
        self.push_on(ranks, stream, Stmt::Compute { out: vec![out], from });
        if ranks == self.all {
            self.wrote(out);
        }
    }

    pub fn free(&mut self) {
        let locals: Vec<usize> = LOCALS.into_iter().filter(|it| self.bound.contains(it)).collect();
        if let Some(&tensor) = locals.get(self.rng.below(locals.len())) {
            self.push(None, Stmt::Free(tensor));
            self.bound.retain(|it| *it != tensor);
            self.written.retain(|it| *it != tensor);
        }
    }

    /// Binds a name to a row.
    pub fn select(&mut self) {
        let of = self.wide(true);
        let row = self.rng.below(self.program.ranks);
        let out = ROWS[self.rng.below(ROWS.len())];
        let index = if self.rng.below(3) == 0 { Scalar::Rank(row) } else { Scalar::Const(row) };
        self.push(None, Stmt::Select { out, of, index });
        if !self.bound.contains(&out) {
            self.bound.push(out);
        }
        self.wrote(out);
    }

    /// A loop over the rows of a tensor.
    pub fn rows(&mut self) {
        let of = self.wide(false);
        let out = ROWS[0];
        let stream = if self.rng.below(3) == 0 { self.stream() } else { Some(Scalar::Index) };
        let from = loop {
            let it = self.part(true);
            if it != out {
                break it;
            }
        };
        let item = |stmt| Item { ranks: self.all, stream, stmt };
        let mut body = vec![item(Stmt::Select { out, of, index: Scalar::Index })];
        if self.mix != Mix::Local && self.rng.below(2) == 0 {
            let team: Vec<usize> = (0..self.program.ranks).collect();
            let (number, kind, root) = (self.number, Kind::Allreduce, 0);
            self.number += 1;
            body.push(item(Stmt::Collective { number, kind, team, root, input: from, output: out }));
            body.push(item(Stmt::Wait(number)));
        } else {
            body.push(item(Stmt::Compute { out: vec![out], from: vec![from] }));
        }
        self.program.nodes.push(Node::Loop(self.program.ranks, body));
        self.bound.retain(|it| *it != out);
        self.written.retain(|it| *it != out);
        self.wrote(of);
    }

    pub fn wait(&mut self) {
        if !self.posted.is_empty() {
            let (number, on) = self.posted.swap_remove(self.rng.below(self.posted.len()));
            let stream = if self.rng.below(3) == 0 { self.stream() } else { on };
            self.push(stream, Stmt::Wait(number));
        }
    }

    pub fn collective(&mut self) {
        let ranks = self.program.ranks;
        let mut team: Vec<usize> = (0..ranks).collect();
        let is_part = self.rng.below(4) == 0 && ranks > 2;
        if is_part {
            team.remove(self.rng.below(ranks));
        }
        let kinds = [
            Kind::Allreduce,
            Kind::Broadcast,
            Kind::Reduce,
            Kind::SendRecv,
            Kind::CollectivePermute(1),
            Kind::Allgather,
            Kind::ReduceScatter,
            Kind::AllToAll,
            Kind::Gather,
            Kind::Scatter,
        ];
        let mut kind = self.rng.choose_cloned(if is_part { &kinds[..3] } else { &kinds });
        if kind == Kind::SendRecv && team.len() != 2 {
            kind = Kind::Allreduce;
        }
        let root = self.rng.below(team.len());
        let (input, output) = match kind {
            Kind::Allgather | Kind::Gather => (self.part(true), self.wide(false)),
            Kind::ReduceScatter | Kind::Scatter => (self.wide(true), self.part(false)),
            Kind::AllToAll => (self.wide(true), self.wide(false)),
            _ => (self.part(true), self.part(false)),
        };
        let (input, output) = self.in_place(kind, (input, output), is_part);
        let number = self.number;
        self.number += 1;
        let ranks_of = team.iter().fold(0, |all, it| all | 1 << it);
        let stream = self.stream();
        let stmt = Stmt::Collective { number, kind, team: team.clone(), root, input, output };
        if self.rng.below(6) == 0 {
            for rank in team {
                let stream = self.stream();
                self.push_on(1 << rank, stream, stmt.clone());
            }
        } else {
            self.push_on(ranks_of, stream, stmt);
        }
        if matches!(
            kind,
            Kind::Allreduce
                | Kind::Allgather
                | Kind::ReduceScatter
                | Kind::AllToAll
                | Kind::Scatter
                | Kind::Broadcast
                | Kind::CollectivePermute(_)
        ) && !is_part
        {
            self.wrote(output);
        }
        self.later(ranks_of, number, stream);
    }

    /// Sometimes the part of the rank is a row of the tensor that has all parts.
    pub fn in_place(&mut self, kind: Kind, (input, output): (usize, usize), is_part: bool) -> (usize, usize) {
        if self.rng.below(3) > 0 || is_part {
            return (input, output);
        }
        let out = ROWS[1];
        let of = if kind == Kind::Allgather { output } else { input };
        match kind {
            Kind::Allgather | Kind::ReduceScatter => {
                let index = Scalar::Rank(if self.rng.below(6) == 0 { 1 } else { 0 });
                self.push(None, Stmt::Select { out, of, index });
                if !self.bound.contains(&out) {
                    self.bound.push(out);
                }
                if self.written.contains(&of) {
                    self.wrote(out);
                } else if kind == Kind::Allgather {
                    let stream = self.stream();
                    self.push(stream, Stmt::Compute { out: vec![out], from: vec![INPUT] });
                    self.wrote(out);
                }
                if kind == Kind::Allgather { (out, output) } else { (input, out) }
            }
            _ => (input, output),
        }
    }

    /// A Wait now or later.
    pub fn later(&mut self, ranks: u8, number: usize, stream: Stream) {
        if self.rng.below(2) == 0 || ranks != self.all {
            if self.rng.below(3) > 0 {
                self.push_on(ranks, stream, Stmt::Wait(number));
            }
        } else {
            self.posted.push((number, stream));
        }
    }
}
