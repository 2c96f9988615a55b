//! What a program over peer memory executes: works of streams and hosts, and what each has to follow.

use super::{super::works::Works, Program, RANKS, STREAMS, SYMMETRIC, Statement, TENSORS, Transfer};

/// The works of a transfer.
#[derive(Clone, Copy)]
struct TransferWorks {
    /// The side that does not copy is ready.
    ready: usize,
    /// The stream of the side that copies begins to wait.
    reached: usize,
    /// The copy, after which the other side may continue.
    copied: usize,
}

/// The works of a collective, by rank.
#[derive(Clone, Copy)]
struct CollectiveWorks {
    /// The memory of the rank may be accessed.
    ready: [usize; RANKS],
    /// The stream of the rank begins to wait for the others.
    reached: [usize; RANKS],
    /// The rank has accessed the memory of all, if it does.
    accessed: [usize; RANKS],
}

impl CollectiveWorks {
    fn new(works: &mut Works) -> Self {
        let mut add = || std::array::from_fn(|_| works.add(Vec::new()));
        let it = Self { ready: add(), reached: add(), accessed: add() };
        for rank in 0..RANKS {
            works.needs[it.accessed[rank]].extend(it.ready);
            works.needs[it.accessed[rank]].push(it.reached[rank]);
        }
        it
    }
}

/// The works of one run or two: of streams, and of hosts, which issue them.
pub(super) struct Graph {
    pub(super) works: Works,
    /// By run: those of transfers.
    transfers: Vec<Vec<TransferWorks>>,
    /// By rank: the free of its symmetric memory, which blocks the host until all streams of the rank have finished.
    frees: Vec<usize>,
}

impl Graph {
    /// Returns the works of some runs. With `meet`, hosts wait for each other where they exchange handles. This orders no memory access
    /// by the rules of the checker, also not what a host issues after it has waited for a stream.
    pub(super) fn of(program: &Program, runs: usize, meet: bool) -> Self {
        let mut works = Works::new(SYMMETRIC);
        let (mut of_runs, mut frees) = (Vec::new(), Vec::new());
        // The last work of each stream, and of the host.
        let mut last: [[Option<usize>; STREAMS + 1]; RANKS] = Default::default();
        for run in 0..runs {
            let of_transfer = |_: &Transfer| {
                let [ready, reached] = [works.add(Vec::new()), works.add(Vec::new())];
                TransferWorks { ready, reached, copied: works.add(vec![ready, reached]) }
            };
            let transfers: Vec<TransferWorks> = program.transfers.iter().map(of_transfer).collect();
            let collectives: Vec<CollectiveWorks> =
                program.collectives.iter().map(|_| CollectiveWorks::new(&mut works)).collect();
            let mut handles = Handles::new(&mut works, program, meet);
            for (rank, last) in last.iter_mut().enumerate() {
                add_rank(&mut works, program, rank, last, (&transfers, &collectives, &mut handles, run));
                frees.push(works.add(last.iter().flatten().copied().collect()));
            }
            of_runs.push(transfers);
            works.next_run();
        }
        Self { works, transfers: of_runs, frees }
    }

    /// Returns the works that are never executed, if there are any.
    pub(super) fn stuck(&self) -> Option<String> {
        let done = self.works.without(None);
        done.contains(&false).then(|| format!("works that are executed: {done:?}"))
    }

    /// Returns a use of symmetric memory that may be later than its free.
    pub(super) fn freed_too_early(&self) -> Option<String> {
        let mut uses = self.works.accesses.iter().filter(|it| it.tensor == SYMMETRIC);
        let early = uses.find(|it| self.works.without(Some(it.end))[self.frees[it.rank]]);
        early.map(|it| format!("freed before {it:?}"))
    }

    /// Returns a transfer that may be posted or awaited before the transfer of the same word before it has ended, in the last one of some
    /// runs.
    pub(super) fn posted_again(&self, program: &Program, runs: usize) -> Option<String> {
        let run = runs - 1;
        (0..program.transfers.len()).find_map(|at| {
            let is_last = |it: &usize| program.word(*it) == program.word(at);
            let before = match program.transfers[at].repeats {
                Some(it) => self.transfers[run][it],
                None if run == 0 => return None,
                None => self.transfers[run - 1][(0..program.transfers.len()).rfind(is_last)?],
            };
            let it = self.transfers[run][at];
            let without = self.works.without(Some(before.copied));
            (without[it.ready] || self.needs_only(&without, it.reached)).then(|| format!("transfer {at}"))
        })
    }

    fn needs_only(&self, without: &[bool], work: usize) -> bool {
        self.works.needs[work].iter().all(|it| without[*it])
    }
}

/// The works in which hosts exchange handles.
struct Handles {
    /// By transfer and side: the host has given its handle.
    given: Vec<[usize; 2]>,
    /// The hosts of all ranks have to be there after each exchange.
    barriers: Vec<[usize; RANKS]>,
    /// By rank: the number of barriers that it has passed.
    passed: [usize; RANKS],
    /// Whether hosts wait for each other.
    meet: bool,
}

