//! Puts the actions of all ranks in an order that satisfies all dependences, and checks that all conflicting accesses are ordered.
//!
//! Streams and queues of communicators are chains: their steps run one after another. Each step has vector clocks: which step of
//! every chain is the last one that has to end before it begins, or ends. The dependences are those that CUDA and NCCL document. A step waits for the one before it on its
//! stream; `Synchronize` for what was issued on another stream; a communication for its posting stream and for the one before it on its
//! communicator; `Wait` for the end of a communication, which comes after the beginning of those of its members whose data the rank
//! receives. Hosts order nothing. A communication ends when all its members have begun it; if no chain can proceed then, the ranks wait
//! forever.

use super::*;

/// An order of all actions: the steps and the numbers of tasks of the members of each. And the number of accesses that were compared.
#[derive(Default)]
pub(crate) struct Order {
    pub(crate) actions: Vec<Vec<(usize, usize)>>,
    pub(crate) accesses: usize,
}

/// An access of a rank's buffer by a task of the step `at`.
struct Use<'a> {
    view: &'a View,
    writes: bool,
    at: usize,
    step: &'a Step<'a>,
    task: &'a Task<'a>,
}

/// Orders the actions of all ranks.
///
/// # Errors
/// A race, or ranks that wait forever.
pub(crate) fn order(program: &Program, trace: &Trace<'_>) -> Diagnosed<Order> {
    let mut order = Order::default();
    // For how many steps a step still waits, what comes before its beginning and before its end, as far as that is known, how many of its
    // actions have not ended, and how many members have not begun an action.
    let mut waits: Vec<usize> = trace.steps.iter().map(|it| it.waits).collect();
    let (mut begins, mut ends) = (vec![Vec::new(); waits.len()], vec![Vec::new(); waits.len()]);
    let mut unfinished: Vec<usize> = trace.steps.iter().map(|it| it.tasks.len()).collect();
    let mut missing: Vec<usize> = trace.actions.iter().map(Vec::len).collect();
    let mut uses: Vec<Vec<Use<'_>>> = trace.buffers.iter().map(|_| Vec::new()).collect();
    let mut ready: VecDeque<usize> = (0..waits.len()).filter(|at| waits[*at] == 0).collect();
    while let Some(at) = ready.pop_front() {
        let (step, mut clock, mut ended) = (&trace.steps[at], mem::take(&mut begins[at]), Vec::new());
        clock.resize(trace.chains.len(), 0);
        join(&mut ends[at], &clock);
        for task in &step.tasks {
            let writes = task.writes.iter().map(|it| (it, true));
            for (view, writes) in task.reads.iter().map(|it| (it, false)).chain(writes) {
                Use { view, writes, at, step, task }.follow(&mut uses[view.buffer], &clock, program)?;
                order.accesses += usize::from(task.stmt.is_some());
            }
            let members: Vec<(usize, usize)> = trace.actions[task.action].iter().copied().flatten().collect();
            for (other, number) in &members {
                if trace.steps[*other].tasks[*number].sources.contains(&task.me) {
                    join(&mut ends[*other], &clock);
                }
            }
            missing[task.action] -= 1;
            if missing[task.action] == 0 {
                members.iter().for_each(|it| unfinished[it.0] -= 1);
                ended.extend(members.iter().map(|it| it.0).filter(|it| unfinished[*it] == 0));
                order.actions.push(members);
            }
        }
        ended.dedup();
        for end in ended {
            let mut clock = mem::take(&mut ends[end]);
            clock[trace.steps[end].chain] = end + 1;
            for next in &trace.steps[end].followers {
                join(&mut begins[*next], &clock);
                waits[*next] -= 1;
                ready.extend((waits[*next] == 0).then_some(*next));
            }
        }
    }
    let begun = (0..waits.len()).filter(|at| waits[*at] == 0).flat_map(|at| &trace.steps[at].tasks);
    let stuck = begun.into_iter().find(|it| missing[it.action] > 0);
    let Some(Task { rank, stmt, .. }) = stuck else { return Ok(order) };
    let message = format!("rank {rank} waits here forever, for what other ranks do not post");
    let it = Diagnostic::new(Code::CheckedDeadlock, place(program, *stmt), message, "never ends");
    Err(Box::new(it.help("`hir check` explains the deadlock")))
}

/// Makes a clock include what another one has.
fn join(clock: &mut Vec<usize>, other: &[usize]) {
    clock.resize(other.len(), 0);
    clock.iter_mut().zip(other).for_each(|(own, other)| *own = (*own).max(*other));
}

impl<'a> Use<'a> {
    /// Checks an access against those before it, and adds it to them. `clock` is that of its beginning.
    fn follow(self, all: &mut Vec<Use<'a>>, clock: &[usize], program: &Program) -> Diagnosed<()> {
        // A task may read and write the same elements.
        let is_before = |it: &Use<'_>| it.at < clock[it.step.chain] || std::ptr::eq(it.task, self.task);
        let conflicts =
            |it: &&Use| (self.writes || it.writes) && !is_before(it) && it.view.overlaps(self.view);
        if let Some(other) = all.iter().find(conflicts) {
            let label = |it: &Use| {
                let name = if it.task.stmt.is_some() { "this statement" } else { "the caller" };
                format!("{name} {} them", if it.writes { "writes" } else { "reads" })
            };
            let [before, after] = [other, &self].map(|it| place(program, it.task.stmt));
            let message =
                format!("on rank {}, nothing orders two accesses to the same elements", self.task.rank);
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
