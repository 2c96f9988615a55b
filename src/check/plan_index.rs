//! What explanations look up in the instructions of a plan, collected in one pass. A report explains many races of the
//! same plans.

use std::{cell::OnceCell, rc::Rc};

use grammar::StmtId;
use rustc_hash::{FxHashMap, FxHashSet};

use super::stream_waits::StreamWaits;
use hir_plan::{
    Access, Allocation, BufferNo, EventNo, InstKind, Plan, PlanStream, SignalId, StreamNo, WorkNo, World,
    sync::P2pQueues,
};

/// The indexes of the plans of all ranks, each created when it is needed.
#[derive(Clone)]
pub struct PlanIndexes<'p> {
    tables: Rc<TablesOfRanks>,
    world: &'p World,
    /// The queues whose orders count.
    p2p: P2pQueues,
}

/// The tables of all ranks.
struct TablesOfRanks {
    plans: Vec<OnceCell<Tables>>,
    /// How streams wait with one communicator for all transfers.
    waits: Vec<OnceCell<StreamWaits>>,
    /// The plans with a communicator for each pair of ranks, and how streams wait then; `None` if no transfer has one.
    pairs: OnceCell<Option<(World, Vec<OnceCell<StreamWaits>>)>>,
}

impl<'p> PlanIndexes<'p> {
    /// Creates the indexes of the plans of a world, in which all transfers have one communicator.
    pub fn new(world: &'p World) -> Self {
        let (plans, waits) = world.iter().map(|_| (OnceCell::new(), OnceCell::new())).unzip();
        let tables = Rc::new(TablesOfRanks { plans, waits, pairs: OnceCell::new() });
        Self { tables, world, p2p: P2pQueues::Communicator }
    }

    /// Returns the indexes in which streams wait as they do with the queues of a finding.
    pub fn with_queues(&self, p2p: P2pQueues) -> Self {
        Self { p2p, ..self.clone() }
    }

    /// Returns the index of the plan of a rank.
    pub fn of(&self, rank: usize) -> PlanIndex<'_> {
        let (plan, all) = (&self.world[rank], &*self.tables);
        let pairs = || {
            let pairs = self.world.with_pair_communicators()?;
            let waits = pairs.iter().map(|_| OnceCell::new()).collect();
            Some((pairs, waits))
        };
        let pairs = match self.p2p {
            P2pQueues::Pair => all.pairs.get_or_init(pairs).as_ref(),
            P2pQueues::Communicator => None,
        };
        let (ordered, waits) = pairs.map_or((self.world, &all.waits), |it| (&it.0, &it.1));
        let tables = all.plans[rank].get_or_init(|| Tables::of(plan));
        PlanIndex { plan, tables, ordered, waits: &waits[rank] }
    }
}

/// A plan and the positions of its instructions.
#[derive(Clone, Copy)]
pub struct PlanIndex<'p> {
    plan: &'p Plan,
    tables: &'p Tables,
    /// The plans of all ranks with the queues whose orders count, and how the streams of this rank wait with them.
    ordered: &'p World,
    waits: &'p OnceCell<StreamWaits>,
}

/// Positions of instructions of a plan: indices into `Plan::code`.
#[derive(Default)]
struct Tables {
    /// The first `Wait` on a stream of the program, by work.
    waits: FxHashMap<WorkNo, usize>,
    /// The first `WaitEvent` on a stream of the program, by event.
    event_waits: FxHashMap<EventNo, usize>,
    /// The events that each stream records, in order.
    records: FxHashMap<StreamNo, Vec<(usize, EventNo)>>,
    allocs: FxHashMap<BufferNo, usize>,
    allocations: FxHashMap<BufferNo, Allocation>,
    signals: FxHashMap<SignalId, usize>,
    signal_waits: FxHashMap<SignalId, usize>,
    /// The signals that each stream sends to a rank, in order.
    sent: FxHashMap<(StreamNo, usize), Vec<(usize, SignalId)>>,
    /// The signals of a rank for which each stream waits, in order.
    awaited: FxHashMap<(StreamNo, usize), Vec<(usize, SignalId)>>,
    by_stmt: FxHashMap<StmtId, Vec<usize>>,
    iterations: OnceCell<FxHashSet<(StmtId, Option<u32>)>>,
    /// The instructions that read or write each buffer of the rank, in order.
    uses: OnceCell<FxHashMap<BufferNo, Vec<usize>>>,
}

impl Tables {
    fn of(plan: &Plan) -> Self {
        let mut it = Self::default();
        for allocation in &plan.allocations {
            it.allocations.entry(allocation.buffer).or_insert(*allocation);
        }
        for (at, inst) in plan.code.iter().enumerate() {
            let is_in_program = plan.stream_of(inst).is_none_or(PlanStream::is_in_program);
            match inst.kind {
                InstKind::Wait { work } if is_in_program => _ = it.waits.entry(work).or_insert(at),
                InstKind::WaitEvent { event } if is_in_program => {
                    it.event_waits.entry(event).or_insert(at);
                }
                InstKind::RecordEvent { event } => {
                    it.records.entry(inst.stream).or_default().push((at, event));
                }
                InstKind::Alloc { buffer, .. } => _ = it.allocs.entry(buffer).or_insert(at),
                InstKind::Signal { signal } => {
                    it.signals.entry(signal).or_insert(at);
                    it.sent.entry((inst.stream, signal.to)).or_default().push((at, signal));
                }
                InstKind::WaitSignal { signal } => {
                    it.signal_waits.entry(signal).or_insert(at);
                    it.awaited.entry((inst.stream, signal.from)).or_default().push((at, signal));
                }
                _ => (),
            }
            if let Some(stmt) = plan.origins[inst.origin as usize].stmt {
                it.by_stmt.entry(stmt).or_default().push(at);
            }
        }
        it
    }
}

