//! Compares the checker with the transitive closure of all edges on long programs: hundreds of accesses of few buffers, by streams that
//! nearly always wait for each other. The search of all orders (`models`) covers short programs only.
//!
//! `HIR_LONG_STREAMS=2000` tries more programs, `HIR_SEED=7` others.

use std::{collections::BTreeSet, sync::Arc};

use grammar::{dtype::DType, ops::Op};
use hir_check::{Checks, Finding, Party, check, races};
use hir_plan::{
    Arg, Buffer, Inst, InstKind, Number, Origin, Plan, PlanStream, SignalId, SignalKind, View, ViewOnRank,
    World,
};
use libtest_mimic::{Failed, Trial};

use crate::{layouts::reachability::Graph, rng::Rng, setting::number_or};

/// Default number of programs.
const PROGRAMS: usize = 1200;
/// Elements that an instruction accesses.
const PIECE: usize = 4;

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    vec![Trial::test("long_streams::races_are_those_of_the_closure", || {
        let seeds = number_or("HIR_SEED", 0) * 1_000_000..;
        let [mut clean, mut racy] = [0; 2];
        for seed in seeds.take(number_or("HIR_LONG_STREAMS", PROGRAMS)) {
            let of_program = compare(seed as u64).map_err(|it| format!("seed {seed}: {it}"))?;
            clean += of_program[0];
            racy += of_program[1];
        }
        // Buffers of one kind prove nothing about the other kind.
        if clean.min(racy) * 20 < clean + racy {
            return Err(Failed::from(format!("{clean} buffers without a race, {racy} with one")));
        }
        Ok(())
    })]
}

/// Returns the numbers of buffers without and with a race.
fn compare(seed: u64) -> Result<[usize; 2], String> {
    // One race is reported for two statements and a buffer: if each instruction is a statement of its own, all pieces are compared.
    let has_own_statements = seed.is_multiple_of(2);
    let world = World::new(Builder::plans(Rng(seed ^ 0x10_25), has_own_statements));
    let expected = racy_pieces(&world);
    let inner = |party: Party| matches!(party, Party::Inst(_) | Party::Operation(..));
    let found: BTreeSet<Piece> = races(&world)
        .iter()
        .filter(|it| it.parties.iter().all(|it| inner(it.0)))
        .map(|it| ((it.rank, it.buffer), it.elements.start))
        .collect();
    let [racy, reported] = [&expected, &found].map(|it| it.iter().map(|it| it.0).collect::<BTreeSet<_>>());
    if racy != reported || has_own_statements && expected != found {
        return Err(format!("the closure has races on {expected:?}, the checker on {found:?}"));
    }
    let report = check(&world, Checks::ALL_FAULTS);
    if report.findings.iter().any(|it| matches!(it, Finding::Race { .. })) == racy.is_empty() {
        return Err(format!("the closure has races on {expected:?}, the report {:?}", report.findings));
    }
    let all: usize = world.iter().map(|it| it.buffers.len()).sum();
    Ok([all - racy.len(), racy.len()])
}

/// What an instruction accesses: the rank and number of the buffer, and the first element.
type Piece = ((usize, u32), usize);

/// An access: where it is, its buffer, first element, and whether it writes.
type Access = ((usize, usize), (usize, u32), usize, bool);

/// Returns the buffers with two conflicting accesses that nothing orders.
fn racy_pieces(world: &World) -> BTreeSet<Piece> {
    let graph = Graph::of(world);
    let mut all: Vec<Access> = Vec::new();
    for plan in world.iter() {
        for (inst, it) in plan.code.iter().enumerate() {
            let accesses = it.kind.accesses(plan.rank);
            all.extend(
                accesses
                    .iter()
                    .map(|it| ((plan.rank, inst), (it.rank, it.view.buffer), it.view.offset, it.is_write)),
            );
        }
    }
    let conflict = |a: &Access, b: &Access| a.1 == b.1 && a.2 == b.2 && (a.3 || b.3) && a.0 != b.0;
    let pairs = all.iter().enumerate().flat_map(|(at, a)| all[at + 1..].iter().map(move |b| (a, b)));
    pairs
        .filter(|(a, b)| conflict(a, b) && !graph.is_ordered(a.0, b.0) && !graph.is_ordered(b.0, a.0))
        .map(|(a, _)| (a.1, a.2))
        .collect()
}

/// A stream: its rank and number.
type Stream = (usize, u32);

/// The last access of a buffer by a stream.
struct User {
    stream: Stream,
    writes: bool,
    /// The streams that wait for it.
    followed_by: Vec<Stream>,
}

/// Builds plans whose instructions are added in an order in which they can run.
struct Builder {
    rng: Rng,
    plans: Vec<Plan>,
    streams: Vec<Stream>,
    buffers: Vec<(usize, u32)>,
    signals: u32,
    /// By buffer: the last write, and the last read of each stream since.
    users: Vec<Vec<User>>,
    /// The share of 1,000 accesses that wait for no other stream.
    careless: usize,
}

