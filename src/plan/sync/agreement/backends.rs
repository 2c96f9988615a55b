//! Finds communications that do not meet because their sides name different backends.

use std::{collections::BTreeMap, sync::Arc};

use grammar::attr;

use super::{Fault, Side};
use crate::{
    Backend, Direction, InstKind, Plan,
    posted::PostedWorld,
    sync::{CommKey, CommMatching, CommNo, CommRole, InstRef},
};

/// A part of a communication whose other parts are missing.
#[derive(Clone, Copy)]
struct Part {
    at: InstRef,
    comm: CommNo,
    backend: Backend,
}

/// Returns the first error of each team, and of each pair of ranks.
pub(super) fn backend_faults(posted: &PostedWorld, matched: &CommMatching) -> Vec<Fault> {
    let mut collectives: BTreeMap<Arc<[usize]>, Vec<Part>> = BTreeMap::new();
    let mut messages: BTreeMap<(usize, usize), [Vec<Part>; 2]> = BTreeMap::new();
    for (comm, it) in (0..).zip(&matched.comms) {
        let group = match it.key {
            CommKey::Collective(group, _) | CommKey::Message(group, ..) => &matched.groups[group as usize],
            CommKey::Handle(..) | CommKey::Barrier(_) | CommKey::Signal(_) => continue,
        };
        let Some(backend) = group.backend.filter(|_| it.parts.len() < matched.expected_parts(it)) else {
            continue;
        };
        for part in &it.parts {
            let of = Part { at: part.inst_ref, comm, backend };
            match (it.key, part.role) {
                (CommKey::Message(_, from, to, _), CommRole::Side(direction)) => {
                    let sides = messages.entry((from, to)).or_default();
                    sides[usize::from(direction == Direction::Recv)].push(of);
                }
                _ => collectives.entry(Arc::clone(&group.team)).or_default().push(of),
            }
        }
    }
    let plans = &posted.plans;
    let of_messages = messages.values().filter_map(|[sends, recvs]| {
        let (send, recv) = (sends.first()?, recvs.iter().find(|it| it.backend != sends[0].backend)?);
        Some(fault(plans, matched, (send, "sends"), (recv, "receives")))
    });
    let of_collectives = collectives.values().filter_map(|parts| {
        let first = parts.first()?;
        let kind = |it: &Part| match &plans[it.at.rank].code[it.at.inst].kind {
            InstKind::Collective(it) => Some(it.kind.op_name()),
            _ => None,
        };
        let is_other = |it: &&Part| it.backend != first.backend && it.at.rank != first.at.rank;
        let other = parts.iter().find(|it| is_other(it) && kind(it) == kind(first))?;
        Some(fault(plans, matched, (first, "posts"), (other, "posts")))
    });
    of_collectives.chain(of_messages).collect()
}

fn fault(plans: &[Plan], matched: &CommMatching, one: (&Part, &str), other: (&Part, &str)) -> Fault {
    let side = |(part, verb): (&Part, &str)| {
        let (rank, backend) = (part.at.rank, part.backend.name());
        Side {
            at: part.at,
            origin: matched.origin(plans, part.at, part.comm),
            label: format!("rank {rank} {verb} with {backend}"),
            attr: Some(attr::BACKEND.name()),
        }
    };
    let sides = [one, other].map(side);
    let text = |it: &Side| format!("{} in {}", it.label, plans[it.at.rank].describe_origin(it.origin));
    let message = format!("{}, but {}", text(&sides[0]), text(&sides[1]));
    Fault { sides: sides.into(), message, help: "use the same backend on both sides".to_owned() }
}
