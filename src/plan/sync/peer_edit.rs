//! The text of the peer with which a send or a receive meets its partner.

use std::{collections::BTreeSet, sync::Arc};

use grammar::StmtId;

use super::{Blocker, InstRef, WaitGraph};
use crate::{Communication, Plan, SyncEffect};

/// The loop indices around a send or a receive, the rank that posts it, and the rank that it names.
type Transfer = (Vec<(Arc<str>, i64)>, usize, usize);

/// Returns the change of the statement `origin` on the rank of `blocker` with which it meets the statement of
/// `at`: ``write `peer=( ( rank + 3 ) % 4 )` on line 7``. Returns `None` unless the peers of all transfers
/// of the statement of `at` execute the other statement in the same iteration.
pub(super) fn matching_peer(
    graph: &WaitGraph<'_>,
    at: InstRef,
    blocker: &Blocker,
    origin: u32,
) -> Option<String> {
    let plans = graph.plans;
    // An expression of one program need not have the same meaning in another.
    if plans.iter().any(|it| it.program_id != 0) {
        return None;
    }
    let (key, _) = blocker.part?;
    let number = *graph.matched.comms_of(at).iter().find(|it| graph.matched.comm(**it).key == key)?;
    let own_origin = graph.matched.origin(plans, at, number);
    let own = plans[at.rank].origins[own_origin as usize].stmt?;
    let other = plans[blocker.rank].origins[origin as usize].stmt?;
    let names = &plans[at.rank].comm_names;
    let (peer, line) = (names.partner_peer(own)?, names.line(other)?);
    let posted = transfers(plans, own);
    // The inverse of `rank + i` modulo the number of ranks is `rank - i` plus this number, which is negative
    // for a larger `i`.
    let ranks = posted.iter().map(|it| it.1).collect::<BTreeSet<_>>().len() as i64;
    if posted.iter().flat_map(|it| &it.0).any(|(_, value)| !(0..=ranks).contains(value)) {
        return None;
    }
    // The partners of all transfers of `own` have to execute `other`, in the same iterations.
    let mut partners: Vec<_> = posted.iter().map(|(loops, _, peer)| (loops.clone(), *peer)).collect();
    let mut executing: Vec<_> =
        transfers(plans, other).into_iter().map(|(loops, rank, _)| (loops, rank)).collect();
    let mut posting: Vec<_> = posted.into_iter().map(|(loops, rank, _)| (loops, rank)).collect();
    [&mut partners, &mut executing, &mut posting].into_iter().for_each(|it| it.sort_unstable());
    // `peer` inverts a permutation of the ranks that post `own`; of other functions it is no inverse.
    (partners == executing && partners == posting).then(|| format!("write `peer=( {peer} )` on line {line}"))
}

/// Returns all transfers that a statement posts, on all ranks.
fn transfers(plans: &[Plan], stmt: StmtId) -> Vec<Transfer> {
    let mut found = Vec::new();
    for plan in plans {
        for inst in &plan.code {
            let SyncEffect::Post(Communication::P2pGroup(group)) = inst.kind.effect() else { continue };
            for op in &group.ops {
                let origin = plan.origins[op.origin as usize];
                if origin.stmt == Some(stmt) {
                    found.push((plan.enclosing_loops(origin.iteration), plan.rank, op.peer));
                }
            }
        }
    }
    found
}
