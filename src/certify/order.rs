//! Puts the actions of all ranks in an order that satisfies all dependences, and checks that all conflicting accesses are ordered.
//!
//! Streams and queues of communicators are chains: their steps run one after another. Each step has a vector clock: how many steps of
//! every chain come before its end. The dependences are those that CUDA and NCCL document. A step waits for the one before it on its
//! stream; `Synchronize` for what was issued on another stream; a communication for its posting stream and for the one before it on its
//! communicator; `Wait` for the end of a communication, which comes after the beginning of those of its members whose data the rank
//! receives. Hosts order nothing. A communication ends when all its members have begun it; if no chain can proceed then, the ranks wait
//! forever.

use super::*;

/// An order of all actions, and the number of accesses that were compared.
pub(crate) struct Order {
    pub(crate) actions: Vec<usize>,
    pub(crate) accesses: usize,
}

/// An access of a rank's buffer, from its first step to its end on a chain.
struct Use<'a> {
    view: &'a View,
    writes: bool,
    step: &'a Step,
}

/// Orders the actions of all ranks.
///
/// # Errors
/// A race, or ranks that wait forever.
pub(crate) fn order(trace: &Trace<'_>) -> Diagnosed<Order> {
    let mut order = Order { actions: Vec::new(), accesses: 0 };
    // For how many things a step still waits, how many steps of each chain come before it, as far as that is known, and how many members
    // have not begun an action.
    let mut waits: Vec<usize> = trace.steps.iter().map(|it| it.waits).collect();
    let mut clocks: Vec<Vec<u32>> = vec![Vec::new(); waits.len()];
    let mut missing: Vec<usize> = trace.actions.iter().map(|it| it.members.len()).collect();
    let mut uses: Vec<Vec<Use<'_>>> = trace.buffers.iter().map(|_| Vec::new()).collect();
    let mut ready: VecDeque<usize> = (0..waits.len()).filter(|at| waits[*at] == 0).collect();
    while let Some(at) = ready.pop_front() {
        let step = &trace.steps[at];
        let mut clock = mem::take(&mut clocks[at]);
        clock.resize(trace.chains.len(), 0);
        clock[step.chain] = step.number;
        for (view, writes) in &step.accesses {
            let it = Use { view, writes: *writes, step };
            it.follow(&mut uses[view.buffer], &clock, trace.program)?;
            order.accesses += usize::from(step.stmt.is_some());
        }
        let ends = step.begins.iter().flat_map(|(action, me)| {
            trace.actions[*action].ends.iter().map(|(end, sources)| (*end, sources.contains(me)))
        });
        for (next, is_after) in step.followers.iter().map(|it| (*it, true)).chain(ends) {
            if is_after {
                clocks[next].resize(clock.len(), 0);
                clocks[next].iter_mut().zip(&clock).for_each(|(own, other)| *own = (*own).max(*other));
            }
            waits[next] -= 1;
            if waits[next] == 0 {
                ready.push_back(next);
            }
        }
        if let Some((action, _)) = step.begins {
            missing[action] -= 1;
            order.actions.extend((missing[action] == 0).then_some(action));
        }
    }
    // Others may wait for a step that ends an action.
    let is_stuck =
        |at: &usize| trace.steps[*at].ends.is_some_and(|end| missing[end] > 0 && waits[*at] == missing[end]);
    let Some(stuck) = (0..waits.len()).find(is_stuck) else { return Ok(order) };
    let Step { rank, stmt, .. } = trace.steps[stuck];
    let message = format!("rank {rank} waits here forever, for what other ranks do not post");
    let it = Diagnostic::new(Code::CheckedDeadlock, place(trace.program, stmt), message, "never ends");
    Err(Box::new(it.help("`hir check` explains the deadlock")))
}

impl<'a> Use<'a> {
    /// Checks an access against those before it, and adds it to them. `clock` is that of its beginning.
    fn follow(self, all: &mut Vec<Use<'a>>, clock: &[u32], program: &Program) -> Diagnosed<()> {
        // A step may read and write the same elements.
        let is_before = |Use { step: it, .. }: &Use<'_>| {
            it.number + it.lasts <= clock[it.chain] || std::ptr::eq(*it, self.step)
        };
        let conflicts =
            |it: &&Use| (self.writes || it.writes) && !is_before(it) && it.view.overlaps(self.view);
        if let Some(other) = all.iter().find(conflicts) {
            let label = |it: &Use| {
                let name = if it.step.stmt.is_some() { "this statement" } else { "the caller" };
                format!("{name} {} them", if it.writes { "writes" } else { "reads" })
            };
            let [before, after] = [other, &self].map(|it| place(program, it.step.stmt));
            let message =
                format!("on rank {}, nothing orders two accesses to the same elements", self.step.rank);
            let it = Diagnostic::new(Code::Race, before, message, label(other)).label(after, label(&self));
            return Err(Box::new(
                it.help("`hir check` explains the race, and `hir opt --fix=check` removes it"),
            ));
        }
        // Later accesses are compared with this one instead of those that it follows and covers.
        all.retain(|it| !(is_before(it) && (self.writes || !it.writes) && it.view == self.view));
        all.push(self);
        Ok(())
    }
}

/// Returns the place of a statement, or of the program for its caller.
pub(crate) fn place(program: &Program, stmt: Option<StmtId>) -> Span {
    stmt.map_or(program.spans.header, |it| program.stmt_span(it))
}
