//! What a program over peer memory executes: works of streams and hosts, and what each has to follow.

use std::collections::BTreeMap;

use hir_plan::sync::P2pQueues;

use super::{
    super::{
        sends::{Kernels, Queue, RANKS},
        works::Works,
    },
    Program, STREAMS, SYMMETRIC, Statement, Transfer,
    collective::Collective,
    parts,
};

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
    /// The memory of the rank may be accessed. With NCCL, its kernel begins.
    ready: [usize; RANKS],
    /// The stream of the rank begins to wait for the others.
    reached: [usize; RANKS],
    /// The rank has accessed the memory of all, if it does. With NCCL, its kernel ends.
    accessed: [usize; RANKS],
}

impl CollectiveWorks {
    /// Adds the works of a collective. With `meet`, a kernel of NCCL ends after those of all members have begun, and otherwise after those whose
    /// data it receives.
    fn new(works: &mut Works, of: Collective, meet: bool) -> Self {
        let mut add = || std::array::from_fn(|_| works.add(Vec::new()));
        let it = Self { ready: add(), reached: add(), accessed: add() };
        for rank in 0..RANKS {
            let awaited = if of.is_nccl && !meet { of.sources(rank) } else { (0..RANKS).collect() };
            works.needs[it.accessed[rank]].extend(awaited.into_iter().map(|other| it.ready[other]));
            works.needs[it.accessed[rank]].extend([it.ready[rank], it.reached[rank]]);
        }
        it
    }
}

