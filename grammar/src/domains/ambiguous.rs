//! Finds tensors whose text does not determine whether an axis was split.
//!
//! A parallel axis numbered directly before a serial one can be a logical axis, like the serial one, or both
//! can be the results of a split whose input no statement shows. The input would have a smaller number, which
//! does not occur in the text.
//!
//! A device axis that a permutation does not split is where the text lists it, or at the front, where nvFuser moves device axes.
//!
//! Invariant: a tensor that an operator of known rank reads or writes is never ambiguous.

use rustc_hash::FxHashSet;

use super::{DomainFacts, InferredDomains, splits::split_candidates};
use crate::{
    arena::Id,
    ir::{AxisId, ParallelType, Program, TensorId},
};

/// A tensor whose text fits several domains.
pub(crate) struct AmbiguousTensor {
    pub(crate) tensor: TensorId,
    /// The two axes that may be the results of one split; `None` if the order of the logical axes is open.
    pub(crate) split: Option<(AxisId, AxisId)>,
}

/// Returns the ambiguous tensors of the container.
pub(super) fn ambiguous_tensors(
    program: &Program,
    facts: &DomainFacts,
    all_inferred: &[(TensorId, InferredDomains)],
) -> Vec<AmbiguousTensor> {
    let mut found = ambiguous_splits(program, facts, all_inferred);
    let unordered = all_inferred.iter().filter(|(tensor, inferred)| {
        let loops = program.tensors[*tensor].loop_domain.iter().enumerate();
        let is_outer = |at: usize| inferred.splits.iter().any(|split| split.0 == at);
        let listed = loops.filter(|(at, _)| !is_outer(*at)).map(|(_, axis)| *axis);
        facts.permutations.contains(tensor)
            && !listed.eq(facts.logical_order(program, *tensor, inferred))
            && found.iter().all(|it| it.tensor != *tensor)
    });
    let unordered: Vec<TensorId> = unordered.map(|(tensor, _)| *tensor).collect();
    found.extend(unordered.into_iter().map(|tensor| AmbiguousTensor { tensor, split: None }));
    found
}

fn ambiguous_splits(
    program: &Program,
    facts: &DomainFacts,
    all_inferred: &[(TensorId, InferredDomains)],
) -> Vec<AmbiguousTensor> {
    let pairs_of = |(tensor, inferred): &(TensorId, InferredDomains)| {
        let pairs = split_candidates(program, *tensor, &inferred.splits);
        (!pairs.is_empty()).then_some((*tensor, pairs))
    };
    let candidates: Vec<_> = all_inferred.iter().filter_map(pairs_of).collect();
    if candidates.is_empty() {
        return Vec::new();
    }
    let tensors = all_inferred.iter().map(|(tensor, _)| &program.tensors[*tensor]);
    let shown = tensors.flat_map(|it| it.loop_domain.iter().chain(&it.domains.logical));
    let named = facts.named_axes.values().flatten();
    let seen: FxHashSet<u32> = shown.chain(named).map(|id| program.axes[*id].number).collect();
    let possible = |(tensor, pairs): &(TensorId, Vec<(usize, usize, bool)>)| {
        let loops = &program.tensors[*tensor].loop_domain;
        let (outer, inner, _) = *pairs.iter().find(|(outer, ..)| {
            let axis = &program.axes[loops[*outer]];
            let hidden = axis.number.checked_sub(1).is_some_and(|it| !seen.contains(&it));
            // A split moves device axes to the front; it leaves stream axes in place.
            hidden && (*outer == 0 || axis.parallel == ParallelType::Stream)
        })?;
        Some(AmbiguousTensor { tensor: *tensor, split: Some((loops[outer], loops[inner])) })
    };
    let ambiguous: Vec<AmbiguousTensor> = candidates.iter().filter_map(possible).collect();
    let mut doubtful = vec![false; program.tensors.len()];
    ambiguous.iter().for_each(|it| doubtful[it.tensor.index()] = true);
    let known = facts.ranks.known.iter().map(|(tensor, _)| *tensor);
    let related = facts.ranks.equations.iter().flat_map(|(a, b, ..)| [(*a, *b), (*b, *a)]);
    let related = related.filter(|(_, other)| !doubtful[other.index()]).map(|(tensor, _)| tensor);
    let settled: FxHashSet<TensorId> = known.chain(related).collect();
    ambiguous.into_iter().filter(|it| !settled.contains(&it.tensor)).collect()
}
