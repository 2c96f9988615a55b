//! Matches what ranks say about each other: peers' views go into copies, sizes have to agree.
//!
//! A side without a counterpart is left as it is: its flag is never raised, and the simulator reports who waits for whom.

use std::collections::HashMap;

use grammar::{codes::Code, diagnostic::Diagnostic, ir::Program};

use super::{
    CollectiveKind, Communicator, Direction, InstKind, Plan, Port, View,
    agree::agree,
    comm::{Links, PeerView},
};

/// Fills in the plans of all ranks; `ranks[r]` is rank `r`'s. Faults name the rank whose program they are about.
pub(super) fn link(programs: &[&Program], ranks: &mut [(Plan, Links)]) -> Vec<(usize, Diagnostic)> {
    let mut faults = permutes(programs, ranks);
    faults.extend(ports(programs, ranks));
    faults.extend(agree(programs, ranks));
    if !faults.is_empty() {
        return faults;
    }
    for rank in 0..ranks.len() {
        // Views are taken from what the ranks left, never from instructions, so a rank is patched at once.
        let patches = patches(programs, ranks, rank, &mut faults);
        patches.into_iter().for_each(|it| patch(&mut ranks[rank].0, it));
    }
    faults
}

/// A peer's view, and the instruction that lacks it.
type Patch = (usize, PeerView, View);

/// What a rank's instructions lack of its peers' views.
fn patches(
    programs: &[&Program],
    ranks: &[(Plan, Links)],
    rank: usize,
    faults: &mut Vec<(usize, Diagnostic)>,
) -> Vec<Patch> {
    let mut patches = Vec::new();
    let Some((plan, links)) = ranks.get(rank) else { return patches };
    {
        for message in &links.messages {
            let peer = message.peer;
            let Some((peer_plan, peer_links)) = ranks.get(peer) else { continue };
            let Some(other) = peer_links.mirrored(peer, rank, message) else { continue };
            let (mine, theirs) = (&message.view, &other.view);
            if message.put != other.put || mine.len() != theirs.len() {
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
                let Some((_, peer_links)) = ranks.get(*peer) else { continue };
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
fn ports(programs: &[&Program], ranks: &[(Plan, Links)]) -> Vec<(usize, Diagnostic)> {
    let shapes = |ports: &[Port]| -> Vec<(grammar::dtype::DType, Vec<usize>)> {
        ports.iter().map(|port| (port.dtype, port.shard.layout.shape.clone())).collect()
    };
    let Some((first, _)) = ranks.first() else { return Vec::new() };
    let (inputs, outputs) = (shapes(&first.inputs), shapes(&first.outputs));
    let differs =
        |(plan, _): &&(Plan, Links)| shapes(&plan.inputs) != inputs || shapes(&plan.outputs) != outputs;
    let fault = |(plan, _): &(Plan, Links)| {
        let message = format!("rank {}'s inputs or outputs are not those of rank 0", plan.rank);
        let label = "expected the same header on all ranks";
        (plan.rank, Diagnostic::new(Code::Disagreement, programs[plan.rank].spans.header, message, label))
    };
    ranks.iter().find(differs).map(fault).into_iter().collect()
}

/// A permute of one rank: whom it gives to, whom it gets from, which instruction it is.
type Posted = (usize, usize, usize);

/// Whoever gets from a member has to be the one that it sends to. Dumps print their own rank's peers as literals, so
/// one rank's dump run by all is the usual cause.
fn permutes(programs: &[&Program], ranks: &[(Plan, Links)]) -> Vec<(usize, Diagnostic)> {
    let mut queues: HashMap<&Communicator, Vec<Vec<Posted>>> = HashMap::new();
    for (plan, _) in ranks {
        for (at, inst) in plan.code.iter().enumerate() {
            let InstKind::Collective(it) = &inst.kind else { continue };
            let CollectiveKind::Permute { send_peer, recv_peer } = it.kind else { continue };
            let communicator = &plan.communicators[it.communicator as usize];
            let Some(me) = communicator.team.iter().position(|rank| *rank == plan.rank) else { continue };
            let queue =
                queues.entry(communicator).or_insert_with(|| vec![Vec::new(); communicator.team.len()]);
            queue[me].push((send_peer, recv_peer, at));
        }
    }
    let mut faults = Vec::new();
    for (communicator, queue) in queues {
        let shortest = queue.iter().map(Vec::len).min().unwrap_or(0);
        let wrong = (0..shortest).find_map(|at| {
            let me = (0..queue.len()).find(|me| queue[queue[*me][at].1][at].0 != *me)?;
            Some((me, queue[me][at]))
        });
        let Some((me, (_, from, inst))) = wrong else { continue };
        let (rank, giver) = (communicator.team[me], communicator.team[from]);
        let message = format!("rank {rank} gets from rank {giver}, which sends to another rank");
        let (rank, fault) = disagreement(programs, &ranks[rank].0, inst, message);
        let help = "a dump prints its own rank's index as a literal in `send_peer` and `recv_peer`: write `rank` \
                    in its place, or give every rank its own dump with `--program 0=a.hir,1=b.hir`";
        faults.push((rank, fault.help(help)));
    }
    faults
}
