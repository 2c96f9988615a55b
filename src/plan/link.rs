//! Matches what ranks say about each other: peers' views go into copies, sizes have to agree.
//!
//! A side without a counterpart is left as it is: its flag is never raised, and the simulator reports who waits for whom.

use grammar::{codes::Code, diagnostic::Diagnostic, ir::Program};

use super::{
    InstKind, Plan, View,
    comm::{PeerView, State},
};

/// Fills in the plans of all ranks; `ranks[r]` is rank `r`'s.
pub(super) fn link(program: &Program, ranks: &mut [(Plan, State)]) -> Vec<Diagnostic> {
    let mut faults = Vec::new();
    let mut patches: Vec<(usize, usize, PeerView, View)> = Vec::new();
    for (rank, (plan, state)) in ranks.iter().enumerate() {
        let mut channels: Vec<_> = state.messages.iter().collect();
        channels.sort_by_key(|(channel, _)| **channel);
        for (&(from, to, index), message) in channels {
            let peer = if rank == from { to } else { from };
            let Some((peer_plan, peer_state)) = ranks.get(peer) else { continue };
            let Some(other) = peer_state.messages.get(&(from, to, index)) else { continue };
            let (mine, theirs) = match rank == from {
                true => (&message.send, &other.recv),
                false => (&message.recv, &other.send),
            };
            let (Some(mine), Some(theirs)) = (mine, theirs) else { continue };
            if message.put != other.put || mine.len() != theirs.len() {
                if rank == from {
                    faults.push(disagreement(
                        program,
                        plan,
                        message.posted_at,
                        format!(
                            "rank {from} sends {} elements and rank {to} receives {} ({})",
                            mine.len(),
                            theirs.len(),
                            place(peer_plan, other.posted_at)
                        ),
                    ));
                }
                continue;
            }
            if let Some(copy) = message.copy {
                match theirs.reshape(&mine.shape) {
                    Some(view) => patches.push((rank, copy, PeerView::Output, view)),
                    None => faults.push(disagreement(
                        program,
                        plan,
                        message.posted_at,
                        format!("shape {:?} does not match {:?} on rank {peer}", mine.shape, theirs.shape),
                    )),
                }
            }
        }
        for (index, views) in state.collectives.iter().enumerate() {
            for (inst, peer, which) in &views.open {
                let Some((_, peer_state)) = ranks.get(*peer) else { continue };
                let Some(theirs) = peer_state.collectives.get(index) else { continue };
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
                    Some(view) => patches.push((rank, *inst, *which, view)),
                    None => faults.push(disagreement(
                        program,
                        plan,
                        *inst,
                        format!("the views of ranks {rank} and {peer} do not match"),
                    )),
                }
            }
        }
    }
    for (rank, inst, which, view) in patches {
        let me = rank;
        let Some(inst) = ranks[rank].0.code.get_mut(inst) else { continue };
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
    faults
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

fn disagreement(program: &Program, plan: &Plan, inst: usize, message: String) -> Diagnostic {
    let origin = plan.code.get(inst).map(|inst| plan.origins[inst.origin as usize]);
    let span = origin.and_then(|it| it.stmt).map_or(program.spans.header, |stmt| program.stmt_span(stmt));
    let message = format!("{message} (rank {}, {})", plan.rank, place(plan, inst));
    Diagnostic::new(Code::Disagreement, span, message, "the two sides have to agree")
}