impl<'p> PlanIndex<'p> {
    /// Returns the plan.
    pub fn plan(self) -> &'p Plan {
        self.plan
    }

    /// Returns the instructions of the rank that read or write one of its buffers, in order.
    pub fn own_uses(self, buffer: BufferNo) -> &'p [usize] {
        let uses = self.tables.uses.get_or_init(|| {
            let mut found: FxHashMap<BufferNo, Vec<usize>> = FxHashMap::default();
            for (at, inst) in self.plan.code.iter().enumerate() {
                inst.kind.visit_accesses(self.plan.rank, &mut |it| {
                    let known = found.entry(it.view.buffer).or_default();
                    if it.rank == self.plan.rank && known.last() != Some(&at) {
                        known.push(at);
                    }
                });
            }
            found
        });
        uses.get(&buffer).map_or(&[], Vec::as_slice)
    }

    /// Returns the reads and writes of an instruction in a buffer of the rank.
    pub fn own_accesses(self, at: usize, buffer: BufferNo) -> impl Iterator<Item = Access<'p>> {
        let all = self.plan.code[at].kind.accesses(self.plan.rank).into_iter();
        all.filter(move |it| it.rank == self.plan.rank && it.view.buffer == buffer)
    }

    /// Returns the first instruction by which a stream of the program waits for a communication. `inst` is the
    /// communication or a part of it.
    pub fn first_wait_for(self, inst: usize) -> Option<usize> {
        if let Some(it) = self.plan.code[inst].kind.communication() {
            return self.tables.waits.get(&it.work()).copied();
        }
        // A queue records an event after each communication that it runs itself.
        let recorded = self.tables.records.get(&self.plan.code[inst].stream)?;
        let (_, event) = recorded.get(recorded.partition_point(|it| it.0 < inst))?;
        self.tables.event_waits.get(event).copied()
    }

    /// Returns the first instruction after which the stream `waiting` has waited for the instruction `at`, or for the
    /// communication that `at` posts.
    pub fn first_stream_wait(self, at: usize, waiting: StreamNo) -> Option<usize> {
        self.stream_waits().first(self.plan, at, waiting)
    }

    fn stream_waits(self) -> &'p StreamWaits {
        self.waits.get_or_init(|| StreamWaits::new(self.ordered, self.plan.rank))
    }

    /// Returns the first instruction after which the stream `waiting` has waited for what another stream executes up to an instruction.
    pub fn first_wait_for_stream(self, up_to: (StreamNo, usize), waiting: StreamNo) -> Option<usize> {
        self.stream_waits().first_for(up_to, waiting)
    }

    /// Returns the instruction that allocates a buffer.
    pub fn alloc(self, buffer: BufferNo) -> Option<usize> {
        self.tables.allocs.get(&buffer).copied()
    }

    /// Returns the storage of a buffer.
    pub fn allocation(self, buffer: BufferNo) -> Option<&'p Allocation> {
        self.tables.allocations.get(&buffer)
    }

    /// Returns the instruction that sends a signal.
    pub fn signal(self, signal: SignalId) -> Option<usize> {
        self.tables.signals.get(&signal).copied()
    }

    /// Returns the instruction that waits for a signal.
    pub fn signal_wait(self, signal: SignalId) -> Option<usize> {
        self.tables.signal_waits.get(&signal).copied()
    }

    /// Returns the first signal to `rank` that the stream of the instruction `at` sends after it.
    pub fn next_signal_to(self, at: usize, rank: usize) -> Option<SignalId> {
        let sent = self.tables.sent.get(&(self.plan.code[at].stream, rank))?;
        sent.get(sent.partition_point(|it| it.0 <= at)).map(|it| it.1)
    }

    /// Returns the last signal of `rank` for which the stream of the instruction `at` waits before it.
    pub fn last_signal_from(self, at: usize, rank: usize) -> Option<SignalId> {
        let awaited = self.tables.awaited.get(&(self.plan.code[at].stream, rank))?;
        awaited[..awaited.partition_point(|it| it.0 < at)].last().map(|it| it.1)
    }

    /// Returns the instructions of a statement.
    pub fn of_stmt(self, stmt: StmtId) -> &'p [usize] {
        self.tables.by_stmt.get(&stmt).map_or(&[], Vec::as_slice)
    }

    /// Returns whether a statement is executed in an iteration.
    pub fn is_in_iteration(self, stmt: Option<StmtId>, iteration: u32) -> bool {
        let all = self.tables.iterations.get_or_init(|| {
            self.plan.origins.iter().filter_map(|it| Some((it.stmt?, it.iteration))).collect()
        });
        stmt.is_some_and(|stmt| all.contains(&(stmt, Some(iteration))))
    }
}
