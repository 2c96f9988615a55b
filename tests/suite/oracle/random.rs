//! Random programs, with the waits that they need.

use super::{
    graph::{By, Rules},
    program::{Item, Kind, Node, Program, Role, Scalar, Shape, Side, Stmt, Stream},
    verdict::{Fault, faults},
};
use crate::rng::Rng;

const INPUT: usize = 0;
const SHARDED: usize = 1;
const OUT: usize = 2;
const WIDE_OUT: usize = 3;
const LOCALS: [usize; 3] = [4, 5, 6];
const WIDE: usize = 7;
const SYMMETRIC: usize = 8;
const VIEW: usize = 9;
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

struct Builder<'a> {
    rng: &'a mut Rng,
    program: Program,
    mix: Mix,
    number: usize,
    /// Parts that have been written, and those that may be.
    written: Vec<usize>,
    bound: Vec<usize>,
    streams: usize,
    posted: Vec<(usize, Stream)>,
    all: u8,
}

/// Returns a random program without the waits that it needs.
pub fn skeleton(rng: &mut Rng, mix: Mix) -> Program {
    let ranks = if mix == Mix::Local && rng.below(2) == 0 { 1 } else { 2 + rng.below(2) };
    let shapes = [Shape::Part, Shape::Shard, Shape::Part, Shape::Wide, Shape::Part, Shape::Part, Shape::Part, Shape::Wide];
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
    fn stream(&mut self) -> Stream {
        self.rng.below(self.streams).checked_sub(1).map(Scalar::Const)
    }

    fn push(&mut self, stream: Stream, stmt: Stmt) {
        self.push_on(self.all, stream, stmt);
    }

    fn push_on(&mut self, ranks: u8, stream: Stream, stmt: Stmt) {
        self.program.nodes.push(Node::One(Item { ranks, stream, stmt }));
    }

    fn allocate(&mut self, tensor: usize) {
        let (stream, zero) = (if self.rng.below(3) == 0 { self.stream() } else { None }, self.rng.below(3) > 0);
        self.push(stream, Stmt::Allocate { tensor, zero });
        self.bound.push(tensor);
        if zero {
            self.written.push(tensor);
        }
    }

    fn is_part(&self, tensor: usize) -> bool {
        self.program.tensors[tensor].0 == Shape::Part
    }

    /// Returns a part to read or to write.
    fn part(&mut self, reads: bool) -> usize {
        let all = if reads { &self.written } else { &self.bound };
        let all: Vec<usize> = all.iter().copied().filter(|it| self.is_part(*it)).collect();
        self.rng.choose_cloned(&all)
    }

    /// Returns a tensor that has a part for each rank, to read or to write.
    fn wide(&mut self, reads: bool) -> usize {
        if !self.bound.contains(&WIDE) {
            self.allocate(WIDE);
        }
        let all: Vec<usize> = [WIDE, WIDE_OUT].into_iter().filter(|it| !reads || self.written.contains(it)).collect();
        let it = if all.is_empty() { WIDE } else { self.rng.choose_cloned(&all) };
        if reads && !self.written.contains(&it) {
            let stream = self.stream();
            self.push(stream, Stmt::Compute { out: vec![it], from: vec![INPUT] });
            self.written.push(it);
        }
        it
    }

    fn wrote(&mut self, tensor: usize) {
        if !self.written.contains(&tensor) {
            self.written.push(tensor);
        }
    }

    fn action(&mut self) {
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

    fn compute(&mut self) {
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

    fn free(&mut self) {
        let locals: Vec<usize> = LOCALS.into_iter().filter(|it| self.bound.contains(it)).collect();
        if let Some(&tensor) = locals.get(self.rng.below(locals.len())) {
            self.push(None, Stmt::Free(tensor));
            self.bound.retain(|it| *it != tensor);
            self.written.retain(|it| *it != tensor);
        }
    }

    /// Binds a name to a row.
    fn select(&mut self) {
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
    fn rows(&mut self) {
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

    fn wait(&mut self) {
        if !self.posted.is_empty() {
            let (number, on) = self.posted.swap_remove(self.rng.below(self.posted.len()));
            let stream = if self.rng.below(3) == 0 { self.stream() } else { on };
            self.push(stream, Stmt::Wait(number));
        }
    }

    fn collective(&mut self) {
        let ranks = self.program.ranks;
        let mut team: Vec<usize> = (0..ranks).collect();
        let is_part = self.rng.below(4) == 0 && ranks > 2;
        if is_part {
            team.remove(self.rng.below(ranks));
        }
        let kinds = [
            Kind::Allreduce, Kind::Broadcast, Kind::Reduce, Kind::SendRecv, Kind::CollectivePermute(1),
            Kind::Allgather, Kind::ReduceScatter, Kind::AllToAll, Kind::Gather, Kind::Scatter,
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
        if matches!(kind, Kind::Allreduce | Kind::Allgather | Kind::ReduceScatter | Kind::AllToAll | Kind::Scatter | Kind::Broadcast | Kind::CollectivePermute(_)) && !is_part {
            self.wrote(output);
        }
        self.later(ranks_of, number, stream);
    }

    /// Sometimes the part of the rank is a row of the tensor that has all parts.
    fn in_place(&mut self, kind: Kind, (input, output): (usize, usize), is_part: bool) -> (usize, usize) {
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
    fn later(&mut self, ranks: u8, number: usize, stream: Stream) {
        if self.rng.below(2) == 0 || ranks != self.all {
            if self.rng.below(3) > 0 {
                self.push_on(ranks, stream, Stmt::Wait(number));
            }
        } else {
            self.posted.push((number, stream));
        }
    }

    fn messages(&mut self) {
        let ranks = self.program.ranks;
        let number = self.number;
        self.number += 3;
        let stream = self.stream();
        let (from, to) = (self.part(true), self.part(false));
        let side = |at: usize, sends: bool, buffer: usize, peer| Side { number: number + at, sends, buffer, peer, puts: None };
        if self.rng.below(2) == 0 {
            // A ring of all ranks.
            let by = 1 + self.rng.below(ranks - 1);
            let mut sides = vec![
                side(1, true, from, Scalar::Rank(by)),
                side(2, false, to, Scalar::Rank(ranks - by)),
            ];
            if self.rng.below(2) == 0 {
                sides.reverse();
            }
            self.push(stream, Stmt::Group { number, sides });
            self.wrote(to);
            self.later(self.all, number, stream);
            return;
        }
        let one = self.rng.below(ranks);
        let other = (one + 1 + self.rng.below(ranks - 1)) % ranks;
        let is_group = self.rng.below(3) == 0;
        let count = 1 + self.rng.below(2);
        for _ in 0..count {
            let number = self.number;
            self.number += 3;
            for (rank, peer, sends, buffer) in [(one, other, true, from), (other, one, false, to)] {
                let stream = if self.rng.below(3) == 0 { self.stream() } else { stream };
                let mut it = Side { number, sends, buffer, peer: Scalar::Const(peer), puts: None };
                let stmt = if is_group {
                    it.number += 1;
                    Stmt::Group { number, sides: vec![it] }
                } else {
                    Stmt::Post(it)
                };
                self.push_on(1 << rank, stream, stmt);
                self.later(1 << rank, number, stream);
            }
        }
    }

    /// A transfer over peer memory, once or twice.
    fn transfer(&mut self) {
        let ranks = self.program.ranks;
        let number = self.number;
        self.number += 1;
        let one = self.rng.below(ranks);
        let other = (one + 1 + self.rng.below(ranks - 1)) % ranks;
        let puts = Some(self.rng.below(3) == 0);
        let (from, to) = (self.part(true), self.part(false));
        let stream = self.stream();
        let side = |sends| {
            let (peer, buffer) = if sends { (other, from) } else { (one, to) };
            Side { number, sends, buffer, peer: Scalar::Const(peer), puts }
        };
        let of = |sends: bool| 1 << if sends { one } else { other };
        for sends in [true, false] {
            self.push_on(of(sends), stream, Stmt::Share(vec![side(sends)]));
        }
        let idle = self.all & !of(true) & !of(false);
        if idle != 0 {
            // The exchange has a barrier of all ranks: the others exchange handles of their own.
            let (rank, peer) = (idle.trailing_zeros() as usize, one);
            let _ = (rank, peer);
        }
        for _ in 0..1 + self.rng.below(2) {
            for sends in [true, false] {
                let stream = if self.rng.below(4) == 0 { self.stream() } else { stream };
                self.push_on(of(sends), stream, Stmt::Post(side(sends)));
                if self.rng.below(5) > 0 {
                    self.push_on(of(sends), stream, Stmt::Wait(number));
                }
            }
            if self.rng.below(2) == 0 {
                self.compute();
            }
        }
    }

    /// A view of the shards of all ranks.
    fn view(&mut self) {
        if self.bound.contains(&SYMMETRIC) || self.program.ranks == 1 {
            return self.collective();
        }
        self.allocate(SYMMETRIC);
        let stream = self.stream();
        self.push(stream, Stmt::Compute { out: vec![SYMMETRIC], from: vec![SHARDED] });
        let out = self.part(false);
        if self.rng.below(2) == 0 {
            // The output is new, so that each rank has written its shard before the view is read.
            self.push(stream, Stmt::HostSync);
        } else {
            let team = (0..self.program.ranks).collect();
            let (number, input) = (self.number, self.part(true));
            self.number += 1;
            self.push(stream, Stmt::Collective { number, kind: Kind::Allreduce, team, root: 0, input, output: out });
            self.push(stream, Stmt::Wait(number));
        }
        self.push(None, Stmt::View { out: VIEW, of: SYMMETRIC });
        for _ in 0..1 + self.rng.below(2) {
            let on = if self.rng.below(3) == 0 { self.stream() } else { stream };
            self.push(on, Stmt::Compute { out: vec![out], from: vec![VIEW] });
        }
        self.wrote(out);
    }
}

/// Adds what orders the accesses that race, one after another. Returns nothing if that is not possible.
pub fn repaired(mut program: Program, rules: Rules, rng: &mut Rng) -> Option<Program> {
    for _ in 0..60 {
        let all = faults(&program, rules, true);
        let Some(fault) = all.first() else { return Some(program) };
        repair(&mut program, fault, rng)?;
    }
    None
}

fn repair(program: &mut Program, fault: &Fault, rng: &mut Rng) -> Option<()> {
    if !matches!(fault.code, "E0701" | "E0702" | "E0703") {
        return None;
    }
    let rank = fault.second.or(fault.first)?.rank;
    let (mut at, stream, ranks, on) = match fault.second {
        Some(By { place, stream, .. }) => {
            let item = program.item(place)?;
            (place, item.stream, item.ranks, stream)
        }
        None => ((program.nodes.len(), None), None, program.item(fault.first?.place)?.ranks, 0),
    };
    // What the later statement has to follow.
    let mut stmt = Stmt::Sync(fault.stream.checked_sub(1).map(Scalar::Const));
    if let Some(number) = fault.first.and_then(|it| it.number) {
        let all = program.executed(rank);
        let is_wait = |it: &&super::program::Executed<'_>| *it.stmt == Stmt::Wait(number);
        let awaited = all.iter().find(is_wait).map(|it| (it.place, it.stream));
        let end = fault.second.map_or(usize::MAX, |it| it.at);
        match awaited {
            Some((place, of)) if all.iter().position(|it| it.place == place)? < end => {
                stmt = Stmt::Sync(of.checked_sub(1).map(Scalar::Const));
                if of == on {
                    return None;
                }
            }
            Some((place, _)) if program.item(place)?.ranks == ranks && place.1.is_none() && place.0 > at.0 => {
                program.remove(place)?;
                stmt = Stmt::Wait(number);
            }
            Some(_) => return None,
            None => stmt = Stmt::Wait(number),
        }
    } else if fault.first.is_some_and(|it| it.rank != rank) || fault.stream == on {
        return None;
    }
    // Anywhere behind the first statement.
    let mut stream = stream;
    if let (Some(first), true) = (fault.first, rng.below(2) == 0)
        && first.place.0 < at.0
    {
        at = (first.place.0 + 1 + rng.below(at.0 - first.place.0), None);
        stream = on.checked_sub(1).map(Scalar::Const);
    }
    program.insert(at, Item { ranks, stream, stmt });
    Some(())
}

/// Changes a program in one place. Returns what it did.
pub fn change(program: &mut Program, rng: &mut Rng) -> Option<&'static str> {
    let all: Vec<_> = program.items().into_iter().map(|it| (it.0, it.1.clone())).collect();
    let orders: Vec<_> = all.iter().filter(|it| matches!(it.1.stmt, Stmt::Sync(_) | Stmt::Wait(_) | Stmt::HostSync)).collect();
    let (place, item) = rng.choose_cloned(&all);
    let streams = [None, Some(Scalar::Const(0)), Some(Scalar::Const(1))];
    let rank = rng.below(program.ranks);
    Some(match rng.below(12) {
        0..=3 => {
            let (place, _) = orders.get(rng.below(orders.len()))?;
            program.remove(*place)?;
            "delete"
        }
        4 => {
            let it = program.remove(place)?;
            let at = (place.0 + rng.below(7)).saturating_sub(3);
            program.insert((at.min(program.nodes.len()), None), Item { stream: it.stream.filter(|it| *it != Scalar::Index), ..it });
            "move"
        }
        5 => {
            program.item_mut(place)?.stream = rng.choose_cloned(&streams);
            "stream"
        }
        6 => {
            program.item_mut(place)?.ranks &= !(1 << rank);
            "skip"
        }
        7 => {
            let (place, item) = orders.get(rng.below(orders.len()))?;
            let mut wait = item.stmt.clone();
            match &mut wait {
                Stmt::Sync(it) => *it = rng.choose_cloned(&streams),
                Stmt::Wait(it) => *it = (*it + 1 + rng.below(4)).saturating_sub(2),
                _ => return None,
            }
            // A stream that waits for itself does nothing.
            program.item_mut(*place)?.stmt = wait;
            "other"
        }
        8 => {
            program.insert(place, item);
            "twice"
        }
        9 | 10 => {
            let ranks = program.ranks;
            let other = rng.choose_cloned(&[INPUT, OUT, LOCALS[0], LOCALS[1], ROWS[0]]);
            let tensors = program.tensors.clone();
            let swap = |it: &mut usize| {
                if tensors[*it].0 == Shape::Part {
                    *it = other;
                }
            };
            match &mut program.item_mut(place)?.stmt {
                Stmt::Compute { out, from } => match rng.below(2) {
                    0 if other != INPUT => swap(&mut out[0]),
                    _ => swap(&mut from[0]),
                },
                Stmt::Collective { kind, root, input, output, .. } => match rng.below(4) {
                    0 if kind.has_root() => *root = (*root + 1) % 2,
                    1 => swap(input),
                    2 if other != INPUT => swap(output),
                    _ if matches!(kind, Kind::Broadcast | Kind::Reduce | Kind::Allreduce) => {
                        *kind = rng.choose_cloned(&[Kind::Broadcast, Kind::Reduce, Kind::Allreduce]);
                    }
                    _ => return None,
                },
                Stmt::Post(side) => match rng.below(3) {
                    0 => side.peer = Scalar::Const((side.peer.value(rank, 0, ranks) + 1) % ranks),
                    1 => side.sends = !side.sends,
                    _ => swap(&mut side.buffer),
                },
                Stmt::Group { sides, .. } => {
                    let at = rng.below(sides.len());
                    match rng.below(3) {
                        0 => sides[at].peer = Scalar::Rank(rng.below(ranks)),
                        1 => swap(&mut sides[at].buffer),
                        _ => drop(sides.remove(at)),
                    }
                }
                _ => return None,
            }
            "operand"
        }
        _ => {
            // One rank executes two statements in the other order.
            let (Some(Node::One(_)), Some(Node::One(next))) = (program.nodes.get(place.0), program.nodes.get(place.0 + 1)) else {
                return None;
            };
            let mut moved = next.clone();
            moved.ranks &= 1 << rank;
            let next = program.item_mut((place.0 + 1, None))?;
            next.ranks &= !(1 << rank);
            program.insert(place, moved);
            "swap"
        }
    })
}
