//! Puts the actions of all ranks in an order that satisfies all dependences, and checks that all conflicting accesses are ordered.
//!
//! Streams and queues of communicators are chains: their steps run one after another. Each step has a vector clock: how many steps of
//! every chain come before its end. The dependences are those that CUDA and NCCL document. A step waits for the one before it on its
//! stream; `Synchronize` for what was issued on another stream; a communication for its posting stream and for the one before it on its
//! communicator; `Wait` for the end of a communication, which comes after the beginning of those of its members whose data the rank
//! receives. Hosts order nothing. A communication ends when all its members have begun it; if no chain can proceed then, the ranks wait
//! forever.

use std::{collections::VecDeque, mem};

use grammar::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{Program, StmtId},
    span::Span,
};

use crate::{
    part::View,
    trace::{Member, Step, Trace},
};

/// An order of all actions.
#[derive(Default)]
pub(crate) struct Schedule {
    /// The actions, with the buffers that no later one uses.
    pub(crate) actions: Vec<(usize, Vec<usize>)>,
    /// The number of accesses that were compared.
    pub(crate) accesses: usize,
}

/// The largest number of elements that all ranks hold at a time. Each takes 8 bytes, and twice as many where a function has results.
const MAX_ELEMENTS: usize = 1 << 27;

/// An access of a rank's buffer, from its beginning to its end on a chain.
struct Access<'a> {
    view: &'a View,
    writes: bool,
    /// Its first step.
    step: &'a Step,
}

struct Order<'a> {
    program: &'a Program,
    trace: &'a Trace<'a>,
    /// The steps that wait for nothing.
    ready: VecDeque<usize>,
    /// By step: for how many things it still waits, and how many steps of each chain come before it, as far as that is known.
    waits: Vec<usize>,
    clocks: Vec<Vec<u32>>,
    /// By action: how many members have not begun it.
    missing: Vec<usize>,
    /// By buffer: the accesses that later ones may conflict with, how many are still to come, and whether it has been used.
    accesses: Vec<Vec<Access<'a>>>,
    uses: Vec<usize>,
    is_live: Vec<bool>,
    /// The number of elements of all buffers that are in use.
    live: usize,
    schedule: Schedule,
}

/// Orders the actions of all ranks.
///
/// # Errors
/// A race, ranks that wait forever, or too many elements to execute.
pub(crate) fn order(program: &Program, trace: &Trace<'_>) -> Result<Schedule, Box<Diagnostic>> {
    let mut it = Order {
        program,
        trace,
        ready: (0..trace.steps.len()).filter(|at| trace.steps[*at].waits == 0).collect(),
        waits: trace.steps.iter().map(|it| it.waits).collect(),
        clocks: vec![Vec::new(); trace.steps.len()],
        missing: trace.actions.iter().map(|it| it.members.len()).collect(),
        accesses: trace.buffers.iter().map(|_| Vec::new()).collect(),
        uses: vec![0; trace.buffers.len()],
        is_live: vec![false; trace.buffers.len()],
        live: 0,
        schedule: Schedule::default(),
    };
    (0..trace.actions.len())
        .flat_map(|action| views(trace, action))
        .for_each(|view| it.uses[view.buffer] += 1);
    let outputs = trace.ports.iter().flat_map(|[_, outputs]| outputs.iter().flatten());
    outputs.for_each(|(view, _)| it.uses[view.buffer] += 1);
    while let Some(step) = it.ready.pop_front() {
        it.run(step)?;
    }
    // Others may wait for a step that ends an action.
    let is_stuck =
        |at: &usize| trace.steps[*at].ends.is_some_and(|end| it.waits[*at] == 1 && it.missing[end] > 0);
    let Some(stuck) = (0..trace.steps.len()).find(is_stuck) else { return Ok(it.schedule) };
    let Step { rank, stmt, .. } = trace.steps[stuck];
    let message = format!("rank {rank} waits here forever, for what other ranks do not post");
    let it = Diagnostic::new(Code::CheckedDeadlock, place(program, stmt), message, "never ends");
    Err(Box::new(it.help("`hir check` explains the deadlock")))
}

/// Returns what an action reads and writes.
fn views<'a>(trace: &'a Trace<'_>, action: usize) -> impl Iterator<Item = &'a View> {
    let members = trace.actions[action].members.iter().flatten();
    members.flat_map(|Member { reads, writes, .. }| reads.iter().chain(writes))
}

