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
    tape::{Shared, Tape},
    tensor::View,
};

/// An order of all steps.
pub(crate) struct Schedule {
    /// The rank and the number of each step.
    pub(crate) steps: Vec<(usize, usize)>,
    /// The number of accesses that were compared.
    pub(crate) accesses: usize,
}

/// How many steps of each chain come before.
type Clock = Rc<Vec<u32>>;

/// The chains of all ranks, each with its rank and steps.
type Chains = Vec<(usize, Vec<usize>)>;

/// An access of a rank's buffer, from its beginning to its end on a chain.
struct Access<'a> {
    view: &'a View,
    writes: bool,
    chain: usize,
    /// The number of its last step on the chain.
    end: u32,
    /// `None`: the caller of the program.
    stmt: Option<StmtId>,
}

/// The state of the steps that have run.
struct Order<'a> {
    program: &'a Program,
    tapes: &'a [Tape],
    /// The number of chains of all ranks.
    chains: usize,
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
/// A race, or ranks that wait forever.
pub(crate) fn order(program: &Program, tapes: &[Tape], shared: &Shared) -> Result<Schedule, Box<Diagnostic>> {
    if let Some(rank) = tapes.iter().position(|it| it.exchanges != tapes[0].exchanges) {
        let message = format!("rank {rank} exchanges memory handles another number of times than rank 0");
        let (code, label) = (Code::CheckedDeadlock, "its host waits forever");
        return Err(Box::new(Diagnostic::new(code, program.spans.header, message, label)));
    }
    let mut chains: Chains = Vec::new();
    let mut waiting: Vec<Vec<usize>> = tapes.iter().map(|it| vec![0; it.steps.len()]).collect();
    for (rank, tape) in tapes.iter().enumerate() {
        let first = chains.len();
        chains.resize_with(first + tape.chains, || (rank, Vec::new()));
        for (at, step) in tape.steps.iter().enumerate() {
            chains[first + step.chain].1.push(at);
            step.after.iter().for_each(|it| waiting[rank][*it] += 1);
        }
    }
    let mut it = Order {
        program,
        tapes,
        chains: chains.len(),
        waiting,
        clocks: tapes.iter().map(|it| vec![None; it.steps.len()]).collect(),
        begun: shared.meetings.iter().map(|it| vec![None; it.members]).collect(),
        accesses: shared.buffers.iter().map(|_| Vec::new()).collect(),
    };
    let mut schedule = Schedule { steps: Vec::new(), accesses: 0 };
    // How many steps of each chain have run.
    let mut counts: Vec<usize> = vec![0; chains.len()];
    loop {
        let before = schedule.steps.len();
        for (chain, (rank, steps)) in chains.iter().enumerate() {
            let Some(at) = steps.get(counts[chain]).filter(|at| it.is_ready(*rank, **at)) else { continue };
            counts[chain] += 1;
            schedule.accesses += it.run(*rank, *at, chain, counts[chain] as u32)?;
            schedule.steps.push((*rank, *at));
        }
        if schedule.steps.len() == before {
            break;
        }
    }
    // Of those that are left, one that ends a communication is the reason why the others wait.
    let left =
        chains.iter().zip(&counts).filter_map(|((rank, steps), count)| Some((*rank, *steps.get(*count)?)));
    let is_end = |it: &(usize, usize)| !tapes[it.0].steps[it.1].ends.is_empty();
    let Some((rank, at)) = left.min_by_key(|it| !is_end(it)) else { return Ok(schedule) };
    let message = format!("rank {rank} waits here forever, for what other ranks do not post");
    let it = Diagnostic::new(
        Code::CheckedDeadlock,
        place(program, tapes[rank].steps[at].stmt),
        message,
        "never ends",
    );
    Err(Box::new(it.help("`hir check` explains the deadlock")))
}

impl<'a> Order<'a> {
    /// Returns whether all that a step waits for has run. A clock is kept while there are steps that wait for its step.
    fn is_ready(&self, rank: usize, at: usize) -> bool {
        let step = &self.tapes[rank].steps[at];
        let is_complete = step.ends.iter().all(|it| self.begun[it.0].iter().all(Option::is_some));
        is_complete && step.after.iter().all(|it| self.clocks[rank][*it].is_some())
    }

    /// Runs the step of a chain that has this number, and returns the number of its accesses.
    fn run(&mut self, rank: usize, at: usize, chain: usize, number: u32) -> Result<usize, Box<Diagnostic>> {
        let step = &self.tapes[rank].steps[at];
        let mut clock = vec![0; self.chains];
        for it in &step.after {
            self.clocks[rank][*it].iter().for_each(|before| join(&mut clock, before));
            self.waiting[rank][*it] -= 1;
            if self.waiting[rank][*it] == 0 {
                self.clocks[rank][*it] = None;
            }
        }
        for (meeting, sources) in &step.ends {
            let begun = sources.iter().filter_map(|it| self.begun[*meeting][*it].as_ref());
            begun.for_each(|begin| join(&mut clock, begin));
        }
        clock[chain] = number;
        let clock = Rc::new(clock);
        if self.waiting[rank][at] > 0 {
            self.clocks[rank][at] = Some(clock.clone());
        }
        step.begins.iter().for_each(|(meeting, me)| self.begun[*meeting][*me] = Some(clock.clone()));
        let (end, is_group) = (number + u32::from(!step.begins.is_empty()), step.begins.len() > 1);
        for (views, writes) in [(&step.reads, false), (&step.writes, true)] {
            for view in views {
                let access = Access { view, writes, chain, end, stmt: step.stmt };
                self.access(rank, &clock, access, is_group)?;
            }
        }
        Ok(if step.stmt.is_some() { step.reads.len() + step.writes.len() } else { 0 })
    }

    /// Checks an access against those before it. `clock` is that of its beginning.
    fn access(
        &mut self,
        rank: usize,
        clock: &Clock,
        access: Access<'a>,
        is_group: bool,
    ) -> Result<(), Box<Diagnostic>> {
        let own = &mut self.accesses[access.view.buffer];
        // A collective may be in place; what a group reads and writes at the same time conflicts.
        let is_same = |it: &Access| it.chain == access.chain && it.end == access.end && !is_group;
        let is_before = |it: &Access| it.end <= clock[it.chain] || is_same(it);
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
            let help = "`hir check` explains the race, and `hir opt --fix=check` removes it";
            return Err(Box::new(it.help(help)));
        }
        // Later accesses are compared with this one instead of those that it follows and covers.
        own.retain(|it| !(is_before(it) && (access.writes || !it.writes) && it.view == access.view));
        own.push(access);
        Ok(())
    }
}

fn place(program: &Program, stmt: Option<StmtId>) -> Span {
    stmt.map_or(program.spans.header, |it| program.stmt_span(it))
}

fn join(clock: &mut [u32], other: &[u32]) {
    clock.iter_mut().zip(other).for_each(|(own, other)| *own = (*own).max(*other));
}
