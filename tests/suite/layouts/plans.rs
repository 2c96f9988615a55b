//! Random plans with several streams, ranks that write and read each other's memory, communications with and
//! without a Wait, and often a race. They end under every schedule, because all instructions are generated in
//! an order in which they can run.

use grammar::{dtype::DType, ops::Op, words::CommunicationType};
use hir_plan::{
    Arg, Backend, Buffer, Collective, CollectiveKind, Communicator, Direction, Inst, InstKind, IoBinding,
    Number, P2pGroup, P2pOp, Plan, PlanStream, ReduceOp, Shard, ShardLayout, SignalId, SignalKind, View,
    ViewOnRank,
};

use crate::rng::Rng;

/// Minimum number of elements that an instruction accesses. Offsets of buffers are multiples of it.
const PIECE: usize = 64;

/// A buffer of some rank: rank and buffer.
type BufferOnRank = (usize, u32);

struct WorldBuilder {
    rng: Rng,
    plans: Vec<Plan>,
    /// Buffers that each stream has written or waited for, by rank and stream.
    seen: Vec<Vec<Vec<BufferOnRank>>>,
    /// Works without a Wait so far, by rank, with the buffers that are valid after the Wait.
    posted: Vec<Vec<(u32, Vec<BufferOnRank>)>>,
    slots: u32,
}

/// Returns the plans of a seed.
pub fn plans(seed: u64) -> Vec<Plan> {
    let mut rng = Rng(seed.wrapping_mul(0x9e6c_63d0_676a_9a99) ^ 0x1a70);
    let (ranks, streams) = (1 + rng.below(3), 1 + rng.below(3));
    let blank = |rank| Plan {
        communicators: vec![Communicator {
            backend: Backend::Nccl,
            team: (0..ranks).collect(),
            pair_of: None,
        }],
        ..Plan::empty(rank, ranks, (0..streams as i64).map(PlanStream::Indexed).collect())
    };
    let mut it = WorldBuilder {
        plans: (0..ranks).map(blank).collect(),
        seen: vec![vec![Vec::new(); streams]; ranks],
        posted: vec![Vec::new(); ranks],
        slots: 0,
        rng,
    };
    for rank in 0..ranks {
        let input = it.buffer(rank, 1);
        it.plans[rank].inputs.push(port(input));
        it.seen[rank].iter_mut().for_each(|seen| seen.push((rank, input)));
    }
    for _ in 0..10 + it.rng.below(40) {
        it.step();
    }
    for rank in 0..ranks {
        it.on(rank, 0, InstKind::ReadOutputs);
    }
    it.plans
}

fn port(buffer: u32) -> IoBinding {
    let view = View::contiguous(buffer, vec![PIECE]);
    let layout = ShardLayout::whole(&view.shape);
    IoBinding {
        name: format!("T{buffer}"),
        dtype: DType::Float,
        printed_axes: None,
        broadcast: vec![false; layout.shape.len()],
        is_compared_per_rank: false,
        shard: Shard { view: Some(view), layout },
    }
}

impl WorldBuilder {
    fn on(&mut self, rank: usize, stream: usize, kind: InstKind) {
        self.plans[rank].code.push(Inst { kind, stream: stream as u32, origin: 0 });
    }

    fn buffer(&mut self, rank: usize, pieces: usize) -> u32 {
        let buffers = &mut self.plans[rank].buffers;
        buffers.push(Buffer::new(format!("T{}", buffers.len()), DType::Float, pieces * PIECE));
        buffers.len() as u32 - 1
    }

    fn fresh(&mut self, rank: usize) -> u32 {
        let pieces = 1 + self.rng.below(3);
        self.buffer(rank, pieces)
    }

    /// Returns a random piece of a buffer.
    fn piece(&mut self, (rank, buffer): BufferOnRank) -> View {
        let pieces = self.plans[rank].buffers[buffer as usize].len / PIECE;
        View { offset: PIECE * self.rng.below(pieces), ..View::contiguous(buffer, vec![PIECE]) }
    }

    /// Returns a buffer of `rank` that the stream `by` has written or waited for, preferably a recent one;
    /// rarely, any buffer.
    fn source(&mut self, by: (usize, usize), rank: usize) -> BufferOnRank {
        let mut known = self.seen[by.0][by.1].clone();
        known.retain(|it| it.0 == rank);
        let late = 1 + self.rng.below(4);
        match known.len() {
            0 => (rank, self.rng.below(self.plans[rank].buffers.len()) as u32),
            _ if self.rng.chance(4) => (rank, self.rng.below(self.plans[rank].buffers.len()) as u32),
            count => known[count - late.min(count)],
        }
    }

    fn mark_seen(&mut self, (rank, stream): (usize, usize), them: &[BufferOnRank]) {
        self.seen[rank][stream].extend(them);
    }

    /// Returns a random rank and one of its streams.
    fn rank_and_stream(&mut self) -> (usize, usize) {
        let rank = self.rng.below(self.plans.len());
        (rank, self.stream(rank))
    }

    fn stream(&mut self, rank: usize) -> usize {
        self.rng.below(self.plans[rank].streams.len())
    }

