//! Statements that only make a stream wait. The plans without such a statement are the plans with its instructions taken out: nothing
//! else of a plan depends on them. Where something does, the statement is no candidate:
//!
//! * a `Wait` lets go of the operands of its communication. Where these are freed, the allocator would hand other storage out;
//! * a communicator whose collectives run over peer memory has a queue that depends on its `Wait`s (`transport::queue`).

use grammar::ir::StmtId;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::plan::{
    BufferNo, Effect, InstKind, Meaning, Plan,
    sync::{InstRef, Matched},
};

/// A statement that only makes streams wait.
pub struct Candidate {
    /// Its instructions on all ranks.
    pub insts: FxHashSet<InstRef>,
    /// The first of them.
    pub first: InstRef,
}

/// What is known of a statement.
struct Known {
    insts: Vec<InstRef>,
    /// Whether it does nothing but wait.
    only_waits: bool,
    /// How often it records an event, and waits for the event at once.
    synchronizes: usize,
}

/// All candidates, in the order of the program.
pub fn candidates(plans: &[Plan], matched: &Matched) -> Vec<Candidate> {
    let mut known: FxHashMap<(usize, StmtId), Known> = FxHashMap::default();
    let has_team_signals = plans.iter().any(has_team_signals);
    for plan in plans {
        let freed: FxHashSet<BufferNo> =
            plan.allocations.iter().filter(|it| it.freed.is_some()).map(|it| it.buffer).collect();
        for (inst, it) in plan.code.iter().enumerate() {
            let Some(stmt) = plan.origins[it.origin as usize].stmt else { continue };
            let known = known.entry((plan.program, stmt)).or_insert_with(|| Known {
                insts: Vec::new(),
                only_waits: true,
                synchronizes: 0,
            });
            known.insts.push(InstRef { rank: plan.rank, inst });
            known.only_waits &= match it.kind.effect() {
                Effect::Record(event) => {
                    known.synchronizes += 1;
                    let next = plan.code.get(inst + 1);
                    next.is_some_and(|next| {
                        next.origin == it.origin
                            && matches!(next.kind, InstKind::Join { event: it } if it == event)
                    })
                }
                Effect::Join(event) => {
                    let before =
                        inst.checked_sub(1).map(|at| &plan.code[at]).filter(|at| at.origin == it.origin);
                    let is_own = before
                        .is_some_and(|it| matches!(it.kind, InstKind::Record { event: it } if it == event));
                    is_own || !has_team_signals && freed.is_empty()
                }
                Effect::Wait(work) => {
                    !has_team_signals && !frees_operands(plan, matched.posted_at(plan.rank, work), &freed)
                }
                Effect::Await(_) => !has_team_signals && freed.is_empty(),
                Effect::Share(_)
                | Effect::Barrier
                | Effect::Compute
                | Effect::Signal(_)
                | Effect::Post(_)
                | Effect::Reshard(_)
                | Effect::Finish => false,
            };
        }
    }
    // A Synchronize has pairs of Record and Join, and a Wait has no Record.
    let is_candidate =
        |it: &Known| it.only_waits && (it.synchronizes == 0 || it.synchronizes * 2 == it.insts.len());
    let mut found: Vec<Candidate> = known
        .into_values()
        .filter(is_candidate)
        .filter_map(|it| Some(Candidate { first: *it.insts.first()?, insts: it.insts.into_iter().collect() }))
        .collect();
    found.sort_by_key(|it| it.first);
    found
}

/// Whether collectives of a plan run over peer memory.
fn has_team_signals(plan: &Plan) -> bool {
    let is_of_team = |kind: &InstKind| match kind.effect() {
        Effect::Signal(slot) | Effect::Await(slot) => match slot.meaning {
            Meaning::TeamReady(_) | Meaning::TeamDone(_) => true,
            Meaning::Ready | Meaning::Done | Meaning::PutReady | Meaning::PutDone => false,
        },
        Effect::Share(_)
        | Effect::Barrier
        | Effect::Compute
        | Effect::Record(_)
        | Effect::Join(_)
        | Effect::Wait(_)
        | Effect::Post(_)
        | Effect::Reshard(_)
        | Effect::Finish => false,
    };
    plan.code.iter().any(|it| is_of_team(&it.kind))
}

/// Whether an operand of a communication is freed before the program ends.
fn frees_operands(plan: &Plan, posted: Option<usize>, freed: &FxHashSet<BufferNo>) -> bool {
    let mut frees = false;
    if let Some(at) = posted {
        plan.code[at].kind.visit_accesses(plan.rank, &mut |it| frees |= freed.contains(&it.view.buffer));
    }
    frees
}
