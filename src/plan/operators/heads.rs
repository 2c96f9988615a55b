//! Heads of an attention: consecutive heads of the query may share keys and values.

use crate::View;

/// Returns the number of heads of the keys if heads of the query share them: the last dimension of the batch.
pub(crate) fn shared_heads(batch: &[usize], key: &View) -> Option<usize> {
    let (all, [.., shared, _, _]) = (*batch.last()?, &key.shape[..]) else { return None };
    (*shared > 0 && *shared < all && all % shared == 0).then_some(*shared)
}

/// Returns the batch of keys and values, whose last dimension are the `groups` of heads that share them.
pub(crate) fn batch_of_keys(batch: &[usize], groups: Option<usize>) -> Vec<usize> {
    match (batch, groups) {
        ([outer @ .., _], Some(groups)) => [outer, &[groups]].concat(),
        _ => batch.to_vec(),
    }
}

/// Splits the heads, dimension `dim`, into groups of consecutive ones.
pub(crate) fn split_heads(it: &View, dim: usize, groups: usize) -> View {
    let count = it.shape[dim] / groups;
    let mut it = it.clone();
    it.shape.splice(dim..=dim, [groups, count]);
    let step = it.strides[dim];
    it.strides.splice(dim..=dim, [step * count, step]);
    it
}

/// Repeats each head of keys or values, dimension `dim`, for `count` heads of the query.
pub(crate) fn repeat_heads(it: &View, dim: usize, count: usize) -> View {
    let mut it = it.unsqueeze(dim + 1);
    it.shape[dim + 1] = count;
    it
}
