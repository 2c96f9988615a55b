//! Puts the steps of all ranks in an order that satisfies all dependences, and checks that all conflicting accesses are ordered.
//!
//! Streams and queues of communicators are chains: their steps run one after another. Each step has a vector clock: how many steps of
//! every chain come before its end. The dependences are those that CUDA and NCCL document. A step waits for the one before it on its
//! stream; `Synchronize` for what was issued on another stream; a communication for its posting stream and for the one before it on its
//! communicator; `Wait` for the end of a communication, which comes after the beginning of those of its members whose data the rank
//! receives. Hosts order nothing. A communication ends when all its members have begun it; if no chain can proceed then, the ranks wait
//! forever.

use std::rc::Rc;

use grammar::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{Program, StmtId},
    span::Span,
};

use crate::{
    tape::{Shared, Step, Tape},
    tensor::View,
};

/// An order of all steps.
#[derive(Default)]
pub(crate) struct Schedule {
    /// The rank and the number of each step, with the buffers that no later step uses.
    pub(crate) steps: Vec<(usize, usize, Vec<usize>)>,
    /// The number of accesses that were compared.
    pub(crate) accesses: usize,
}

/// The largest number of elements that all ranks hold at a time. Each takes 8 bytes, and twice as many where a function has results.
const MAX_ELEMENTS: usize = 1 << 27;

/// How many steps of each chain come before.
type Clock = Rc<Vec<u32>>;

/// An access of a rank's buffer, from its beginning to its end on a chain.
struct Access<'a> {
    view: &'a View,
    writes: bool,
    chain: usize,
    /// The numbers of its first and its last step on the chain.
    steps: [u32; 2],
    /// `None`: the caller of the program.
    stmt: Option<StmtId>,
}

/// The state of the steps that have run.
struct Order<'a> {
    program: &'a Program,
    tapes: &'a [Tape<'a>],
    /// By rank and step: how many steps have still to wait for it, and its clock while there are any.
    waiting: Vec<Vec<usize>>,
    clocks: Vec<Vec<Option<Clock>>>,
    /// By communication and member: the clock at its beginning.
    begun: Vec<Vec<Option<Clock>>>,
    /// By buffer: the accesses that later ones may conflict with.
    accesses: Vec<Vec<Access<'a>>>,
}

