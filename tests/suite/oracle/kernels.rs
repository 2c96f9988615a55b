//! A search of all orders in which ranks may start kernels of NCCL. A GPU runs one at a time; it ends once what it waits for has begun.

use std::collections::BTreeSet;

use super::{graph::Graph, works::Kernel};

/// The number of states after which the search gives up.
const STATES: usize = 20_000;

/// Returns whether ranks may start kernels so that none ends; `None` if there are too many states.
pub fn may_hang(graph: &Graph) -> Option<bool> {
    let is_of_several = |of: &Vec<Kernel>| of.iter().any(|it| it.comm != of[0].comm);
    if !graph.kernels.iter().any(is_of_several) {
        return Some(false);
    }
    let mut held: BTreeSet<usize> = graph.kernels.iter().flatten().map(|it| it.begin).collect();
    let mut known = BTreeSet::new();
    let hangs = start(graph, &mut held, &mut known);
    (hangs || known.len() <= STATES).then_some(hangs)
}

/// Starts the kernels that may start, in each order; `held` are the beginnings of those that have not started.
fn start(graph: &Graph, held: &mut BTreeSet<usize>, known: &mut BTreeSet<Vec<usize>>) -> bool {
    if held.is_empty() || known.len() > STATES || !known.insert(held.iter().copied().collect()) {
        return false;
    }
    let done = graph.done(held, false);
    let needs = |it: usize| graph.needs[it].iter().chain(&graph.may[it]).all(|it| done[*it]);
    let mut any = false;
    for of in &graph.kernels {
        if of.iter().any(|it| done[it.begin] && !done[it.end]) {
            continue;
        }
        // A kernel that overtakes others is more likely to hang.
        for it in of.iter().rev() {
            if !held.contains(&it.begin) || !needs(it.begin) {
                continue;
            }
            any = true;
            held.remove(&it.begin);
            let hangs = start(graph, held, known);
            held.insert(it.begin);
            if hangs {
                return true;
            }
        }
    }
    !any
}
