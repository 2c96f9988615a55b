//! Matches what ranks say about each other: peers' views go into copies, sizes have to agree.
//!
//! A side without a counterpart is left as it is: its flag is never raised, and the simulator reports who waits for whom.

use grammar::{codes::Code, diagnostic::Diagnostic, ir::Program};

use super::{
    Direction, InstKind, Plan, Port, View,
    comm::{Links, PeerView},
    sync,
};

/// Fills in the plans of all ranks, by rank. Faults name the rank whose program they are about.
pub(super) fn link(programs: &[&Program], plans: &mut [Plan], links: &[Links]) -> Vec<(usize, Diagnostic)> {
    let mut faults = ports(programs, plans);
    faults.extend(sync::agreement(programs, plans, links));
    if !faults.is_empty() {
        return faults;
    }
    for rank in 0..plans.len() {
        // Views are taken from what the ranks left, never from instructions, so a rank is patched at once.
        let patches = patches(programs, (plans, links), rank, &mut faults);
        patches.into_iter().for_each(|it| patch(&mut plans[rank], it));
    }
    faults
}

/// A peer's view, and the instruction that lacks it.
type Patch = (usize, PeerView, View);

/// What a rank's instructions lack of its peers' views.
fn patches(
    programs: &[&Program],
    (plans, all): (&[Plan], &[Links]),
    rank: usize,
    faults: &mut Vec<(usize, Diagnostic)>,
) -> Vec<Patch> {
    let mut patches = Vec::new();
    let (Some(plan), Some(links)) = (plans.get(rank), all.get(rank)) else { return patches };
    {
        for message in &links.messages {
            let peer = message.peer;
            let (Some(peer_plan), Some(peer_links)) = (plans.get(peer), all.get(peer)) else { continue };
            let Some(other) = peer_links.mirrored(peer, rank, message) else { continue };
            let (mine, theirs) = (&message.view, &other.view);
            if message.put != other.put {
                if message.direction == Direction::Send {
                    let protocol = |put: bool| if put { "put" } else { "get" };
                    faults.push(disagreement(
                        programs,
                        plan,
                        message.posted_at as usize,
                        format!(
                            "rank {rank} sends by protocol {} and rank {peer} receives by {} ({})",
                            protocol(message.put),
                            protocol(other.put),
                            place(peer_plan, other.posted_at as usize)
                        ),
                    ));
                }
                continue;
            }
            if mine.len() != theirs.len() {
                if message.direction == Direction::Send {
                    faults.push(disagreement(
                        programs,
                        plan,
                        message.posted_at as usize,
                        format!(
                            "rank {rank} sends {} elements and rank {peer} receives {} ({})",
                            mine.len(),
                            theirs.len(),
                            place(peer_plan, other.posted_at as usize)
                        ),
                    ));
                }
                continue;
            }
            if let Some(copy) = message.copy {
                match theirs.reshape(&mine.shape) {
                    Some(view) => patches.push((copy as usize, PeerView::Output, view)),
                    None => faults.push(disagreement(
                        programs,
                        plan,
                        message.posted_at as usize,
                        format!("shape {:?} does not match {:?} on rank {peer}", mine.shape, theirs.shape),
                    )),
                }
            }
        }
        for (index, views) in links.collectives.iter().enumerate() {
            for (inst, peer, which) in &views.open {
                let Some(peer_links) = all.get(*peer) else { continue };
                let Some(theirs) = peer_links.collectives.get(index) else { continue };
                let Some(input) = &views.input else { continue };
                let found = match which {
                    PeerView::Output => theirs.output.as_ref().and_then(|it| it.reshape(&input.shape)),
                    PeerView::OutputPart(part, parts) => theirs
                        .output
                        .as_ref()
                        .and_then(|it| flat_part(it, *part, *parts)?.reshape(&input.shape)),
                    PeerView::Operand(_) => theirs.input.as_ref().and_then(|it| it.reshape(&input.shape)),
                };
                match found {
                    Some(view) => patches.push((*inst, *which, view)),
                    None => faults.push(disagreement(
                        programs,
                        plan,
                        *inst,
                        format!("the views of ranks {rank} and {peer} do not match"),
                    )),
                }
            }
        }
    }
    patches
}

fn patch(plan: &mut Plan, (inst, which, view): Patch) {
    let me = plan.rank;
    let Some(inst) = plan.code.get_mut(inst) else { return };
    match (&mut inst.kind, which) {
        (InstKind::Copy { from, to }, _) => {
            // The peer's side is the one on another rank; on this rank itself it is the destination.
            let side = if from.rank != me { from } else { to };
            side.view = view;
        }
        (InstKind::Combine { parts, .. }, PeerView::Operand(at)) => {
            if let Some(part) = parts.get_mut(at) {
                part.view = view;
            }
        }
        _ => (),
    }
}

/// Part `part` of `parts` of a view's elements in row-major order; `None` where that is not a view.
fn flat_part(view: &View, part: usize, parts: usize) -> Option<View> {
    let flat = view.reshape(&[view.len()])?;
    let len = view.len() / parts.max(1);
    Some(flat.narrow(0, part * len, len))
}

fn place(plan: &Plan, inst: usize) -> String {
    plan.code.get(inst).map_or_else(String::new, |inst| plan.place(inst))
}

pub(super) fn disagreement(
    programs: &[&Program],
    plan: &Plan,
    inst: usize,
    message: String,
) -> (usize, Diagnostic) {
    let program = programs[plan.rank];
    let origin = plan.code.get(inst).map(|inst| plan.origins[inst.origin as usize]);
    let span = origin.and_then(|it| it.stmt).map_or(program.spans.header, |stmt| program.stmt_span(stmt));
    let message = format!("{message} (rank {}, {})", plan.rank, place(plan, inst));
    (plan.rank, Diagnostic::new(Code::Disagreement, span, message, "the two sides have to agree"))
}

/// Ranks that run programs of their own have the same inputs and outputs all the same.
fn ports(programs: &[&Program], plans: &[Plan]) -> Vec<(usize, Diagnostic)> {
    let shapes = |ports: &[Port]| -> Vec<(grammar::dtype::DType, Vec<usize>)> {
        ports.iter().map(|port| (port.dtype, port.shard.layout.shape.clone())).collect()
    };
    let Some(first) = plans.first() else { return Vec::new() };
    let (inputs, outputs) = (shapes(&first.inputs), shapes(&first.outputs));
    let differs = |plan: &&Plan| shapes(&plan.inputs) != inputs || shapes(&plan.outputs) != outputs;
    let fault = |plan: &Plan| {
        let message = format!("rank {}'s inputs or outputs are not those of rank 0", plan.rank);
        let label = "expected the same header on all ranks";
        (plan.rank, Diagnostic::new(Code::Disagreement, programs[plan.rank].spans.header, message, label))
    };
    plans.iter().find(differs).map(fault).into_iter().collect()
}
