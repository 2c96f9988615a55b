//! Tests of the simulator on plans built by hand: the builder of plans and the helpers that all tests use.

mod collectives;
mod compute;
mod peer_memory;
mod schedule;
mod streams;
mod transfers;

use std::sync::Arc;

use grammar::DType;

use super::{Schedule, SimError, SimOptions, SimOutcome, run};
use hir_plan::*;
use hir_tensor::{data::Data, dense::DenseTensor};

/// Builds the plan of one rank. Each instruction is on its own line, counted from 1.
struct RankPlanBuilder(Plan);

impl RankPlanBuilder {
    fn new(rank: usize, world: usize, streams: usize) -> Self {
        let streams = (0..streams as i64).map(PlanStream::Indexed).collect();
        let origins = Arc::default();
        Self(Plan { origins, ..Plan::empty(rank, world, streams) })
    }

    fn buffer(&mut self, len: usize) -> View {
        self.typed(len, DType::Float)
    }

    fn typed(&mut self, len: usize, dtype: DType) -> View {
        let number = self.0.buffers.len();
        self.0.buffers.push(Buffer::new(format!("T{number}"), dtype, len));
        View::contiguous(number as u32, vec![len])
    }

    fn port(&self, view: &View) -> IoBinding {
        let buffer = &self.0.buffers[view.buffer as usize];
        let layout = ShardLayout::whole(&view.shape);
        IoBinding {
            name: buffer.name.clone(),
            dtype: buffer.dtype,
            printed_axes: None,
            is_compared_per_rank: false,
            broadcast: vec![false; layout.shape.len()],
            shard: Shard { view: Some(view.clone()), layout },
        }
    }

    fn input(&mut self, len: usize) -> View {
        let view = self.buffer(len);
        self.0.inputs.push(self.port(&view));
        view
    }

    fn output(&mut self, len: usize) -> View {
        let view = self.buffer(len);
        self.0.outputs.push(self.port(&view));
        view
    }

    fn on(&mut self, stream: u32, kind: InstKind) -> &mut Self {
        let line = self.0.origins.len() as u32 + 1;
        Arc::make_mut(&mut self.0.origins).push(Origin { stmt: None, line, iteration: None });
        self.0.code.push(Inst { kind, stream, origin: line - 1 });
        self
    }

    fn fill(&mut self, stream: u32, to: &View, value: i64) -> &mut Self {
        self.on(stream, InstKind::Fill { to: Box::new(to.clone()), value: Number::Int(value) })
    }

    fn copy(&mut self, stream: u32, from: (usize, &View), to: (usize, &View)) -> &mut Self {
        let place = |(rank, view): (usize, &View)| Box::new(ViewOnRank { rank, view: view.clone() });
        self.on(stream, InstKind::Copy { from: place(from), to: place(to) })
    }

    fn communicator(&mut self, team: &[usize]) -> u32 {
        self.0.communicators.push(Communicator { backend: Backend::Nccl, team: team.into(), pair_of: None });
        self.0.communicators.len() as u32 - 1
    }

    fn work(&mut self) -> u32 {
        self.0.work_count += 1;
        self.0.work_count as u32 - 1
    }

    fn collective(
        &mut self,
        communicator: u32,
        kind: CollectiveKind,
        input: Option<&View>,
        output: Option<&View>,
    ) -> u32 {
        let work = self.work();
        let (input, output) = (input.cloned(), output.cloned());
        self.on(0, InstKind::Collective(Box::new(Collective { communicator, kind, input, output, work })));
        work
    }

    fn transfer(&mut self, communicator: u32, sides: &[(Direction, usize, &View)]) -> u32 {
        let work = self.work();
        let origin = self.0.origins.len() as u32;
        let side = |&(direction, peer, view): &(Direction, usize, &View)| P2pOp {
            direction,
            peer,
            view: view.clone(),
            origin,
        };
        let sides = sides.iter().map(side).collect();
        self.on(0, InstKind::P2pGroup(P2pGroup { communicator, ops: sides, is_coalesced: true, work }));
        work
    }

    fn wait(&mut self, work: u32) -> &mut Self {
        self.on(0, InstKind::Wait { work })
    }

    fn finish(mut self) -> Plan {
        self.on(0, InstKind::ReadOutputs);
        // Upper bounds of the numbers of events and works.
        (self.0.event_count, self.0.work_count) = (self.0.code.len(), self.0.code.len());
        self.0
    }
}

fn floats(them: &[f32]) -> Arc<Data> {
    Arc::new(Data::F32(them.to_vec()))
}

fn go(plans: &[Plan], inputs: Vec<Vec<Arc<Data>>>, schedule: &Schedule) -> Result<SimOutcome, SimError> {
    run(&World::new(plans.to_vec()), inputs, schedule, &SimOptions { trace: true, ..SimOptions::default() })
}

fn no_inputs(plans: &[Plan]) -> Vec<Vec<Arc<Data>>> {
    plans.iter().map(|_| Vec::new()).collect()
}

fn schedules(seeds: u64) -> impl Iterator<Item = Schedule> {
    [Schedule::Program, Schedule::Adversarial].into_iter().chain((0..seeds).map(Schedule::Seed))
}

/// Returns the contents of the rank's first output, with -1 for unwritten elements.
fn values(outcome: &SimOutcome, rank: usize) -> Vec<f64> {
    let show = |it: &Arc<DenseTensor>| {
        let values = it.data.to_f64();
        values.iter().enumerate().map(|(at, &v)| if it.written.get(at) { v } else { -1.0 }).collect()
    };
    outcome.outputs[rank].first().and_then(Option::as_ref).map(show).unwrap_or_default()
}

fn text(res: Result<SimOutcome, SimError>) -> String {
    res.err().map_or("no fault".to_owned(), |it| it.to_string())
}

/// Returns a ring in which every rank first sends and then receives, as one P2P group or as two.
fn ring(world: usize, grouped: bool) -> Vec<Plan> {
    let team: Vec<usize> = (0..world).collect();
    let plan = |rank: usize| {
        let mut it = RankPlanBuilder::new(rank, world, 1);
        let (given, got) = (it.buffer(1), it.output(1));
        let communicator = it.communicator(&team);
        it.fill(0, &given, rank as i64);
        let send = (Direction::Send, (rank + 1) % world, &given);
        let recv = (Direction::Recv, (rank + world - 1) % world, &got);
        let works = if grouped {
            vec![it.transfer(communicator, &[send, recv])]
        } else {
            vec![it.transfer(communicator, &[send]), it.transfer(communicator, &[recv])]
        };
        works.into_iter().for_each(|work| {
            it.wait(work);
        });
        it.finish()
    };
    (0..world).map(plan).collect()
}
