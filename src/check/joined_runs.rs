//! The plans of several runs of a rank as a single plan: a process issues the runs one after the other.

use std::sync::Arc;

use hir_plan::{CommunicatorNo, Inst, InstKind, LoopIteration, Origin, Plan, SignalId, StreamNo};

/// Returns the number of signals of all ranks.
pub(super) fn signal_count(plans: &[Plan]) -> u32 {
    let signals = plans.iter().flat_map(|it| &it.code).filter_map(|it| match it.kind {
        InstKind::Signal { signal } | InstKind::WaitSignal { signal } => Some(signal.index + 1),
        _ => None,
    });
    signals.max().unwrap_or(0)
}

/// A plan to which runs are added.
pub(super) struct JoinedRuns {
    /// The plan.
    pub plan: Plan,
    /// The signals of all ranks that the runs so far have.
    signals: u32,
}

/// The numbers that the streams and communicators of a run have in the joined plan.
pub(super) struct RunNumbers {
    /// By stream of the run.
    pub streams: Vec<StreamNo>,
    /// By named pool of the run.
    pub pools: Vec<u32>,
    communicators: Vec<CommunicatorNo>,
    /// What is added to the numbers of origins.
    pub origins: u32,
}

impl JoinedRuns {
    /// Begins with a plan's streams, communicators, buffers and ports, and without instructions.
    pub fn new(plan: Plan) -> Self {
        let plan = Plan {
            code: Vec::new(),
            allocations: Vec::new(),
            peer_collectives: Vec::new(),
            early_releases: Vec::new(),
            event_count: 0,
            work_count: 0,
            ..plan
        };
        Self { plan, signals: 0 }
    }

    /// Adds the streams and communicators of a run that the plan does not have. All runs get their numbers before the first one is added.
    pub fn number(&mut self, of: &Plan) -> RunNumbers {
        RunNumbers {
            streams: add_all(&mut self.plan.streams, &of.streams),
            pools: add_all(&mut self.plan.pools, &of.pools),
            communicators: add_all(&mut self.plan.communicators, &of.communicators),
            origins: 0,
        }
    }

    /// Adds the origins and iterations of another program, and returns the number of the first origin. Its statements have no names.
    pub fn add_origins(&mut self, of: &Plan) -> u32 {
        let plan = &mut self.plan;
        let (origins, iterations) = (plan.origins.len() as u32, plan.iterations.len() as u32);
        let own =
            |it: &Origin| Origin { stmt: None, iteration: it.iteration.map(|at| at + iterations), ..*it };
        Arc::make_mut(&mut plan.origins).extend(of.origins.iter().map(own));
        let own =
            |it: &LoopIteration| LoopIteration { parent: it.parent.map(|at| at + iterations), ..it.clone() };
        Arc::make_mut(&mut plan.iterations).extend(of.iterations.iter().map(own));
        origins
    }

    /// Adds a run: of each instruction, given with its number, what `keep` returns. `signals` is the number of signals of all ranks in the run.
    /// Returns the places of the instructions.
    pub fn add_run(
        &mut self,
        of: &Plan,
        numbers: &RunNumbers,
        signals: u32,
        mut keep: impl FnMut(usize, &InstKind) -> Option<InstKind>,
    ) -> Vec<Option<usize>> {
        let (events, works) = (self.plan.event_count as u32, self.plan.work_count as u32);
        let mut places = Vec::with_capacity(of.code.len());
        for (number, inst) in of.code.iter().enumerate() {
            let origin = inst.origin + numbers.origins;
            let kept = keep(number, &inst.kind).map(|mut kind| {
                renumber(&mut kind, (events, works, self.signals), numbers);
                self.push(kind, numbers.streams[inst.stream as usize], origin)
            });
            places.push(kept);
            if let InstKind::HostWait { event } = inst.kind {
                // What the host issues then follows, also on streams that only other runs have.
                let others = 0..self.plan.streams.len() as StreamNo;
                for stream in others.filter(|it| !numbers.streams.contains(it)) {
                    self.push(InstKind::WaitEvent { event: event + events }, stream, origin);
                }
            }
        }
        self.plan.event_count += of.event_count;
        self.plan.work_count += of.work_count;
        self.signals += signals;
        places
    }

    /// Lets what follows on stream 0, which is current at entry, wait for a stream: the next run begins where this one has ended.
    pub fn end_run(&mut self, exit: StreamNo, origin: u32) {
        let event = self.plan.event_count as u32;
        self.plan.event_count += 1;
        self.push(InstKind::RecordEvent { event }, exit, origin);
        self.push(InstKind::WaitEvent { event }, 0, origin);
    }

    /// Adds an instruction, and returns its place.
    pub fn push(&mut self, kind: InstKind, stream: StreamNo, origin: u32) -> usize {
        self.plan.code.push(Inst { kind, stream, origin });
        self.plan.code.len() - 1
    }
}

/// Adds what is not in `known` yet, and returns the numbers there. Of equal elements, the n-th is the n-th in `known`.
fn add_all<T: Clone + PartialEq>(known: &mut Vec<T>, all: &[T]) -> Vec<u32> {
    let mut numbers = Vec::new();
    for it in all {
        let number = (0..known.len()).find(|at| known[*at] == *it && !numbers.contains(&(*at as u32)));
        numbers.push(number.unwrap_or(known.len()) as u32);
        if number.is_none() {
            known.push(it.clone());
        }
    }
    numbers
}

/// Numbers the events, works and signals of a run behind those of the runs before, and gives communicators and origins their numbers in the
/// joined plan.
fn renumber(kind: &mut InstKind, (events, works, signals): (u32, u32, u32), numbers: &RunNumbers) {
    match kind {
        InstKind::RecordEvent { event } | InstKind::WaitEvent { event } | InstKind::HostWait { event } => {
            *event += events;
        }
        InstKind::Wait { work } => *work += works,
        InstKind::Signal { signal: it } | InstKind::WaitSignal { signal: it } => {
            *it = SignalId { index: it.index + signals, ..*it };
        }
        InstKind::Collective(it) => {
            it.work += works;
            it.communicator = numbers.communicators[it.communicator as usize];
        }
        InstKind::P2pGroup(it) => {
            it.work += works;
            it.communicator = numbers.communicators[it.communicator as usize];
            it.ops.iter_mut().for_each(|it| it.origin += numbers.origins);
        }
        hir_plan::local_insts!()
        | InstKind::ShareMemHandles { .. }
        | InstKind::Barrier
        | InstKind::Reshard(_)
        | InstKind::ReadOutputs => (),
    }
}
