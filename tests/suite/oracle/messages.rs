//! Random sends and receives, transfers over peer memory, and views of the shards of all ranks.

use super::{
    program::{Kind, Scalar, Side, Stmt},
    random::{Builder, SHARDED, SYMMETRIC, VIEW},
};

impl Builder<'_> {
    pub fn messages(&mut self) {
        let ranks = self.program.ranks;
        let number = self.number;
        self.number += 3;
        let stream = self.stream();
        let (from, to) = (self.part(true), self.part(false));
        let side = |at: usize, sends: bool, buffer: usize, peer| Side {
            number: number + at,
            sends,
            buffer,
            peer,
            puts: None,
        };
        if self.rng.below(2) == 0 {
            // A ring of all ranks.
            let by = 1 + self.rng.below(ranks - 1);
            let mut sides =
                vec![side(1, true, from, Scalar::Rank(by)), side(2, false, to, Scalar::Rank(ranks - by))];
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
    pub fn transfer(&mut self) {
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
    pub fn view(&mut self) {
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
            self.push(
                stream,
                Stmt::Collective { number, kind: Kind::Allreduce, team, root: 0, input, output: out },
            );
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
