//! Chooses for one communication after the other, with what is chosen for the others.

use hir_ir::search;

use super::{
    Candidate, EQUAL,
    choices::{CHOICES, Choice, Strategy},
    communications::Communication,
};

/// Number of times that all communications are visited: a choice may depend on those for later ones.
const SWEEPS: usize = 2;

/// What was tried for a communication alone.
#[derive(Clone, Default)]
pub(super) struct Tried {
    /// The estimated times of the program with what is chosen, and with each other strategy that changes the program.
    pub times: Vec<(Strategy, f64)>,
    /// The number of strategies that give the program that is chosen already.
    same: usize,
}

impl Tried {
    /// Returns whether there are other strategies, and none changes the program.
    pub fn is_without_effect(&self) -> bool {
        self.times.len() <= 1 && self.same > 0
    }
}

/// Improves the best choices for kinds by other choices for single communications, and returns the result, with what was tried for each
/// communication. `estimate` returns the candidate of choices; `None` if they are no way, or the budget is spent. `error` is the
/// typical error of an estimate, of which each communication has a part: a gain within it is no reason to split more.
pub(super) fn improved(
    best: &Candidate,
    communications: &[Communication],
    error: f64,
    is_available: impl Fn(&Choice) -> bool,
    mut estimate: impl FnMut(&Candidate, &str, Strategy) -> Option<Candidate>,
) -> (Candidate, Vec<Tried>) {
    let mut best = best.clone();
    let mut tried = vec![Tried::default(); communications.len()];
    let count = communications.len().max(1) as f64;
    search::while_it_helps(SWEEPS, || {
        let mut changed = false;
        for (communication, tried) in communications.iter().zip(&mut tried) {
            let Some((tensor, now)) = communication.tensor.as_ref().zip(best.choices.of(communication))
            else {
                continue;
            };
            let Some(of_all) = best.choices.algorithms() else { continue };
            let mut taken = (now, best.time);
            let mut found = Tried { times: vec![taken], same: 0 };
            for strategy in strategies(communication, of_all, &is_available) {
                if strategy == now {
                    continue;
                }
                let Some(it) = estimate(&best, tensor, strategy) else { continue };
                if it.program == best.program {
                    found.same += 1;
                    continue;
                }
                found.times.push((strategy, it.time));
                let least_gain = if strategy.pieces() > now.pieces() { error } else { EQUAL } / count;
                if it.time < taken.1 && it.time < best.time * (1.0 - least_gain) {
                    taken = (strategy, it.time);
                }
            }
            if found.times.len() > 1 || found.same > 0 {
                *tried = found;
            }
            if taken.0 != now
                && let Some(it) = estimate(&best, tensor, taken.0)
            {
                (best, changed) = (it, true);
            }
        }
        changed
    });
    (best, tried)
}

/// Returns the strategies of a communication. One that is split in chunks has the algorithms of all kinds: the passes know only whole
/// communications by their tensor.
fn strategies(
    communication: &Communication,
    of_all: Choice,
    is_available: &impl Fn(&Choice) -> bool,
) -> Vec<Strategy> {
    let of_kind = |kind| {
        let all = CHOICES.iter().filter(move |it| it.kind == kind);
        all.filter(|it| it.applies_to(communication) && is_available(it)).copied().collect::<Vec<_>>()
    };
    let algorithms = of_kind(None);
    if communication.kind.is_none() {
        return algorithms.into_iter().map(|algorithms| Strategy { split: None, algorithms }).collect();
    }
    let with = |split: Choice| {
        let algorithms = if split.pieces > 1 { vec![of_all] } else { algorithms.clone() };
        algorithms.into_iter().map(move |algorithms| Strategy { split: Some(split), algorithms })
    };
    of_kind(communication.kind).into_iter().flat_map(with).collect()
}