impl Handles {
    fn new(works: &mut Works, program: &Program, meet: bool) -> Self {
        let given =
            program.transfers.iter().map(|_| [works.add(Vec::new()), works.add(Vec::new())]).collect();
        let counts = program.statements.each_ref().map(|it| {
            it.iter()
                .filter(|it| matches!(it, Statement::Share { .. } | Statement::PostCollective { .. }))
                .count()
        });
        // A rank that never arrives waits for itself.
        let barriers = (0..counts.iter().copied().max().unwrap_or_default()).map(|number| {
            std::array::from_fn(|rank| {
                let it = works.add(Vec::new());
                works.needs[it].extend((counts[rank] <= number).then_some(it));
                it
            })
        });
        Self { given, barriers: barriers.collect(), passed: [0; RANKS], meet }
    }

    /// Returns the end of the next barrier of a rank, whose host arrives after a work.
    fn pass(&mut self, works: &mut Works, rank: usize, arrives: Option<usize>) -> usize {
        if !self.meet {
            return works.add(arrives.into_iter().collect());
        }
        let barrier = self.barriers[self.passed[rank]];
        self.passed[rank] += 1;
        works.needs[barrier[rank]].extend(arrives);
        works.add(barrier.to_vec())
    }
}

/// Adds the works of a rank in a run.
fn add_rank(
    works: &mut Works,
    program: &Program,
    rank: usize,
    last: &mut [Option<usize>; STREAMS + 1],
    (transfers, collectives, handles, run): (&[TransferWorks], &[CollectiveWorks], &mut Handles, usize),
) {
    const HOST: usize = STREAMS;
    // The caller begins once the run before has ended.
    let entry = works.add(last[0].into_iter().collect());
    last[0] = Some(entry);
    for tensor in 1..TENSORS {
        let zeros = works.add(last[0].into_iter().collect());
        works.access([zeros, zeros], (rank, tensor), true);
        last[0] = Some(zeros);
    }
    for statement in &program.statements[rank] {
        // What a work of a stream needs in any case.
        let needs = |stream: usize| -> Vec<usize> { last[stream].into_iter().chain(last[HOST]).collect() };
        let own = |transfer: usize| usize::from(program.transfers[transfer].ranks[1] == rank);
        let copies = |transfer: usize| program.transfers[transfer].puts == (own(transfer) == 0);
        match *statement {
            // Hosts exchange handles in the first run.
            Statement::Share { .. } if run > 0 => (),
            Statement::Share { round } => {
                let own: Vec<[usize; 2]> =
                    program.handles(rank, round).iter().map(|it| [*it, own(*it)]).collect();
                for [transfer, side] in &own {
                    works.needs[handles.given[*transfer][*side]].extend(last[HOST]);
                }
                let taken = own.iter().filter(|_| handles.meet);
                let taken = taken.map(|[transfer, side]| handles.given[*transfer][1 - *side]);
                let exchanged = works.add(taken.chain(last[HOST]).collect());
                last[HOST] = Some(handles.pass(works, rank, Some(exchanged)));
            }
            Statement::Post { transfer, stream } => {
                let TransferWorks { ready, reached, copied } = transfers[transfer];
                let [first, end] = if copies(transfer) { [reached, copied] } else { [ready, ready] };
                works.needs[first].extend(needs(stream));
                last[stream] = Some(end);
                if copies(transfer) {
                    let Transfer { ranks, tensors, .. } = &program.transfers[transfer];
                    works.access([copied, copied], (ranks[0], tensors[0]), false);
                    works.access([copied, copied], (ranks[1], tensors[1]), true);
                }
            }
            Statement::Wait { transfer, .. } if copies(transfer) => (),
            Statement::Wait { transfer, stream } => {
                let needs = needs(stream).into_iter().chain([transfers[transfer].copied]).collect();
                last[stream] = Some(works.add(needs));
            }
            Statement::PostCollective { collective, stream } => {
                let (it, of) = (program.collectives[collective], collectives[collective]);
                // Hosts exchange the handles of its buffers in the first run.
                if run == 0 {
                    last[HOST] = Some(handles.pass(works, rank, last[HOST]));
                }
                works.needs[of.ready[rank]].extend(last[stream].into_iter().chain(last[HOST]));
                last[stream] = Some(of.ready[rank]);
                if it.has_access(rank) {
                    works.needs[of.reached[rank]].push(of.ready[rank]);
                    let [begin, end] = [of.accessed[rank]; 2];
                    last[stream] = Some(end);
                    for other in 0..RANKS {
                        if it.root.is_none() || it.reduces || other == rank {
                            works.access([begin, end], (other, it.input), false);
                        }
                        if it.root.is_some() && !it.reduces || other == rank {
                            works.access([begin, end], (other, it.output), true);
                        }
                    }
                }
            }
            // The rank waits for what others have accessed.
            Statement::WaitCollective { collective, stream } => {
                let others = (0..RANKS).filter(|it| *it != rank);
                let others = others.filter(|it| program.collectives[collective].has_access(*it));
                let ended = others.map(|it| collectives[collective].accessed[it]);
                last[stream] = Some(works.add(needs(stream).into_iter().chain(ended).collect()));
            }
            Statement::Compute { out, from, stream } => {
                let at = works.add(needs(stream));
                works.access([at, at], (rank, from), false);
                works.access([at, at], (rank, out), true);
                last[stream] = Some(at);
            }
            Statement::Synchronize { awaited, stream } => {
                let needs = needs(stream).into_iter().chain(last[awaited]).collect();
                last[stream] = Some(works.add(needs));
            }
            Statement::HostWait { stream } => last[HOST] = Some(works.add(needs(stream))),
        }
    }
    let exit = works.add(last[0].into_iter().chain(last[HOST]).collect());
    last[0] = Some(exit);
    works.callers.push([entry, exit]);
}
