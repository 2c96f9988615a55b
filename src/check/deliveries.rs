//! The elements that the members of a communication receive from one of them.

use hir_plan::{
    Communication, Direction, InstKind, PieceSource, View, World,
    sync::{CommRole, InstRef},
};

/// Calls `see` for each part of what other instructions receive from `at`, or what it receives from itself: the receiving
/// instruction, the elements there, and the elements that `at` gives. Calls it for nothing if `at` is no communication.
/// Elements that are reduced or resharded depend on all elements that are given.
pub(super) fn visit_deliveries(world: &World, at: InstRef, see: &mut dyn FnMut(InstRef, View, &View)) {
    let kind = &world[at.rank].code[at.inst].kind;
    let matching = world.matching();
    let comms = matching.comms_of(at);
    if let InstKind::Reshard(it) = kind {
        let given = it.operands.iter().filter_map(|it| it.view.as_ref());
        let parts = comms.iter().flat_map(|it| &matching.comm(*it).parts);
        for (view, part) in given.flat_map(|view| parts.clone().map(move |it| (view, it.inst_ref))) {
            let InstKind::Reshard(other) = &world[part.rank].code[part.inst].kind else { continue };
            if let Some(result) = &other.result.view {
                see(part, result.clone(), view);
            }
        }
        return;
    }
    match kind.communication() {
        None => (),
        Some(Communication::P2pGroup(it)) => {
            for (comm, op) in comms.iter().zip(&it.ops).filter(|it| it.1.direction == Direction::Send) {
                let Some(to) = matching.comm(*comm).part(op.peer, CommRole::Side(Direction::Recv)) else {
                    continue;
                };
                let Some(Communication::P2pGroup(other)) = world[to.rank].code[to.inst].kind.communication()
                else {
                    continue;
                };
                let place = matching.comms_of(to).iter().position(|it| it == comm);
                if let Some(received) = place.and_then(|it| other.ops.get(it)) {
                    see(to, received.view.clone(), &op.view);
                }
            }
        }
        Some(Communication::Collective(it)) => {
            let (Some(given), Some(comm)) = (&it.input, comms.first()) else { return };
            let parts = &matching.comm(*comm).parts;
            let role = |it: InstRef| parts.iter().find(|part| part.inst_ref == it).map(|it| it.role);
            let Some(CommRole::Member(me)) = role(at) else { return };
            let n = parts.len();
            for part in parts {
                let CommRole::Member(member) = part.role else { continue };
                let to = part.inst_ref;
                let Some(Communication::Collective(other)) =
                    world[to.rank].code[to.inst].kind.communication()
                else {
                    continue;
                };
                let Some(output) = &other.output else { continue };
                let mut offset = 0;
                for piece in other.kind.output_pieces(member, n) {
                    let range = piece.source_range(given.len(), n);
                    let is_from_me = match piece.source {
                        PieceSource::Member(from) => from == me,
                        PieceSource::Reduced => true,
                    };
                    if is_from_me {
                        let received = part_of(output, offset, range.len());
                        see(to, received, &part_of(given, range.start, range.len()));
                    }
                    offset += range.len();
                }
            }
        }
    }
}

/// Returns some elements of a view in row-major order; all elements if these are no view.
fn part_of(view: &View, first: usize, count: usize) -> View {
    let flat = view.reshape(&[view.len()]).filter(|_| first + count <= view.len());
    flat.map_or_else(|| view.clone(), |it| it.narrow(0, first, count))
}
