//! Tests of the simulator on plans built by hand.

use std::sync::Arc;

use grammar::{dtype::DType, ops::Op};

use super::{
    InstRef, Schedule, SimError, SimOptions, SimOutcome, UnwrittenRead, late_writers, run, schedule::Random,
};
use crate::{
    io::{data::Data, dense::DenseTensor},
    plan::*,
};

/// Builds the plan of one rank. Each instruction is on its own line, counted from 1.
struct RankPlanBuilder(Plan);

impl RankPlanBuilder {
    fn new(rank: usize, world: usize, streams: usize) -> Self {
        let streams = (0..streams).map(|it| format!("stream {it}")).collect();
        let origins = Arc::default();
        Self(Plan { origins, ..Plan::empty(rank, world, streams) })
    }

    fn buffer(&mut self, len: usize) -> View {
        self.typed(len, DType::Float)
    }

    fn typed(&mut self, len: usize, dtype: DType) -> View {
        let number = self.0.buffers.len();
        self.0.buffers.push(Buffer { name: format!("T{number}"), dtype, len });
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
        self.0.communicators.push(Communicator { backend: Backend::Nccl, team: team.into() });
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
        self.on(
            0,
            InstKind::Collective(Box::new(Collective {
                communicator,
                kind,
                algo: None,
                input,
                output,
                work,
            })),
        );
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
        self.on(0, InstKind::Transfer(Transfer { communicator, protocol: None, ops: sides, work }));
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

fn floats(them: &[f32]) -> Data {
    Data::F32(them.to_vec())
}

fn go(plans: &[Plan], inputs: Vec<Vec<Data>>, schedule: &Schedule) -> Result<SimOutcome, SimError> {
    run(
        plans,
        &sync::CommMatching::from_plans(plans),
        inputs,
        schedule,
        &SimOptions { trace: true, ..SimOptions::default() },
    )
}

fn no_inputs(plans: &[Plan]) -> Vec<Vec<Data>> {
    plans.iter().map(|_| Vec::new()).collect()
}

fn schedules(seeds: u64) -> impl Iterator<Item = Schedule> {
    [Schedule::Program, Schedule::Adversarial].into_iter().chain((0..seeds).map(Schedule::Seed))
}

/// Returns the contents of the rank's first output, with -1 for unwritten elements.
fn values(outcome: &SimOutcome, rank: usize) -> Vec<f64> {
    let show = |it: &DenseTensor| {
        let values = it.data.to_f64();
        values.iter().enumerate().map(|(at, &v)| if it.written.get(at) { v } else { -1.0 }).collect()
    };
    outcome.outputs[rank].first().and_then(Option::as_ref).map(show).unwrap_or_default()
}

fn text(res: Result<SimOutcome, SimError>) -> String {
    res.err().map_or("no fault".to_owned(), |it| it.to_string())
}

const TEAM: [usize; 3] = [2, 0, 3];

/// Runs one collective of the team (2 0 3) in a world of four. Member m contributes `10 (m + 1) + element`.
fn collective(
    input: usize,
    output: usize,
    kind: impl Fn(usize) -> CollectiveKind,
    schedule: &Schedule,
) -> Result<Vec<Vec<f64>>, SimError> {
    let (mut plans, mut inputs) = (Vec::new(), Vec::new());
    for rank in 0..4 {
        let mut it = RankPlanBuilder::new(rank, 4, 1);
        let (from, to) = (it.input(input), it.output(output));
        let member = TEAM.iter().position(|&it| it == rank);
        inputs.push(vec![floats(
            &(0..input).map(|i| (10 * (member.unwrap_or(8) + 1) + i) as f32).collect::<Vec<_>>(),
        )]);
        if let Some(member) = member {
            let communicator = it.communicator(&TEAM);
            let work = it.collective(communicator, kind(member), Some(&from), Some(&to));
            it.wait(work);
        }
        plans.push(it.finish());
    }
    let outcome = go(&plans, inputs, schedule)?;
    Ok(TEAM.iter().map(|&it| values(&outcome, it)).collect())
}

#[test]
fn collectives_on_an_arbitrary_team() -> Result<(), SimError> {
    use CollectiveKind::*;
    let op = ReduceOp::Sum;
    let none = |len: usize| vec![-1.0; len];
    for schedule in schedules(20) {
        let res = collective(2, 2, |_| Broadcast { root: 1 }, &schedule)?;
        assert_eq!(res, vec![vec![20.0, 21.0]; 3]);
        let res = collective(1, 3, |_| Gather { root: 2 }, &schedule)?;
        assert_eq!(res, [none(3), none(3), vec![10.0, 20.0, 30.0]]);
        let res = collective(2, 6, |_| Allgather, &schedule)?;
        assert_eq!(res, vec![vec![10.0, 11.0, 20.0, 21.0, 30.0, 31.0]; 3]);
        let res = collective(3, 1, |_| Scatter { root: 0 }, &schedule)?;
        assert_eq!(res, [[10.0], [11.0], [12.0]]);
        let res = collective(2, 2, |_| Reduce { root: 0, op }, &schedule)?;
        assert_eq!(res, [vec![60.0, 63.0], none(2), none(2)]);
        let res = collective(2, 2, |_| Allreduce { op }, &schedule)?;
        assert_eq!(res, vec![vec![60.0, 63.0]; 3]);
        let res = collective(3, 1, |_| ReduceScatter { op }, &schedule)?;
        assert_eq!(res, [[60.0], [63.0], [66.0]]);
        let res = collective(3, 3, |_| AllToAll, &schedule)?;
        assert_eq!(res, [[10.0, 20.0, 30.0], [11.0, 21.0, 31.0], [12.0, 22.0, 32.0]]);
        let res = collective(1, 1, |_| SendRecv { root: 1 }, &schedule)?;
        assert_eq!(res, [[20.0], [-1.0], [-1.0]]);
        let permute = |it| Permute { send_peer: (it + 1) % 3, recv_peer: (it + 2) % 3 };
        assert_eq!(collective(1, 1, permute, &schedule)?, [[30.0], [10.0], [20.0]]);
    }
    Ok(())
}

#[test]
fn mismatching_collectives_name_both_places() {
    use CollectiveKind::*;
    let root = |member| Broadcast { root: usize::from(member == 2) };
    let res = collective(2, 2, root, &Schedule::Program).err().map(|it| it.to_string());
    assert_eq!(
        res.as_deref(),
        Some("rank 3: line 1: Broadcast from member 1; rank 2 at line 1: Broadcast from member 0")
    );
    let res = collective(2, 1, |_| ReduceScatter { op: ReduceOp::Sum }, &Schedule::Program);
    assert_eq!(
        res.err().map(|it| it.to_string()).as_deref(),
        Some("rank 2: line 1: ReduceScatter (Sum) of 2 elements cannot be split equally among 3 members")
    );
    let res = collective(2, 5, |_| Allgather, &Schedule::Program).err().map(|it| it.to_string());
    assert_eq!(
        res.as_deref(),
        Some("rank 2: line 1: Allgather delivers 6 x f32, but the output holds 5 x f32")
    );
}

#[test]
fn transfers_among_all_pairs() -> Result<(), SimError> {
    let world = 4;
    let mut plans = Vec::new();
    for rank in 0..world {
        let mut it = RankPlanBuilder::new(rank, world, 1);
        let (given, got) = (it.buffer(world), it.output(world));
        let communicator = it.communicator(&[0, 1, 2, 3]);
        for peer in 0..world {
            it.fill(0, &View { offset: peer, ..View::contiguous(0, vec![1]) }, (10 * rank + peer) as i64);
        }
        let part = |view: &View, at: usize| View { offset: at, ..View::contiguous(view.buffer, vec![1]) };
        let parts: Vec<(View, View)> = (0..world).map(|at| (part(&given, at), part(&got, at))).collect();
        let sides: Vec<_> = (0..world)
            .flat_map(|it| [(Direction::Send, it, &parts[it].0), (Direction::Recv, it, &parts[it].1)])
            .collect();
        let work = it.transfer(communicator, &sides);
        it.wait(work);
        plans.push(it.finish());
    }
    for schedule in schedules(20) {
        let outcome = go(&plans, no_inputs(&plans), &schedule)?;
        for rank in 0..world {
            let want: Vec<f64> = (0..world).map(|it| (10 * it + rank) as f64).collect();
            assert_eq!(values(&outcome, rank), want, "{schedule}");
        }
    }
    Ok(())
}

/// Returns a ring in which every rank first sends and then receives, as one transfer or as two.
fn ring(world: usize, grouped: bool) -> Vec<Plan> {
    let team: Vec<usize> = (0..world).collect();
    let plan = |rank: usize| {
        let mut it = RankPlanBuilder::new(rank, world, 1);
        let (given, got) = (it.buffer(1), it.output(1));
        let communicator = it.communicator(&team);
        it.fill(0, &given, rank as i64);
        let send = (Direction::Send, (rank + 1) % world, &given);
        let recv = (Direction::Recv, (rank + world - 1) % world, &got);
        let works = match grouped {
            true => vec![it.transfer(communicator, &[send, recv])],
            false => vec![it.transfer(communicator, &[send]), it.transfer(communicator, &[recv])],
        };
        works.into_iter().for_each(|work| {
            it.wait(work);
        });
        it.finish()
    };
    (0..world).map(plan).collect()
}

#[test]
fn a_ring_works_as_one_transfer_and_hangs_as_two() -> Result<(), SimError> {
    for schedule in schedules(20) {
        let plans = ring(3, true);
        let outcome = go(&plans, no_inputs(&plans), &schedule)?;
        assert_eq!([values(&outcome, 0), values(&outcome, 1), values(&outcome, 2)], [[2.0], [0.0], [1.0]]);
        let plans = ring(3, false);
        assert_eq!(
            text(go(&plans, no_inputs(&plans), &schedule)),
            "deadlock: each rank sends before it receives: 0 → 1 → 2 → 0\n\
             help: put the send and the receive between StartCoalescing and EndCoalescing, or let one rank \
             receive first\n\
             rank 0: line 2 (a send or receive) on NCCL (0 1 2): waits for rank 1 to receive; rank 1 is at line 2 \
             (a send or receive), waiting for rank 2\n\
             rank 1: line 2 (a send or receive) on NCCL (0 1 2): waits for rank 2 to receive; rank 2 is at line 2 \
             (a send or receive), waiting for rank 0\n\
             rank 2: line 2 (a send or receive) on NCCL (0 1 2): waits for rank 0 to receive; rank 0 is at line 2 \
             (a send or receive), waiting for rank 1"
        );
    }
    Ok(())
}

#[test]
fn transfers_must_agree_on_size_and_type() {
    let plans = |dtype: DType, len: usize| {
        let (mut sender, mut receiver) = (RankPlanBuilder::new(0, 2, 1), RankPlanBuilder::new(1, 2, 1));
        let (given, got) = (sender.buffer(2), receiver.typed(len, dtype));
        let communicators = (sender.communicator(&[0, 1]), receiver.communicator(&[0, 1]));
        sender.transfer(communicators.0, &[(Direction::Send, 1, &given)]);
        receiver.fill(0, &got, 0).transfer(communicators.1, &[(Direction::Recv, 0, &got)]);
        [sender.finish(), receiver.finish()]
    };
    let run = |plans: [Plan; 2]| text(go(&plans, no_inputs(&plans), &Schedule::Program));
    assert_eq!(run(plans(DType::Float, 2)), "no fault");
    let message = "rank 0: line 1: sends 2 x f32, but rank 1 at line 2 receives";
    assert_eq!(run(plans(DType::Float, 3)), format!("{message} 3 x f32"));
    assert_eq!(run(plans(DType::Int32, 2)), format!("{message} 2 x i32"));
}

#[test]
fn a_member_that_never_comes_is_named() {
    let mut plans = Vec::new();
    for rank in 0..3 {
        let mut it = RankPlanBuilder::new(rank, 3, 1);
        let (from, to) = (it.buffer(1), it.output(3));
        let communicator = it.communicator(&[0, 1, 2]);
        it.fill(0, &from, 1);
        if rank != 1 {
            let work = it.collective(communicator, CollectiveKind::Allgather, Some(&from), Some(&to));
            it.wait(work);
        }
        plans.push(it.finish());
    }
    assert_eq!(
        text(go(&plans, no_inputs(&plans), &Schedule::Program)),
        "deadlock: rank 1 never posts the 1st collective of team (0 1 2), line 2 (Allgather) of rank 0\n\
         rank 0 posts 1 collective on this team, rank 1 posts 0\n\
         ranks 0 2: line 2 (Allgather) on NCCL (0 1 2): waits for rank 1; rank 1 has finished"
    );
}

fn slot(from: usize, to: usize, meaning: SignalKind) -> SignalId {
    SignalId { from, to, kind: meaning, index: 0 }
}

/// Rank 0 passes one element to rank 1 through peer memory. With `get`, rank 1 copies, otherwise rank 0.
fn one_sided(get: bool, guarded: bool) -> Vec<Plan> {
    let (mut sender, mut receiver) = (RankPlanBuilder::new(0, 2, 1), RankPlanBuilder::new(1, 2, 1));
    let (given, got) = (sender.buffer(1), receiver.output(1));
    sender.output(1);
    let (ready, done) = match get {
        true => (slot(0, 1, SignalKind::Ready), slot(1, 0, SignalKind::Done)),
        false => (slot(1, 0, SignalKind::Ready), slot(0, 1, SignalKind::Done)),
    };
    sender.fill(0, &given, 7);
    let (mover, other) = if get { (&mut receiver, &mut sender) } else { (&mut sender, &mut receiver) };
    other.on(0, InstKind::Signal { signal: ready });
    if guarded {
        mover.on(0, InstKind::WaitSignal { signal: ready });
    }
    mover.copy(0, (0, &given), (1, &got)).on(0, InstKind::Signal { signal: done });
    if guarded {
        other.on(0, InstKind::WaitSignal { signal: done });
    }
    // Reusing the buffer before `done` would change the result.
    sender.fill(0, &given, 8);
    vec![sender.finish(), receiver.finish()]
}

#[test]
fn get_and_put_protocols() -> Result<(), SimError> {
    for get in [true, false] {
        let guarded = one_sided(get, true);
        for schedule in schedules(50) {
            assert_eq!(values(&go(&guarded, no_inputs(&guarded), &schedule)?, 1), [7.0], "{schedule}");
        }
        let bare = one_sided(get, false);
        let wrong = |it: Schedule| go(&bare, no_inputs(&bare), &it).is_ok_and(|it| values(&it, 1) != [7.0]);
        assert!(schedules(50).any(wrong));
    }
    Ok(())
}

/// Stream 1 copies what stream 0 fills, and stream 0 reads the result. `joined` selects which waits for
/// events are present.
fn two_streams(joined: [bool; 2]) -> Vec<Plan> {
    let mut it = RankPlanBuilder::new(0, 1, 2);
    let (from, to) = (it.buffer(1), it.output(1));
    it.fill(0, &from, 5).on(0, InstKind::RecordEvent { event: 0 });
    if joined[0] {
        it.on(1, InstKind::WaitEvent { event: 0 });
    }
    it.copy(1, (0, &from), (0, &to)).on(1, InstKind::RecordEvent { event: 1 });
    if joined[1] {
        it.on(0, InstKind::WaitEvent { event: 1 });
    }
    vec![it.finish()]
}

#[test]
fn a_missing_join_is_found() -> Result<(), SimError> {
    let sound = two_streams([true, true]);
    for schedule in schedules(50) {
        assert_eq!(values(&go(&sound, no_inputs(&sound), &schedule)?, 0), [5.0]);
    }
    for joined in [[false, true], [true, false]] {
        let plans = two_streams(joined);
        let wrong =
            |it: Schedule| go(&plans, no_inputs(&plans), &it).is_ok_and(|it| values(&it, 0) == [-1.0]);
        assert!(wrong(Schedule::Adversarial));
        assert!((0..50).step_by(2).map(Schedule::Seed).any(wrong), "by priorities");
        assert!((1..50).step_by(2).map(Schedule::Seed).any(wrong), "by uniform choice");
        assert!(!wrong(Schedule::Program));
    }
    Ok(())
}

#[test]
fn finish_reads_what_is_there_and_tells_what_is_not() -> Result<(), SimError> {
    let plans = two_streams([true, false]);
    let options = SimOptions {
        watch: vec![ViewOnRank {
            rank: 0,
            view: plans[0].outputs[0].shard.view.clone().unwrap_or(View::contiguous(0, vec![])),
        }],
        trace: true,
        ..SimOptions::default()
    };
    let outcome = run(
        &plans,
        &sync::CommMatching::from_plans(&plans),
        no_inputs(&plans),
        &Schedule::Adversarial,
        &options,
    )?;
    assert_eq!(values(&outcome, 0), [-1.0]);
    assert_eq!(outcome.watched[0].data, floats(&[5.0]));
    let copy = InstRef { rank: 0, inst: 3 };
    assert_eq!(late_writers(&plans, &outcome, 0, 0), [copy]);
    assert_eq!(super::describe(&plans, copy), "line 4 on stream 1");
    assert_eq!(outcome.trace.map(|it| it.len()), Some(plans[0].code.len()));
    let unordered = two_streams([false, true]);
    let outcome = go(&unordered, no_inputs(&unordered), &Schedule::Adversarial)?;
    let read =
        UnwrittenRead { reader: InstRef { rank: 0, inst: 2 }, rank: 0, buffer: 0, missing: 1, elements: 1 };
    assert_eq!(outcome.notes.unwritten, [read]);
    assert_eq!(late_writers(&unordered, &outcome, 0, 0), []);
    Ok(())
}

#[test]
fn the_same_seed_gives_the_same_trace() -> Result<(), SimError> {
    let plans = ring(5, true);
    let trace = |seed| go(&plans, no_inputs(&plans), &Schedule::Seed(seed)).map(|it| it.trace);
    let mut different = 0;
    for seed in 0..20 {
        assert_eq!(trace(seed)?, trace(seed)?);
        different += usize::from(trace(seed)? != trace(seed + 2)?);
    }
    assert!(different > 10);
    Ok(())
}

#[test]
fn exchanges_match_by_channel_and_index() -> Result<(), SimError> {
    let handle = |direction, peer, number| MemHandle { direction, peer, index: 0, number };
    let share = |rank: usize, world: usize, handles: Vec<MemHandle>| {
        let mut it = RankPlanBuilder::new(rank, world, 2);
        it.on(1, InstKind::ShareMemHandles { handles }).on(0, InstKind::Barrier);
        it.finish()
    };
    let (send, recv) = (Direction::Send, Direction::Recv);
    let ring = |at: usize| share(at, 3, vec![handle(send, (at + 1) % 3, 4), handle(recv, (at + 2) % 3, 5)]);
    let plans: Vec<Plan> = (0..3).map(ring).collect();
    for schedule in schedules(10) {
        go(&plans, no_inputs(&plans), &schedule)?;
    }
    let plans = [
        share(0, 3, vec![handle(send, 1, 38)]),
        share(1, 3, vec![handle(send, 2, 38)]),
        share(2, 3, vec![handle(send, 0, 38)]),
    ];
    assert_eq!(
        text(go(&plans, no_inputs(&plans), &Schedule::Program)),
        "deadlock: rank 1 never shares P2PCommunication 38 as receiver from rank 0, for which rank 0 waits in \
         line 1 (ShareMemHandles)\n\
         rank 0: line 1 (ShareMemHandles): waits for rank 1 to share P2PCommunication 38 as receiver from rank 0; \
         rank 1 never does, it is at line 1 (ShareMemHandles), waiting for rank 2\n\
         rank 1: line 1 (ShareMemHandles): waits for rank 2 to share P2PCommunication 38 as receiver from rank 1; \
         rank 2 never does, it is at line 1 (ShareMemHandles), waiting for rank 0\n\
         rank 2: line 1 (ShareMemHandles): waits for rank 0 to share P2PCommunication 38 as receiver from rank 2; \
         rank 0 never does, it is at line 1 (ShareMemHandles), waiting for rank 1"
    );
    // Each rank first shares as sender, then as receiver, which forms a cycle.
    let twice = |at: usize| {
        let mut it = RankPlanBuilder::new(at, 3, 2);
        it.on(1, InstKind::ShareMemHandles { handles: vec![handle(send, (at + 1) % 3, 38)] });
        it.on(1, InstKind::ShareMemHandles { handles: vec![handle(recv, (at + 2) % 3, 39)] });
        it.finish()
    };
    let plans: Vec<Plan> = (0..3).map(twice).collect();
    let report = text(go(&plans, no_inputs(&plans), &Schedule::Seed(3)));
    assert_eq!(
        report.lines().take(2).collect::<Vec<_>>(),
        [
            "deadlock: ranks wait for each other: 0 → 1 → 2 → 0",
            "rank 0: line 1 (ShareMemHandles): waits for rank 1 to share P2PCommunication 38 as \
             receiver from rank 0; rank 1 is at line 1 (ShareMemHandles), waiting for rank 2",
        ]
    );
    Ok(())
}

#[test]
fn a_barrier_without_one_rank_hangs() {
    let plan = |rank: usize| {
        let mut it = RankPlanBuilder::new(rank, 3, 1);
        if rank != 2 {
            it.on(0, InstKind::Barrier);
        }
        it.finish()
    };
    let plans: Vec<Plan> = (0..3).map(plan).collect();
    assert_eq!(
        text(go(&plans, no_inputs(&plans), &Schedule::Program)),
        "deadlock: rank 2 never executes the 1st ShareMemHandles, where all ranks wait: rank 0 in line 1 (a \
         barrier)\n\
         rank 0 executes 1 ShareMemHandles, rank 2 executes 0\n\
         ranks 0 1: line 1 (a barrier): waits at its barrier for rank 2; rank 2 has finished"
    );
}

#[test]
fn a_rank_may_wait_for_itself() {
    let mut it = RankPlanBuilder::new(0, 1, 2);
    it.on(0, InstKind::WaitEvent { event: 0 }).on(0, InstKind::RecordEvent { event: 0 });
    it.on(1, InstKind::WaitEvent { event: 0 });
    assert_eq!(
        text(go(&[it.finish()], vec![Vec::new()], &Schedule::Program)),
        "deadlock: rank 0 waits for itself\n\
         rank 0: line 1, on stream 0: waits for line 2 on stream 0\n\
         rank 0: line 3, on stream 1: waits for line 2 on stream 0"
    );
}

#[test]
fn an_event_that_is_never_recorded_is_told() {
    let mut it = RankPlanBuilder::new(0, 1, 1);
    it.on(0, InstKind::WaitEvent { event: 0 });
    assert_eq!(
        text(go(&[it.finish()], vec![Vec::new()], &Schedule::Program)),
        "deadlock: rank 0 waits at line 1 for an event that it never records\n\
         rank 0: line 1, on stream 0: waits for an event that is never recorded"
    );
}

#[test]
fn a_row_sharded_matrix_reshards() -> Result<(), SimError> {
    // Each of two ranks holds two rows of a 4 x 2 matrix. The result is its transpose, also sharded by rows.
    let shard = |view: &View, shape: [usize; 2], rank: usize| {
        let rows = vec![
            AxisPiece { extent: 2, coordinate: Some(rank) },
            AxisPiece { extent: shape[0] / 2, coordinate: None },
        ];
        let pieces = vec![rows, vec![AxisPiece { extent: shape[1], coordinate: None }]];
        Shard { view: Some(view.clone()), layout: ShardLayout { shape: shape.to_vec(), pieces } }
    };
    let plan = |rank: usize| {
        let mut it = RankPlanBuilder::new(rank, 2, 1);
        let (from, to) = (it.input(4), it.output(4));
        let buffer = |name: &str| Buffer { name: name.to_owned(), dtype: DType::Float, len: 8 };
        let transposed = View { buffer: 0, offset: 0, shape: vec![2, 4], strides: vec![1, 2] };
        let place = |view| Box::new(ViewOnRank { rank: 0, view });
        let copy = InstKind::Copy { from: place(transposed), to: place(View::contiguous(1, vec![2, 4])) };
        it.on(
            0,
            InstKind::Reshard(Box::new(Reshard {
                team: [0, 1].into(),
                operands: vec![shard(&from, [4, 2], rank)],
                result: shard(&to, [2, 4], rank),
                buffers: vec![buffer("T0"), buffer("T1")],
                body: vec![copy],
            })),
        );
        it.finish()
    };
    let plans = [plan(0), plan(1)];
    for schedule in schedules(10) {
        let inputs = vec![vec![floats(&[0.0, 1.0, 2.0, 3.0])], vec![floats(&[4.0, 5.0, 6.0, 7.0])]];
        let outcome = go(&plans, inputs, &schedule)?;
        assert_eq!(values(&outcome, 0), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(values(&outcome, 1), [1.0, 3.0, 5.0, 7.0]);
    }
    Ok(())
}

#[test]
fn postings_order_a_queue_and_only_waits_order_a_stream() -> Result<(), SimError> {
    // Two broadcasts write to one buffer, and the later one wins. Without the wait, the output may be read
    // earlier.
    let plans = |waits: bool| -> Vec<Plan> {
        (0..2)
            .map(|rank| {
                let mut it = RankPlanBuilder::new(rank, 2, 1);
                let (a, b, to) = (it.buffer(1), it.buffer(1), it.output(1));
                let communicator = it.communicator(&[0, 1]);
                it.fill(0, &a, 1).fill(0, &b, 2);
                let kind = CollectiveKind::Broadcast { root: 0 };
                it.collective(communicator, kind, Some(&a), Some(&to));
                let work = it.collective(communicator, kind, Some(&b), Some(&to));
                if waits {
                    it.wait(work);
                }
                it.finish()
            })
            .collect()
    };
    let (sound, racy) = (plans(true), plans(false));
    let mut seen = Vec::new();
    for schedule in schedules(50) {
        assert_eq!(values(&go(&sound, no_inputs(&sound), &schedule)?, 1), [2.0]);
        seen.extend(values(&go(&racy, no_inputs(&racy), &schedule)?, 1));
    }
    seen.sort_by(f64::total_cmp);
    seen.dedup();
    assert_eq!(seen, [-1.0, 1.0, 2.0]);
    Ok(())
}

#[test]
fn instructions_that_compute() -> Result<(), SimError> {
    let mut it = RankPlanBuilder::new(0, 1, 1);
    let (row, sum, out) = (it.buffer(3), it.buffer(3), it.output(3));
    it.on(0, InstKind::Iota { to: Box::new(row.clone()), start: 1, step: 2 });
    let args = [Arg::View(row.clone()), Arg::Number(Number::Int(10)), Arg::View(row.clone())];
    it.on(0, InstKind::Map { op: Op::Add, args: args[..2].to_vec(), out: Box::new(sum.clone()) });
    it.on(0, InstKind::Map { op: Op::Sub, args: args[1..].to_vec(), out: Box::new(row.clone()) });
    it.on(0, InstKind::Alloc { buffer: out.buffer, zero: false });
    // [11, 13, 15] · [9, 7, 5] as a product of a 1 x 3 and a 3 x 1 matrix, then the sum of the first two
    // elements.
    let shaped = |view: &View, shape: [usize; 2]| View::contiguous(view.buffer, shape.to_vec());
    let one = |offset| View { offset, ..View::contiguous(out.buffer, vec![1, 1]) };
    let (a, b) = (shaped(&sum, [1, 3]), shaped(&row, [3, 1]));
    it.on(0, InstKind::Gemm(Box::new(Gemm { a, b, bias: None, out: one(0) })));
    let scalar = View { offset: 1, ..View::contiguous(out.buffer, vec![]) };
    let input = View::contiguous(sum.buffer, vec![2]);
    let init = Number::Int(0);
    let sum = Reduce { op: ReduceOp::Sum, init, input, axes: vec![0], out: scalar };
    it.on(0, InstKind::Reduce(Box::new(sum)));
    let outcome = go(&[it.finish()], vec![Vec::new()], &Schedule::Program)?;
    assert_eq!(values(&outcome, 0), [265.0, 24.0, -1.0]);
    assert!(outcome.notes.exactness.is_exact() && outcome.notes.unwritten.is_empty());
    Ok(())
}

#[test]
fn schedules_parse_and_print() {
    for text in ["program", "adversarial", "seed:42"] {
        assert_eq!(text.parse::<Schedule>().map(|it| it.to_string()).as_deref(), Ok(text));
    }
    let error = "seed:x".parse::<Schedule>().err().map(|it| it.to_string());
    assert_eq!(
        error.as_deref(),
        Some(
            "unknown schedule `seed:x`: expected `program`, `adversarial`, `seed:N`, `seed:A..B`, `explore:N` or `@FILE`"
        )
    );
}

#[test]
fn a_long_program_runs_quickly() -> Result<(), SimError> {
    let world = 8;
    let team: Vec<usize> = (0..world).collect();
    let plan = |rank: usize| {
        let mut it = RankPlanBuilder::new(rank, world, 4);
        let (from, to) = (it.buffer(1), it.output(1));
        let communicator = it.communicator(&team);
        let next = (rank + 1) % world;
        for round in 0..10_000 {
            let stream = round % 4;
            it.fill(stream, &from, 1).on(stream, InstKind::RecordEvent { event: round });
            it.on((stream + 1) % 4, InstKind::WaitEvent { event: round });
            let sides = [(Direction::Send, next, &from), (Direction::Recv, (rank + world - 1) % world, &to)];
            let work = it.transfer(communicator, &sides);
            it.wait(work).fill(stream, &to, 2).fill(stream, &to, 3);
            let kind = CollectiveKind::Broadcast { root: round as usize % world };
            let work = it.collective(communicator, kind, Some(&from), Some(&to));
            it.wait(work).fill(stream, &to, 4);
        }
        it.finish()
    };
    let plans: Vec<Plan> = (0..world).map(plan).collect();
    for schedule in schedules(2) {
        let start = std::time::Instant::now();
        go(&plans, no_inputs(&plans), &schedule)?;
        let time = start.elapsed();
        assert!(time.as_secs() < 30, "{schedule}: {time:?}");
    }
    Ok(())
}

/// Returns a random program of three ranks, which may deadlock.
fn random_program(random: &mut Random) -> Vec<Plan> {
    let world = 3;
    let len = random.below(13) as u32;
    let plan = |rank: usize| {
        let mut it = RankPlanBuilder::new(rank, world, 3);
        let (from, to) = (it.buffer(1), it.output(1));
        let mut communicators = vec![it.communicator(&[0, 1, 2])];
        if rank != 1 {
            communicators.push(it.communicator(&[2, 0]));
        }
        let mut works = Vec::new();
        let mut indices = [[0; 3]; 2];
        for event in 0..len {
            let stream = random.below(3) as u32;
            let peer = (rank + 1 + random.below(2) as usize) % world;
            let direction = if random.below(2) == 0 { Direction::Send } else { Direction::Recv };
            let communicator = communicators[random.below(communicators.len() as u64) as usize];
            let mut slot = |from: usize, to: usize| {
                let index = &mut indices[usize::from(from == rank)][peer];
                *index += 1;
                SignalId { from, to, kind: SignalKind::Ready, index: *index }
            };
            let kind = match random.below(16) {
                0..3 => InstKind::RecordEvent { event },
                3..5 => InstKind::WaitEvent { event: random.below(u64::from(event) + 1) as u32 },
                5..8 => InstKind::Signal { signal: slot(rank, peer) },
                8 => InstKind::WaitSignal { signal: slot(peer, rank) },
                9 => InstKind::Barrier,
                10 => InstKind::ShareMemHandles {
                    handles: vec![MemHandle { direction, peer, index: 0, number: 1 }],
                },
                11..13 => {
                    works.push(it.transfer(communicator, &[(direction, peer, &from)]));
                    continue;
                }
                13 => {
                    works.push(it.collective(communicator, CollectiveKind::Allgather, None, None));
                    continue;
                }
                14 if !works.is_empty() => {
                    InstKind::Wait { work: works[random.below(works.len() as u64) as usize] }
                }
                _ => InstKind::Fill { to: Box::new(to.clone()), value: Number::Int(1) },
            };
            it.on(stream, kind);
        }
        it.finish()
    };
    (0..world).map(plan).collect()
}

#[test]
fn what_hangs_hangs_alike_under_every_schedule() {
    let mut random = Random(7);
    let (mut hung, mut ran) = (0, 0);
    for _ in 0..2000 {
        let plans = random_program(&mut random);
        let first = text(go(&plans, no_inputs(&plans), &Schedule::Program));
        for schedule in schedules(6) {
            assert_eq!(text(go(&plans, no_inputs(&plans), &schedule)), first, "{schedule}");
        }
        assert!(first == "no fault" || first.starts_with("deadlock: "), "{first}");
        if first == "no fault" { ran += 1 } else { hung += 1 }
    }
    assert!(hung > 100 && ran > 20, "{hung} {ran}");
}
