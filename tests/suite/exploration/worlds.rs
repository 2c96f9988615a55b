//! Random plans with random synchronisation.

use std::sync::Arc;

use grammar::{dtype::DType, ops::Op, words::CommunicationType};
use hir_plan::{
    Arg, Backend, Buffer, Collective, CollectiveKind, Communicator, Direction, Inst, InstKind, IoBinding,
    Number, Origin, P2pGroup, P2pOp, Plan, PlanStream, ReduceOp, Shard, ShardLayout, SignalId, SignalKind,
    View, ViewOnRank,
};

use crate::rng::Rng;

/// Number of elements per buffer.
pub const LEN: usize = 3;
/// Number of buffers per rank. The first is the output.
pub const BUFFERS: usize = 3;

/// A builder of random plans for two or three ranks with two streams each.
struct WorldBuilder {
    rng: Rng,
    plans: Vec<Plan>,
    numbers: u32,
    /// Communications without a Wait so far: rank and work.
    not_awaited: Vec<(usize, u32)>,
}

/// Returns the plans of a random world.
pub fn plans(seed: u64) -> Vec<Plan> {
    let mut rng = Rng(seed ^ 0x0e_c5);
    let ranks = 2 + rng.below(2);
    let plan = |rank| {
        let mut plan = Plan {
            communicators: vec![Communicator {
                backend: Backend::Nccl,
                team: (0..ranks).collect(),
                pair_of: None,
            }],
            ..Plan::empty(rank, ranks, vec![PlanStream::Entry, PlanStream::Indexed(1)])
        };
        for name in ["T0", "T1", "T2"] {
            plan.buffers.push(Buffer::new(name, DType::Float, LEN));
        }
        plan.outputs.push(IoBinding {
            name: "T0".into(),
            dtype: DType::Float,
            shard: Shard { view: Some(View::contiguous(0, vec![LEN])), layout: ShardLayout::whole(&[LEN]) },
            printed_axes: None,
            broadcast: vec![false],
            is_compared_per_rank: true,
        });
        plan
    };
    let mut world =
        WorldBuilder { rng, plans: (0..ranks).map(plan).collect(), numbers: 0, not_awaited: Vec::new() };
    for rank in 0..ranks {
        let to = Box::new(View::contiguous(1, vec![LEN]));
        world.on(rank, 0, InstKind::Fill { to, value: Number::Int(rank as i64 + 1) });
        if world.rng.below(2) == 0 {
            world.join(rank, 0, 1);
        }
    }
    for _ in 0..2 + world.rng.below(5) {
        world.step();
    }
    for (rank, work) in std::mem::take(&mut world.not_awaited) {
        if world.rng.below(3) > 0 {
            world.on(rank, 0, InstKind::Wait { work });
        }
    }
    for rank in 0..ranks {
        if world.rng.below(3) > 0 {
            world.join(rank, 1, 0);
        }
        world.on(rank, 0, InstKind::ReadOutputs);
    }
    world.plans
}

impl WorldBuilder {
    fn on(&mut self, rank: usize, stream: u32, kind: InstKind) {
        let plan = &mut self.plans[rank];
        let origins = Arc::make_mut(&mut plan.origins);
        let line = 1000 * rank as u32 + origins.len() as u32;
        origins.push(Origin { stmt: None, line, iteration: None });
        plan.code.push(Inst { kind, stream, origin: plan.origins.len() as u32 - 1 });
    }

    fn work(&mut self, rank: usize) -> u32 {
        self.plans[rank].work_count += 1;
        let work = self.plans[rank].work_count as u32 - 1;
        self.not_awaited.push((rank, work));
        work
    }

    /// Makes stream `to` wait for stream `from`.
    fn join(&mut self, rank: usize, from: u32, to: u32) {
        self.plans[rank].event_count += 1;
        let event = self.plans[rank].event_count as u32 - 1;
        self.on(rank, from, InstKind::RecordEvent { event });
        self.on(rank, to, InstKind::WaitEvent { event });
    }

    /// Makes the host wait for a stream, as planning does: what is issued afterwards to the other stream follows, too.
    fn host_wait(&mut self, rank: usize, stream: u32) {
        self.plans[rank].event_count += 1;
        let event = self.plans[rank].event_count as u32 - 1;
        self.on(rank, stream, InstKind::RecordEvent { event });
        self.on(rank, stream, InstKind::HostWait { event });
        self.on(rank, 1 - stream, InstKind::WaitEvent { event });
    }

    fn stream(&mut self) -> u32 {
        self.rng.below(2) as u32
    }

    /// Returns a view of `len` elements of a random buffer.
    fn view(&mut self, len: usize) -> View {
        let buffer = self.rng.below(BUFFERS) as u32;
        let offset = self.rng.below(LEN - len + 1);
        View { buffer, offset, shape: vec![len], strides: vec![1] }
    }