/// Adds the beginning and the end of each kernel, by rank. With `meet`, a kernel ends after its partners have begun, and otherwise after those that
/// send to it.
fn kernel_works(
    works: &mut Works,
    kernels: &Kernels,
    (p2p, meet): (P2pQueues, bool),
) -> [Vec<[usize; 2]>; RANKS] {
    let mut both = |_| [works.add(Vec::new()), works.add(Vec::new())];
    let all: [Vec<[usize; 2]>; RANKS] = kernels.of.each_ref().map(|it| it.iter().map(&mut both).collect());
    for rank in 0..RANKS {
        for (number, kernel) in kernels.of[rank].iter().enumerate() {
            let [begin, end] = all[rank][number];
            works.needs[end].push(begin);
            for (side, of) in kernel.sides.iter().zip(kernels.partners(p2p, rank, number)) {
                if meet || !side.sends {
                    // What is not there never begins.
                    works.needs[end].push(of.map_or(end, |of| all[side.peer][of][0]));
                }
            }
        }
    }
    all
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
    /// Returns the works of some runs. With `meet`, all members of communications wait for each other, and hosts do where they exchange handles, and
    /// with `Pair` where they create a communicator of NCCL. This orders no memory access by the rules of the checker, also not what a host
    /// issues after it has waited for a stream.
    pub(super) fn of(program: &Program, runs: usize, (p2p, meet): (P2pQueues, bool)) -> Self {
        let mut works = Works::new(SYMMETRIC);
        let (mut of_runs, mut frees) = (Vec::new(), Vec::new());
        let mut last: [Last; RANKS] = Default::default();
        for run in 0..runs {
            let of_transfer = |_: &Transfer| {
                let [ready, reached] = [works.add(Vec::new()), works.add(Vec::new())];
                TransferWorks { ready, reached, copied: works.add(vec![ready, reached]) }
            };
            let transfers: Vec<TransferWorks> = program.transfers.iter().map(of_transfer).collect();
            let of_collective = |it: &Collective| CollectiveWorks::new(&mut works, *it, meet);
            let collectives: Vec<CollectiveWorks> = program.collectives.iter().map(of_collective).collect();
            let kernels = kernel_works(&mut works, &program.kernels, (p2p, meet));
            let mut handles = Handles::new(&mut works, program, (p2p, meet));
            for (rank, last) in last.iter_mut().enumerate() {
                let of_rank = (&transfers[..], &collectives[..], &kernels[rank][..]);
                add_rank(&mut works, program, rank, last, (of_rank, p2p, &mut handles, run));
                let all = last.streams.iter().flatten().chain(last.queues.values());
                frees.push(works.add(all.copied().collect()));
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

/// The works in which hosts exchange handles, and create communicators of NCCL.
struct Handles {
    /// By transfer and side: the host has given its handle.
    given: Vec<[usize; 2]>,
    /// The hosts of all ranks have to be there after each exchange.
    barriers: Vec<[usize; RANKS]>,
    /// By rank: the number of barriers that it has passed.
    passed: [usize; RANKS],
    /// Whether hosts wait for each other.
    meet: bool,
    /// Whether hosts create communicators of NCCL; otherwise these exist before.
    creates: bool,
    /// By communicator: the host of each rank arrives where it creates it.
    created: BTreeMap<Queue, [usize; RANKS]>,
}

impl Handles {
    fn new(works: &mut Works, program: &Program, (p2p, meet): (P2pQueues, bool)) -> Self {
        let given =
            program.transfers.iter().map(|_| [works.add(Vec::new()), works.add(Vec::new())]).collect();
        let counts = program.statements.each_ref().map(|it| {
            let is_barrier = |it: &&Statement| match **it {
                Statement::Share { .. } => true,
                Statement::PostCollective { collective, .. } => !program.collectives[collective].is_nccl,
                _ => false,
            };
            it.iter().filter(is_barrier).count()
        });
        // A rank that never arrives waits for itself.
        let barriers = (0..counts.iter().copied().max().unwrap_or_default()).map(|number| {
            std::array::from_fn(|rank| {
                let it = works.add(Vec::new());
                works.needs[it].extend((counts[rank] <= number).then_some(it));
                it
            })
        });
        let barriers = barriers.collect();
        let (passed, creates) = ([0; RANKS], meet && p2p == P2pQueues::Pair);
        Self { given, barriers, passed, meet, creates, created: BTreeMap::new() }
    }

    /// Returns the end of the creation of a communicator, if a rank now creates it, and its host then waits for the others.
    fn create(
        &mut self,
        works: &mut Works,
        rank: usize,
        (queue, arrives): (Queue, Option<usize>),
    ) -> Option<usize> {
        if !self.creates {
            return None;
        }
        let members = queue.members(RANKS);
        // A rank that never arrives waits for itself.
        let created = *self.created.entry(queue).or_insert_with(|| {
            std::array::from_fn(|rank| {
                let it = works.add(Vec::new());
                works.needs[it].extend(members.contains(&rank).then_some(it));
                it
            })
        });
        if works.needs[created[rank]] != [created[rank]] {
            return None;
        }
        works.needs[created[rank]] = arrives.into_iter().collect();
        Some(works.add(members.into_iter().map(|it| created[it]).collect()))
    }

    /// Returns the end of the next barrier of a rank, whose host arrives after a work.
    fn pass(&mut self, works: &mut Works, rank: usize, arrives: Option<usize>) -> usize {
        if !self.meet {
            return works.add(arrives.into_iter().collect());
        }
        // The barrier is a communication of NCCL.
        let created = self.create(works, rank, (Queue::All, arrives));
        let barrier = self.barriers[self.passed[rank]];
        self.passed[rank] += 1;
        works.needs[barrier[rank]].extend(arrives);
        works.add(barrier.into_iter().chain(created).collect())
    }
}

/// The last work of each stream of a rank and of its host, and of each communicator of NCCL.
#[derive(Default)]
struct Last {
    streams: [Option<usize>; STREAMS + 1],
    queues: BTreeMap<Queue, usize>,
}

const HOST: usize = STREAMS;

/// The works of transfers, collectives and kernels.
type OfRank<'a> = (&'a [TransferWorks], &'a [CollectiveWorks], &'a [[usize; 2]]);

/// Adds the works of a rank in a run.
fn add_rank(
    works: &mut Works,
    program: &Program,
    rank: usize,
    Last { streams: last, queues }: &mut Last,
    ((transfers, collectives, kernels), p2p, handles, run): (OfRank<'_>, P2pQueues, &mut Handles, usize),
) {
    // The caller begins once the run before has ended.
    let entry = works.add(last[0].into_iter().collect());
    last[0] = Some(entry);
    for tensor in 1..=SYMMETRIC {
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
            Statement::PostCollective { collective, stream } if program.collectives[collective].is_nccl => {
                let of = collectives[collective];
                let [begin, end] = [of.ready[rank], of.accessed[rank]];
                last[HOST] = handles.create(works, rank, (Queue::All, last[HOST])).or(last[HOST]);
                let before = queues.insert(Queue::All, end);
                works.needs[begin].extend([last[stream], last[HOST], before].into_iter().flatten());
                for it in program.collectives[collective].accesses(rank) {
                    works.access([begin, end], (it.rank, it.tensor), it.writes);
                }
            }
            Statement::PostCollective { collective, stream } => {
                let (it, of) = (program.collectives[collective], collectives[collective]);
                // Hosts exchange the handles of its buffers in the first run.
                if run == 0 {
                    last[HOST] = Some(handles.pass(works, rank, last[HOST]));
                }
                works.needs[of.ready[rank]].extend(last[stream].into_iter().chain(last[HOST]));
                last[stream] = Some(of.ready[rank]);
                if let Some(slots) = program.slots(collective) {
                    let [sent, received] = [of.ready[rank], of.accessed[rank]].map(|it| [it, it]);
                    works.access(sent, (rank, it.input), false);
                    for other in (0..RANKS).filter(|it| *it != rank) {
                        works.access(sent, (other, slots + rank), true);
                        works.access(received, (rank, slots + other), false);
                    }
                }
                if it.has_access(rank) {
                    works.needs[of.reached[rank]].push(of.ready[rank]);
                    let at = of.accessed[rank];
                    last[stream] = Some(at);
                    for it in it.accesses(rank) {
                        works.access([at, at], (it.rank, it.tensor), it.writes);
                    }
                }
            }
            Statement::WaitCollective { collective, stream } if program.collectives[collective].is_nccl => {
                let end = collectives[collective].accessed[rank];
                last[stream] = Some(works.add(needs(stream).into_iter().chain([end]).collect()));
            }
            // No other rank accesses the memory of this one.
            Statement::WaitCollective { collective, .. } if program.collectives[collective].pushes => (),
            // The rank waits for what others have accessed.
            Statement::WaitCollective { collective, stream } => {
                let others = (0..RANKS).filter(|it| *it != rank);
                let others = others.filter(|it| program.collectives[collective].has_access(*it));
                let ended = others.map(|it| collectives[collective].accessed[it]);
                last[stream] = Some(works.add(needs(stream).into_iter().chain(ended).collect()));
            }
            Statement::PostKernel { kernel, stream } => {
                let ([begin, end], queue) = (kernels[kernel], program.kernels.queue(p2p, rank, kernel));
                last[HOST] = handles.create(works, rank, (queue, last[HOST])).or(last[HOST]);
                let before = queues.insert(queue, end);
                works.needs[begin].extend([last[stream], last[HOST], before].into_iter().flatten());
                for side in &program.kernels.of[rank][kernel].sides {
                    works.access([begin, end], (rank, side.tensor), !side.sends);
                }
            }
            Statement::WaitKernel { kernel, stream } => {
                let needs = needs(stream).into_iter().chain([kernels[kernel][1]]).collect();
                last[stream] = Some(works.add(needs));
            }
            Statement::Compute { out, from, stream } => {
                let at = works.add(needs(stream));
                parts(from).for_each(|it| works.access([at, at], (rank, it), false));
                parts(out).for_each(|it| works.access([at, at], (rank, it), true));
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