    fn step(&mut self) {
        let (rank, stream) = self.rank_and_stream();
        let peer = self.rng.below(self.plans.len());
        match self.rng.below(20) {
            0..=4 => self.compute((rank, stream)),
            5 => {
                let buffer = self.fresh(rank);
                let len = self.plans[rank].buffers[buffer as usize].len;
                let zero =
                    InstKind::Alloc { buffer, zeroed: Some(View::contiguous(buffer, vec![len]).into()) };
                self.on(rank, stream, zero);
                self.mark_seen((rank, stream), &[(rank, buffer)]);
            }
            6 | 7 => {
                let (event, to) = (self.plans[rank].event_count as u32, self.stream(rank));
                self.plans[rank].event_count += 1;
                self.on(rank, stream, InstKind::RecordEvent { event });
                self.on(rank, to, InstKind::WaitEvent { event });
                let known = self.seen[rank][stream].clone();
                self.mark_seen((rank, to), &known);
            }
            8 | 9 => {
                let slot = SignalId { from: rank, to: peer, kind: SignalKind::Ready, index: self.slots };
                self.slots += 1;
                let to = self.stream(peer);
                self.on(rank, stream, InstKind::Signal { signal: slot });
                self.on(peer, to, InstKind::WaitSignal { signal: slot });
                let known = self.seen[rank][stream].clone();
                self.mark_seen((peer, to), &known);
            }
            10 | 11 | 16..=19 => self.access_peer((rank, stream), peer),
            12 => self.collective(),
            13 => self.transfer(rank, peer),
            14 => {
                if self.posted[rank].is_empty() {
                    return;
                }
                let (work, brought) = {
                    let at = self.rng.below(self.posted[rank].len());
                    self.posted[rank].swap_remove(at)
                };
                self.on(rank, stream, InstKind::Wait { work });
                self.mark_seen((rank, stream), &brought);
            }
            _ => {
                let from = self.source((rank, stream), rank);
                let output = self.buffer(rank, 1);
                self.plans[rank].outputs.push(port(output));
                self.copy((rank, stream), from, (rank, output));
            }
        }
    }

    fn copy(&mut self, (rank, stream): (usize, usize), from: BufferOnRank, to: BufferOnRank) {
        let [from, to] = [from, to].map(|it| Box::new(ViewOnRank { rank: it.0, view: self.piece(it) }));
        self.on(rank, stream, InstKind::Copy { from, to });
    }

    fn compute(&mut self, at: (usize, usize)) {
        let rank = at.0;
        let (a, b) = (self.source(at, rank), self.source(at, rank));
        let out = if self.rng.chance(75) { (rank, self.fresh(rank)) } else { self.source(at, rank) };
        let kind = match self.rng.below(3) {
            0 => {
                let len = self.plans[rank].buffers[out.1 as usize].len;
                let value = Number::Int(1 + self.rng.below(1000) as i64);
                InstKind::Fill { to: Box::new(View::contiguous(out.1, vec![len])), value }
            }
            _ => {
                let args = [a, b].map(|it| Arg::View(self.piece(it))).to_vec();
                InstKind::Map { op: Op::Add, args, out: Box::new(self.piece(out)) }
            }
        };
        self.on(at.0, at.1, kind);
        self.mark_seen(at, &[out]);
    }

    /// Reads a peer's memory or writes to it.
    fn access_peer(&mut self, at: (usize, usize), peer: usize) {
        let (from, to) = if self.rng.chance(60) {
            (self.source(at, peer), (at.0, self.fresh(at.0)))
        } else {
            (self.source(at, at.0), self.source(at, peer))
        };
        self.copy(at, from, to);
        self.mark_seen(at, &[to]);
    }

    fn work(&mut self, rank: usize, brought: Vec<BufferOnRank>) -> u32 {
        let work = self.plans[rank].work_count as u32;
        self.plans[rank].work_count += 1;
        self.posted[rank].push((work, brought));
        work
    }

    fn collective(&mut self) {
        let ranks = self.plans.len();
        let root = self.rng.below(ranks);
        let permuted = self.rng.permutation(ranks);
        let of = |of| CollectiveKind::new(of, root, ReduceOp::Sum);
        let kind = self.rng.below(6);
        for rank in 0..ranks {
            let stream = self.stream(rank);
            let from = self.source((rank, stream), rank);
            let input = self.piece(from);
            let to = self.buffer(rank, ranks);
            let mut len = PIECE;
            let kind = match kind {
                0 => of(CommunicationType::Broadcast),
                1 => of(CommunicationType::Allreduce),
                2 => of(CommunicationType::Reduce),
                3 => {
                    let recv_peer = permuted.iter().position(|it| *it == rank).unwrap_or(0);
                    CollectiveKind::permute(permuted[rank], recv_peer)
                }
                4 => {
                    len *= ranks;
                    of(CommunicationType::Gather)
                }
                _ => {
                    len *= ranks;
                    of(CommunicationType::Allgather)
                }
            };
            let gets = match kind.of {
                CommunicationType::Reduce | CommunicationType::Gather => rank == root,
                _ => true,
            };
            let output = gets.then(|| View::contiguous(to, vec![len]));
            let work = self.work(rank, if gets { vec![(rank, to)] } else { Vec::new() });
            let it = Collective { communicator: 0, kind, input: Some(input), output, work };
            self.on(rank, stream, InstKind::Collective(Box::new(it)));
        }
    }

    fn transfer(&mut self, from: usize, to: usize) {
        let streams = [self.stream(from), self.stream(to)];
        let source = self.source((from, streams[0]), from);
        let (sent, target) = (self.piece(source), (to, self.fresh(to)));
        let send = P2pOp { direction: Direction::Send, peer: to, view: sent, origin: 0 };
        let recv = P2pOp { direction: Direction::Recv, peer: from, view: self.piece(target), origin: 0 };
        let mut post = |rank: usize, stream: usize, sides: Vec<P2pOp>, brought: Vec<BufferOnRank>| {
            let work = self.work(rank, brought);
            self.on(
                rank,
                stream,
                InstKind::P2pGroup(P2pGroup { communicator: 0, ops: sides, is_coalesced: true, work }),
            );
        };
        if from == to {
            post(from, streams[0], vec![send, recv], vec![target])
        } else {
            post(from, streams[0], vec![send], Vec::new());
            post(to, streams[1], vec![recv], vec![target]);
        }
    }
}