/// Orders the steps of all ranks.
///
/// # Errors
/// A race, ranks that wait forever, or too many elements to execute.
pub(crate) fn order(
    program: &Program,
    tapes: &[Tape<'_>],
    shared: &Shared,
) -> Result<Schedule, Box<Diagnostic>> {
    let forever = |rank: usize, stmt, what: &str, label: &str| {
        let message = format!("rank {rank} {what}");
        Diagnostic::new(Code::CheckedDeadlock, place(program, stmt), message, label)
    };
    if let Some(rank) = tapes.iter().position(|it| it.exchanges != tapes[0].exchanges) {
        let [first, own] = [0, rank].map(|it| tapes[it].exchanges);
        let waiting = if first > own { 0 } else { rank };
        let what =
            format!("executes {own} ShareMemHandles, where all ranks wait, and rank 0 executes {first}");
        let fault = forever(rank, None, &what, &format!("rank {waiting} waits in one of them forever"));
        return Err(Box::new(fault.help("start only the ranks of the meshes, or let every rank execute as many ShareMemHandles; `hir-opt --check` names the statement")));
    }
    let mut it = Order {
        program,
        tapes,
        waiting: tapes.iter().map(|it| vec![0; it.steps.len()]).collect(),
        clocks: tapes.iter().map(|it| vec![None; it.steps.len()]).collect(),
        begun: shared.meetings.iter().map(|it| vec![None; it.members]).collect(),
        accesses: shared.buffers.iter().map(|_| Vec::new()).collect(),
    };
    // The chains of all ranks, each with its rank, its steps and how many of them have run; and how often each buffer is still used.
    let mut chains: Vec<(usize, Vec<usize>, usize)> = Vec::new();
    let mut uses = vec![0_usize; shared.buffers.len()];
    for (rank, tape) in tapes.iter().enumerate() {
        let first = chains.len();
        chains.resize_with(first + tape.chains, || (rank, Vec::new(), 0));
        for (at, step) in tape.steps.iter().enumerate() {
            chains[first + step.chain].1.push(at);
            step.after.iter().for_each(|before| it.waiting[rank][*before] += 1);
            step.reads.iter().chain(&step.writes).for_each(|view| uses[view.buffer] += 1);
        }
        tape.outputs.iter().flatten().for_each(|(view, _)| uses[view.buffer] += 1);
    }
    let (mut schedule, mut live) = (Schedule::default(), 0_usize);
    let mut is_live = vec![false; uses.len()];
    loop {
        let before = schedule.steps.len();
        for chain in 0..chains.len() {
            let (rank, steps, count) = &mut chains[chain];
            let Some(at) = steps.get(*count).copied().filter(|at| it.is_ready(*rank, *at)) else { continue };
            *count += 1;
            let (rank, number) = (*rank, *count as u32);
            schedule.accesses += it.run(rank, at, chain, [number, chains.len() as u32])?;
            let step = &tapes[rank].steps[at];
            let mut last_uses = Vec::new();
            for buffer in step.reads.iter().chain(&step.writes).map(|it| it.buffer) {
                uses[buffer] -= 1;
                live += if is_live[buffer] { 0 } else { shared.buffers[buffer] };
                is_live[buffer] = true;
                if uses[buffer] == 0 {
                    last_uses.push(buffer);
                }
            }
            if live > MAX_ELEMENTS {
                let message =
                    format!("all ranks together hold more than {MAX_ELEMENTS} elements; use smaller extents");
                let (code, label) = (Code::NotCertifiable, format!("rank {rank} needs more here"));
                return Err(Box::new(Diagnostic::new(code, place(program, step.stmt), message, label)));
            }
            live -= last_uses.iter().map(|it| shared.buffers[*it]).sum::<usize>();
            schedule.steps.push((rank, at, last_uses));
        }
        if schedule.steps.len() == before {
            break;
        }
    }
    // Of those that are left, one that ends a communication is the reason why the others wait.
    let left = chains
        .iter()
        .filter_map(|(rank, steps, count)| Some((*rank, &tapes[*rank].steps[*steps.get(*count)?])));
    let Some((rank, step)) = left.min_by_key(|it| it.1.ends.is_none()) else { return Ok(schedule) };
    let it = forever(rank, step.stmt, "waits here forever, for what other ranks do not post", "never ends");
    Err(Box::new(it.help("`hir check` explains the deadlock")))
}

impl<'a> Order<'a> {
    /// Returns whether all that a step waits for has run. A clock is kept while there are steps that wait for its step.
    fn is_ready(&self, rank: usize, at: usize) -> bool {
        let Step { ends, after, .. } = &self.tapes[rank].steps[at];
        let is_complete = ends.iter().all(|it| self.begun[it.0].iter().all(Option::is_some));
        is_complete && after.iter().all(|it| self.clocks[rank][*it].is_some())
    }

    /// Runs the step of a chain that has this number, and returns the number of its accesses.
    fn run(
        &mut self,
        rank: usize,
        at: usize,
        chain: usize,
        [number, chains]: [u32; 2],
    ) -> Result<usize, Box<Diagnostic>> {
        let step = &self.tapes[rank].steps[at];
        let mut clock = vec![0; chains as usize];
        let mut join = |other: &Clock| {
            clock.iter_mut().zip(other.iter()).for_each(|(own, other)| *own = (*own).max(*other));
        };
        for it in &step.after {
            self.clocks[rank][*it].iter().for_each(&mut join);
            self.waiting[rank][*it] -= 1;
            if self.waiting[rank][*it] == 0 {
                self.clocks[rank][*it] = None;
            }
        }
        if let Some((meeting, sources)) = &step.ends {
            sources.iter().filter_map(|it| self.begun[*meeting][*it].as_ref()).for_each(&mut join);
        }
        clock[chain] = number;
        let clock = Rc::new(clock);
        if self.waiting[rank][at] > 0 {
            self.clocks[rank][at] = Some(clock.clone());
        }
        step.begins.iter().for_each(|(meeting, me)| self.begun[*meeting][*me] = Some(clock.clone()));
        for (view, writes) in &step.accesses {
            let steps = [number, number + step.lasts];
            self.access(rank, &clock, Access { view, writes: *writes, chain, steps, stmt: step.stmt })?;
        }
        Ok(if step.stmt.is_some() { step.accesses.len() } else { 0 })
    }

    /// Checks an access against those before it. `clock` is that of its beginning.
    fn access(&mut self, rank: usize, clock: &[u32], access: Access<'a>) -> Result<(), Box<Diagnostic>> {
        let own = &mut self.accesses[access.view.buffer];
        // A step may read and write the same elements.
        let is_same = |it: &Access| it.chain == access.chain && it.steps == access.steps;
        let is_before = |it: &Access| it.steps[1] <= clock[it.chain] || is_same(it);
        let conflicts =
            |it: &&Access| (access.writes || it.writes) && !is_before(it) && it.view.overlaps(access.view);
        if let Some(other) = own.iter().find(conflicts) {
            let label = |it: &Access| {
                let name = if it.stmt.is_some() { "this statement" } else { "the caller" };
                format!("{name} {} them", if it.writes { "writes" } else { "reads" })
            };
            let message = format!("on rank {rank}, nothing orders two accesses to the same elements");
            let it = Diagnostic::new(Code::Race, place(self.program, other.stmt), message, label(other));
            let it = it.label(place(self.program, access.stmt), label(&access));
            return Err(Box::new(
                it.help("`hir check` explains the race, and `hir opt --fix=check` removes it"),
            ));
        }
        // Later accesses are compared with this one instead of those that it follows and covers.
        own.retain(|it| !(is_before(it) && (access.writes || !it.writes) && it.view == access.view));
        own.push(access);
        Ok(())
    }
}

/// Returns the place of a statement, or of the program for its caller.
pub(crate) fn place(program: &Program, stmt: Option<StmtId>) -> Span {
    stmt.map_or(program.spans.header, |it| program.stmt_span(it))
}