impl<'a> Order<'a> {
    /// Runs a step that waits for nothing.
    fn run(&mut self, at: usize) -> Result<(), Box<Diagnostic>> {
        let (trace, step) = (self.trace, &self.trace.steps[at]);
        let mut clock = mem::take(&mut self.clocks[at]);
        clock.resize(trace.chains.len(), 0);
        clock[step.chain] = step.number;
        for (view, writes) in &step.accesses {
            self.access(&clock, Access { view, writes: *writes, step })?;
        }
        for next in &step.followers {
            self.join(*next, &clock);
            self.release(*next);
        }
        let Some((action, member)) = step.begins else { return Ok(()) };
        let ends = &trace.actions[action].ends;
        ends.iter().filter(|it| it.1.contains(&member)).for_each(|(end, _)| self.join(*end, &clock));
        self.missing[action] -= 1;
        if self.missing[action] == 0 {
            self.schedule(action, step)?;
            ends.iter().for_each(|(end, _)| self.release(*end));
        }
        Ok(())
    }

    /// Adds to the clock of a step that has not run what comes before it.
    fn join(&mut self, at: usize, clock: &[u32]) {
        let own = &mut self.clocks[at];
        if own.is_empty() {
            return own.extend_from_slice(clock);
        }
        own.iter_mut().zip(clock).for_each(|(own, other)| *own = (*own).max(*other));
    }

    fn release(&mut self, at: usize) {
        self.waits[at] -= 1;
        if self.waits[at] == 0 {
            self.ready.push_back(at);
        }
    }

    /// Executes an action next. `step` is the last one that begins it.
    fn schedule(&mut self, action: usize, step: &Step) -> Result<(), Box<Diagnostic>> {
        let mut last_uses = Vec::new();
        for View { buffer, .. } in views(self.trace, action) {
            self.uses[*buffer] -= 1;
            let is_new = !mem::replace(&mut self.is_live[*buffer], true);
            self.live += if is_new { self.trace.buffers[*buffer] } else { 0 };
            if self.uses[*buffer] == 0 {
                last_uses.push(*buffer);
            }
        }
        if self.live > MAX_ELEMENTS {
            let message =
                format!("all ranks together hold more than {MAX_ELEMENTS} elements; use smaller extents");
            let (code, label) = (Code::NotCertifiable, format!("rank {} needs more here", step.rank));
            return Err(Box::new(Diagnostic::new(code, place(self.program, step.stmt), message, label)));
        }
        self.live -= last_uses.iter().map(|it| self.trace.buffers[*it]).sum::<usize>();
        self.schedule.actions.push((action, last_uses));
        Ok(())
    }

    /// Checks an access against those before it. `clock` is that of its beginning.
    fn access(&mut self, clock: &[u32], access: Access<'a>) -> Result<(), Box<Diagnostic>> {
        let own = &mut self.accesses[access.view.buffer];
        // A step may read and write the same elements.
        let is_before = |Access { step: it, .. }: &Access<'_>| {
            it.number + it.lasts <= clock[it.chain] || std::ptr::eq(*it, access.step)
        };
        let conflicts =
            |it: &&Access| (access.writes || it.writes) && !is_before(it) && it.view.overlaps(access.view);
        if let Some(other) = own.iter().find(conflicts) {
            let label = |it: &Access| {
                let name = if it.step.stmt.is_some() { "this statement" } else { "the caller" };
                format!("{name} {} them", if it.writes { "writes" } else { "reads" })
            };
            let [before, after] = [other, &access].map(|it| place(self.program, it.step.stmt));
            let message =
                format!("on rank {}, nothing orders two accesses to the same elements", access.step.rank);
            let it = Diagnostic::new(Code::Race, before, message, label(other)).label(after, label(&access));
            return Err(Box::new(
                it.help("`hir check` explains the race, and `hir opt --fix=check` removes it"),
            ));
        }
        // Later accesses are compared with this one instead of those that it follows and covers.
        own.retain(|it| !(is_before(it) && (access.writes || !it.writes) && it.view == access.view));
        self.schedule.accesses += usize::from(access.step.stmt.is_some());
        own.push(access);
        Ok(())
    }
}

/// Returns the place of a statement, or of the program for its caller.
pub(crate) fn place(program: &Program, stmt: Option<StmtId>) -> Span {
    stmt.map_or(program.spans.header, |it| program.stmt_span(it))
}
