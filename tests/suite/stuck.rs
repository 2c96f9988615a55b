//! Compares the static deadlock check with the simulator on random plans. Both must give the same text under
//! every schedule. So the final state of a world does not depend on the order in which its streams, queues
//! and hosts proceed.
//!
//! `HIR_STUCK=100000` tries more worlds, `HIR_SEED=7` others.

use grammar::{dtype::DType, words::CommunicationType};
use hir_plan::{
    Backend, Buffer, Collective, CollectiveKind, Communicator, Direction, Inst, InstKind, MemHandle, Number,
    P2pGroup, P2pOp, Plan, PlanStream, ReduceOp, SignalId, SignalKind, View, World,
};
use hir_sim::{Schedule, SimError, SimOptions};
use libtest_mimic::{Failed, Trial};

use crate::{rng::Rng, setting::number_or};

/// Default number of worlds.
const WORLDS: usize = 3000;

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let (count, seed) = (number_or("HIR_STUCK", WORLDS), number_or("HIR_SEED", 0) * 1_000_000);
    let all = move || {
        let mut stuck = 0;
        for seed in (0..count).map(|at| (seed + at) as u64) {
            stuck += usize::from(agrees(seed).map_err(|fault| format!("seed {seed}: {fault}"))?);
        }
        // Worlds of one kind prove nothing about the other kind.
        if stuck * 10 > count && stuck * 10 < count * 9 {
            Ok(())
        } else {
            Err(Failed::from(format!("{stuck} of {count} worlds deadlock")))
        }
    };
    vec![Trial::test("stuck_states_of_random_plans", all)]
}

/// Returns true if a world deadlocks. Fails if the simulator and the static check disagree.
fn agrees(seed: u64) -> Result<bool, String> {
    let plans = World::new(plans(seed));
    let predicted = plans.deadlock().map(|it| it.to_string());
    let schedules = [Schedule::Program, Schedule::Adversarial].into_iter().chain((0..6).map(Schedule::Seed));
    for schedule in schedules {
        let simulated =
            match hir_sim::run(&plans, vec![Vec::new(); plans.len()], &schedule, &SimOptions::default()) {
                Ok(_) => None,
                Err(SimError::Deadlock(it)) => Some(it.to_string()),
                Err(fault) => return Err(format!("{schedule}: {fault}")),
            };
        if simulated != predicted {
            return Err(format!("{schedule}: simulated {simulated:?}, predicted {predicted:?}"));
        }
    }
    Ok(predicted.is_some())
}

/// A builder of random plans.
struct WorldBuilder {
    rng: Rng,
    plans: Vec<Plan>,
    /// Number of the last signal or handle between two ranks, so that none is used twice.
    numbers: u32,
}

/// Returns plans of two or three ranks that perform a few actions, usually in the same order.
fn plans(seed: u64) -> Vec<Plan> {
    let mut rng = Rng(seed ^ 0x57ac);
    let ranks = 2 + rng.below(2);
    let plan = |rank| Plan {
        buffers: vec![Buffer::new("b", DType::Float, 1)],
        communicators: vec![
            Communicator { backend: Backend::Nccl, team: (0..ranks).collect(), pair_of: None },
            Communicator { backend: Backend::Ucc, team: (0..ranks).collect(), pair_of: None },
        ],
        ..Plan::empty(rank, ranks, vec![PlanStream::Entry, PlanStream::Indexed(1)])
    };
    let mut world = WorldBuilder { rng, plans: (0..ranks).map(plan).collect(), numbers: 0 };
    for rank in 0..ranks {
        world.on(rank, 0, InstKind::Fill { to: Box::new(view()), value: Number::Int(1) });
    }
    for _ in 0..1 + world.rng.below(6) {
        world.step();
    }
    // Removes or moves an instruction on some ranks.
    for rank in 0..ranks {
        let code = &mut world.plans[rank].code;
        match world.rng.below(8) {
            0 if code.len() > 1 => drop(code.remove(1 + world.rng.below(code.len() - 1))),
            1 if code.len() > 2 => {
                let at = 1 + world.rng.below(code.len() - 2);
                code.swap(at, at + 1);
            }
            _ => (),
        }
        world.on(rank, 0, InstKind::ReadOutputs);
    }
    world.plans
}

fn view() -> View {
    View::contiguous(0, vec![1])
}

impl WorldBuilder {
    fn on(&mut self, rank: usize, stream: u32, kind: InstKind) {
        self.plans[rank].code.push(Inst { kind, stream, origin: 0 });
    }

    fn work(&mut self, rank: usize) -> u32 {
        self.plans[rank].work_count += 1;
        self.plans[rank].work_count as u32 - 1
    }

    /// Adds one random action of one rank, of two ranks, or of all ranks.
    fn step(&mut self) {
        let ranks = self.plans.len();
        let [one, two] = [0, 1].map(|it| self.rng.permutation(ranks)[it]);
        let (one, two) = if one == two { (0, 1) } else { (one, two) };
        let streams: Vec<u32> = (0..ranks).map(|_| self.rng.below(2) as u32).collect();
        self.numbers += 1;
        let index = self.numbers;
        match self.rng.below(6) {
            0 => {
                let communicator = self.rng.below(2) as u32;
                for (rank, stream) in streams.iter().copied().enumerate() {
                    let (work, view) = (self.work(rank), Some(view()));
                    let kind = CollectiveKind::new(CommunicationType::Allreduce, 0, ReduceOp::Sum);
                    let it = Collective { communicator, kind, input: view.clone(), output: view, work };
                    self.on(rank, stream, InstKind::Collective(Box::new(it)));
                    self.wait(rank, stream, work);
                }
            }
            1 => {
                for (rank, peer, direction) in [(one, two, Direction::Send), (two, one, Direction::Recv)] {
                    let work = self.work(rank);
                    let mut sides = vec![P2pOp { direction, peer, view: view(), origin: 0 }];
                    // Some pairs send in both directions, coalesced.
                    if index.is_multiple_of(3) {
                        sides.push(P2pOp { direction: direction.opposite(), ..sides[0].clone() });
                    }
                    self.on(
                        rank,
                        streams[rank],
                        InstKind::P2pGroup(P2pGroup {
                            communicator: 0,
                            ops: sides,
                            is_coalesced: true,
                            work,
                        }),
                    );
                    self.wait(rank, streams[rank], work);
                }
            }
            2 => {
                let slot = SignalId { from: one, to: two, kind: SignalKind::Ready, index };
                self.on(one, streams[one], InstKind::Signal { signal: slot });
                self.on(two, streams[two], InstKind::WaitSignal { signal: slot });
            }
            3 => {
                let handle = |direction, peer| MemHandle { direction, peer, index, number: index };
                let handles = [(one, handle(Direction::Send, two)), (two, handle(Direction::Recv, one))];
                for (rank, handle) in handles {
                    self.on(rank, 0, InstKind::ShareMemHandles { handles: vec![handle] });
                }
            }
            4 => (0..ranks).for_each(|rank| self.on(rank, 0, InstKind::Barrier)),
            _ => {
                let event = self.plans[one].event_count as u32;
                self.plans[one].event_count += 1;
                let stream = streams[one];
                self.on(one, stream, InstKind::RecordEvent { event });
                self.on(one, 1 - stream, InstKind::WaitEvent { event });
            }
        }
    }

    /// Waits for a work, usually on the stream that posted it.
    fn wait(&mut self, rank: usize, stream: u32, work: u32) {
        let stream = if self.rng.chance(80) { stream } else { 1 - stream };
        if self.rng.chance(70) {
            self.on(rank, stream, InstKind::Wait { work });
        }
    }
}
