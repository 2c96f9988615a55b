//! Puts the actions of all ranks in an order that satisfies all dependences, and checks that all conflicting accesses are ordered.
//!
//! The dependences are those that CUDA and NCCL document. A step waits for the one before it on its stream; `Synchronize` for what was issued
//! on another stream; a communication for its posting stream and for the one before it on its communicator; `Wait` for the end of a
//! communication, which comes after the beginning of those of its members whose data the rank receives. Hosts order nothing. A
//! communication ends when all its members have begun it; if no chain can proceed then, the ranks wait forever. A copy over peer memory
//! follows the beginnings of both sides.

use super::*;

/// Orders the actions of all ranks, and returns the steps of their members.
///
/// # Errors
/// A race, or ranks that wait forever.
pub(crate) fn order(program: &Program, trace: &Trace<'_>) -> Diagnosed<Vec<Vec<usize>>> {
    // The events are the beginnings of the steps, their ends, and the actions. By event: those that wait for it, and whether it comes before
    // them. An end waits for its action, but comes after those beginnings only whose data it needs.
    let (steps, count) = (trace.steps.len(), 2 * trace.steps.len() + trace.actions.len());
    let (mut followers, mut waits) = (vec![Vec::new(); count], vec![0; count]);
    let mut edge = |from: usize, to: usize, is_ordered: bool| {
        followers[from].push((to, is_ordered));
        waits[to] += 1;
    };
    for (at, step) in trace.steps.iter().enumerate() {
        let (action, members) = (2 * steps + step.action, &trace.actions[step.action]);
        step.after.iter().for_each(|it| edge(steps + it, at, true));
        edge(at, steps + at, true);
        step.sources.iter().filter_map(|it| members[*it]).for_each(|it| edge(it, steps + at, true));
        edge(at, action, false);
        edge(action, steps + at, false);
    }
    for (action, members) in (2 * steps..).zip(&trace.actions) {
        // Without all its members, it never happens.
        members.iter().filter(|it| it.is_none()).for_each(|_| edge(action, action, false));
    }
    // Vector clocks of the events. By chain: the first step that has not ended before.
    let (mut clocks, mut actions) = (vec![Vec::new(); count], Vec::new());
    // By element of a buffer: the steps that access it, and whether they write it.
    let mut uses: Vec<_> = trace.buffers.iter().map(|it| vec![Vec::<(usize, bool)>::new(); *it]).collect();
    let mut ready: VecDeque<usize> = (0..steps).filter(|at| waits[*at] == 0).collect();
    while let Some(event) = ready.pop_front() {
        let mut clock: Vec<usize> = mem::take(&mut clocks[event]);
        clock.resize(trace.chains.len(), 0);
        // A step accesses memory when it begins, or if its sources have to be ready, before it ends.
        let (at, is_end) = (event % steps, event >= steps);
        let step = &trace.steps[at];
        if event < 2 * steps && step.is_late == is_end {
            let has_ended = |it: usize| it < clock[trace.steps[it].chain];
            // Both sides of a copy access memory until the side that copies has ended. A step may read and write the same elements.
            let copied = |it: &usize| trace.steps[*it].copies && has_ended(*it);
            let is_copied =
                |it: &Step<'_>| it.is_late && trace.actions[it.action].iter().flatten().any(copied);
            let is_before = |it: usize| it == at || has_ended(it) || is_copied(&trace.steps[it]);
            // What peers and the kernel of this rank do to its memory is one communication.
            let is_kernel = |it: usize| trace.steps[it].sources.is_empty() || step.sources.is_empty();
            let is_one = |it: usize| trace.steps[it].action == step.action && is_kernel(it);
            let reads = step.reads.iter().flat_map(View::elements).map(|it| (it, false));
            let writes = step.writes.iter().flat_map(View::elements).map(|it| (it, true));
            for ((buffer, place), writes) in reads.chain(writes) {
                let uses = &mut uses[buffer][place];
                let of_caller = |it: usize| step.stmt.or(trace.steps[it].stmt).is_none();
                let clashes = |it: usize| !is_before(it) && !is_one(it) && !of_caller(it);
                let conflicts = |(it, wrote): &&(usize, bool)| (writes || *wrote) && clashes(*it);
                if let Some((it, wrote)) = uses.iter().find(conflicts) {
                    return Err(race(program, [(&trace.steps[*it], *wrote), (step, writes)]));
                }
                // Later accesses are compared with this one instead of those that it follows and covers.
                uses.retain(|(it, wrote)| !is_before(*it) || *wrote && !writes);
                uses.push((at, writes));
            }
        }
        if event >= 2 * steps {
            actions.push(trace.actions[event - 2 * steps].iter().copied().flatten().collect());
        } else if is_end {
            clock[step.chain] = at + 1;
        }
        for (next, is_ordered) in &followers[event] {
            if *is_ordered {
                let all: &mut Vec<usize> = &mut clocks[*next];
                all.resize(clock.len(), 0);
                all.iter_mut().zip(&clock).for_each(|(all, own)| *all = (*all).max(*own));
            }
            waits[*next] -= 1;
            ready.extend((waits[*next] == 0).then_some(*next));
        }
    }
    let stuck = trace.steps.iter().enumerate().find(|(at, _)| waits[*at] == 0 && waits[steps + at] > 0);
    let Some((_, Step { rank, stmt, .. })) = stuck else { return Ok(actions) };
    let message = format!("rank {rank} waits here forever, for what other ranks do not post");
    let it = Diagnostic::new(Code::CheckedDeadlock, place(program, *stmt), message, "never ends");
    Err(Box::new(it.help("`hir check` explains the deadlock")))
}

/// Returns the error for two steps, with whether each of them writes the elements.
fn race(program: &Program, steps: [(&Step<'_>, bool); 2]) -> Box<Diagnostic> {
    let message = format!("on rank {}, nothing orders two accesses to the same elements", steps[0].0.rank);
    let [before, after] = steps.map(|(step, writes)| {
        let name = if step.stmt.is_some() { "this statement" } else { "the caller" };
        (place(program, step.stmt), format!("{name} {} them", if writes { "writes" } else { "reads" }))
    });
    let it = Diagnostic::new(Code::Race, before.0, message, before.1).label(after.0, after.1);
    Box::new(it.help("`hir check` explains the race, and `hir opt --fix=check` removes it"))
}

/// Returns the place of a statement, or of the program for its caller.
pub(crate) fn place(program: &Program, stmt: Option<ir::StmtId>) -> Span {
    stmt.map_or(program.spans.header, |it| program.stmt_span(it))
}