    fn len(&mut self) -> usize {
        1 + self.rng.below(LEN)
    }

    /// Adds a signal from one rank to another, and its wait.
    fn flag(&mut self, from: usize, to: usize) {
        self.numbers += 1;
        let slot = SignalId { from, to, kind: SignalKind::Ready, index: self.numbers };
        let (raises, awaits) = (self.stream(), self.stream());
        self.on(from, raises, InstKind::Signal { signal: slot });
        self.on(to, awaits, InstKind::WaitSignal { signal: slot });
    }

    /// Adds one random action of one rank, of two ranks, or of all ranks.
    fn step(&mut self) {
        let ranks = self.plans.len();
        let rank = self.rng.below(ranks);
        let peer = (rank + 1 + self.rng.below(ranks - 1)) % ranks;
        let stream = self.stream();
        self.numbers += 1;
        match self.rng.below(10) {
            0 => {
                let len = self.len();
                let to = Box::new(self.view(len));
                let value = Number::Int(10 + i64::from(self.numbers));
                self.on(rank, stream, InstKind::Fill { to, value });
            }
            1 => {
                let len = self.len();
                let args = vec![Arg::View(self.view(len)), Arg::View(self.view(len))];
                let out = Box::new(self.view(len));
                self.on(rank, stream, InstKind::Map { op: Op::Add, args, out });
            }
            2 => {
                let len = self.len();
                let (mine, theirs) = (self.view(len), self.view(len));
                let mine = Box::new(ViewOnRank { rank, view: mine });
                let theirs = Box::new(ViewOnRank { rank: peer, view: theirs });
                let (from, to) = if self.rng.below(2) == 0 { (mine, theirs) } else { (theirs, mine) };
                if self.rng.below(2) == 0 {
                    self.flag(peer, rank);
                }
                self.on(rank, stream, InstKind::Copy { from, to });
                if self.rng.below(2) == 0 {
                    self.flag(rank, peer);
                }
            }
            3 => self.join(rank, stream, 1 - stream),
            4 => self.flag(rank, peer),
            5 if !self.not_awaited.is_empty() => {
                let at = self.rng.below(self.not_awaited.len());
                let (rank, work) = self.not_awaited.swap_remove(at);
                self.on(rank, stream, InstKind::Wait { work });
            }
            5 | 6 => self.transfers(rank, peer),
            7 => self.host_wait(rank, stream),
            _ => self.collective(),
        }
    }

    /// Makes two ranks exchange parts, or one send to the other.
    fn transfers(&mut self, rank: usize, peer: usize) {
        let len = self.len();
        let both = self.rng.below(2) == 0;
        let is_coalesced = both || self.rng.below(3) == 0;
        for (me, other, first) in [(rank, peer, Direction::Send), (peer, rank, Direction::Recv)] {
            let mut sides = vec![first];
            sides.extend(both.then(|| first.opposite()));
            let sides = sides
                .into_iter()
                .map(|direction| P2pOp {
                    direction,
                    peer: other,
                    view: self.view(len),
                    origin: self.plans[me].origins.len() as u32,
                })
                .collect();
            let (work, stream) = (self.work(me), self.stream());
            let group = P2pGroup { communicator: 0, ops: sides, is_coalesced, work };
            self.on(me, stream, InstKind::P2pGroup(group));
        }
    }

    fn collective(&mut self) {
        let ranks = self.plans.len();
        let root = self.rng.below(ranks);
        let of = |of| CollectiveKind::new(of, root, ReduceOp::Sum);
        let (kind, input, output) = match self.rng.below(5) {
            0 => (of(CommunicationType::Broadcast), 1, 1),
            1 => (of(CommunicationType::Reduce), 1, 1),
            2 => (of(CommunicationType::Allreduce), 2, 2),
            3 => (of(CommunicationType::Gather), 1, ranks),
            _ => (of(CommunicationType::Scatter), ranks, 1),
        };
        for rank in 0..ranks {
            let (input, output) = (Some(self.view(input)), Some(self.view(output)));
            let (work, stream) = (self.work(rank), self.stream());
            let gives = match kind.of {
                CommunicationType::Broadcast | CommunicationType::Scatter => root == rank,
                _ => true,
            };
            let gets = match kind.of {
                CommunicationType::Reduce | CommunicationType::Gather => root == rank,
                _ => true,
            };
            let (input, output) = (input.filter(|_| gives), output.filter(|_| gets));
            let it = Collective { communicator: 0, kind, input, output, work };
            self.on(rank, stream, InstKind::Collective(Box::new(it)));
        }
    }
}