impl Builder {
    fn plans(mut rng: Rng, has_own_statements: bool) -> Vec<Plan> {
        let (ranks, streams) = (1 + rng.below(3), 1 + rng.below(3) as u32);
        let origins = if has_own_statements { 1 << 14 } else { 1 + rng.below(40) as u32 };
        let origin = |line| Origin { stmt: None, line, iteration: None };
        let blank = |rank| Plan {
            origins: Arc::new((0..origins).map(origin).collect()),
            ..Plan::empty(rank, ranks, (0..i64::from(streams)).map(PlanStream::Indexed).collect())
        };
        let mut it = Self {
            plans: (0..ranks).map(blank).collect(),
            streams: (0..ranks).flat_map(|rank| (0..streams).map(move |it| (rank, it))).collect(),
            buffers: Vec::new(),
            signals: 0,
            users: Vec::new(),
            careless: rng.below(500).saturating_sub(100),
            rng,
        };
        for rank in 0..ranks {
            for number in 0..1 + it.rng.below(3) as u32 {
                let pieces = if it.rng.chance(30) { 1 + it.rng.below(3) } else { 50 + it.rng.below(100) };
                it.plans[rank].buffers.push(Buffer::new(format!("T{number}"), DType::Float, PIECE * pieces));
                it.buffers.push((rank, number));
                it.users.push(Vec::new());
            }
        }
        // Each stream stays for a while, so that its accesses exceed what is kept of a stream.
        let steps = 200 + it.rng.below(400);
        let patience = 1 + it.rng.below(200);
        let mut stream = it.rng.choose_cloned(&it.streams);
        for _ in 0..steps {
            if it.rng.below(patience) == 0 {
                stream = it.rng.choose_cloned(&it.streams);
            }
            it.step(stream);
        }
        it.plans
    }

    fn step(&mut self, by: Stream) {
        let [from, to] = [0, 1].map(|_| self.rng.below(self.buffers.len()));
        let is_local = |it: usize| self.buffers[it].0 == by.0;
        let kind = match self.rng.below(4) {
            0 if is_local(to) => {
                self.wait(by, to, true);
                InstKind::Fill { to: Box::new(self.piece(to).view), value: Number::Int(1) }
            }
            // Of two conflicts of two instructions on one buffer, one is reported.
            _ if from == to => return,
            1 if is_local(from) && is_local(to) => {
                self.wait(by, from, false);
                self.wait(by, to, true);
                let arg = Arg::View(self.piece(from).view);
                InstKind::Map { op: Op::Relu, args: vec![arg], out: Box::new(self.piece(to).view) }
            }
            _ => {
                self.wait(by, from, false);
                self.wait(by, to, true);
                InstKind::Copy { from: Box::new(self.piece(from)), to: Box::new(self.piece(to)) }
            }
        };
        self.push(by, kind);
    }

    fn push(&mut self, (rank, stream): Stream, kind: InstKind) {
        let origins = self.plans[rank].origins.len();
        let is_own = origins > self.plans[rank].code.len();
        let origin = if is_own { self.plans[rank].code.len() } else { self.rng.below(origins) };
        let origin = origin as u32;
        self.plans[rank].code.push(Inst { kind, stream, origin });
    }

    fn piece(&mut self, buffer: usize) -> ViewOnRank {
        let (rank, number) = self.buffers[buffer];
        let pieces = self.plans[rank].buffers[number as usize].len / PIECE;
        let offset = PIECE * self.rng.below(pieces);
        ViewOnRank { rank, view: View { offset, ..View::contiguous(number, vec![PIECE]) } }
    }

    /// Lets a stream wait for those that its access of a buffer conflicts with. Rarely, it does not.
    fn wait(&mut self, by: Stream, buffer: usize, writes: bool) {
        let is_careful = self.rng.below(1000) >= self.careless;
        let mut before = Vec::new();
        for it in &mut self.users[buffer] {
            if it.stream != by && (writes || it.writes) && !it.followed_by.contains(&by) {
                it.followed_by.push(by);
                before.push(it.stream);
            }
        }
        before.retain(|_| is_careful);
        before.into_iter().for_each(|it| self.order(it, by));
        let users = &mut self.users[buffer];
        if writes {
            users.clear();
        }
        users.retain(|it| it.stream != by || it.writes);
        users.push(User { stream: by, writes, followed_by: Vec::new() });
    }

    /// Lets what follows on `late` wait for what `early` has so far.
    fn order(&mut self, early: Stream, late: Stream) {
        if early.0 == late.0 {
            let event = self.plans[early.0].event_count as u32;
            self.plans[early.0].event_count += 1;
            self.push(early, InstKind::RecordEvent { event });
            self.push(late, InstKind::WaitEvent { event });
        } else {
            let signal = SignalId { from: early.0, to: late.0, kind: SignalKind::Ready, index: self.signals };
            self.signals += 1;
            self.push(early, InstKind::Signal { signal });
            self.push(late, InstKind::WaitSignal { signal });
        }
    }
}
