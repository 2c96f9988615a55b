//! Converts between whole tensors and the shards that ranks hold.

use std::collections::BTreeMap;

use crate::data::{Data, NdArray, Shadow, ShadowedTensor, UnsupportedDtype, WrittenMask, shadow::Estimate};
use hir_plan::ShardLayout;

/// An error in slicing or assembling a tensor.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// The tensor's shape differs from the whole shape of the layout.
    #[error("a tensor of shape {found:?} does not match shape {expected:?}")]
    Shape {
        /// The tensor's shape.
        found: Vec<usize>,
        /// The layout's shape.
        expected: Vec<usize>,
    },
    /// A shard has another whole shape or another element type than the first shard, or its number of
    /// elements differs from its layout.
    #[error("the shard of rank {rank} does not match the shard of rank {first}")]
    Part {
        /// The rank of the shard.
        rank: usize,
        /// The rank of the first shard.
        first: usize,
    },
    /// The shards have a type that `Data` does not support.
    #[error(transparent)]
    Dtype(#[from] UnsupportedDtype),
}

/// Returns a rank's shard of a whole tensor.
///
/// # Errors
/// Rejects a tensor whose shape differs from the whole shape of the layout.
pub fn local_shard(tensor: &NdArray, layout: &ShardLayout) -> Result<Data, ShardError> {
    if tensor.shape != layout.shape {
        return Err(ShardError::Shape { found: tensor.shape.clone(), expected: layout.shape.clone() });
    }
    if layout.local_shape().iter().product::<usize>() == tensor.data.len() {
        Ok(tensor.data.clone())
    } else {
        Ok(tensor.data.gather(&layout.view_in_whole(0)))
    }
}

/// The shard of a tensor that one rank holds.
#[derive(Clone, Copy, Debug)]
pub struct RankShard<'a> {
    /// The rank.
    pub rank: usize,
    /// The positions of its elements in the whole tensor.
    pub layout: &'a ShardLayout,
    /// Its elements in row-major order.
    pub data: &'a Data,
    /// The mask of its written elements.
    pub written: &'a WrittenMask,
    /// The values without rounding; `None` if all are exact.
    pub shadow: Option<&'a Shadow>,
}

/// A whole tensor assembled from shards.
#[derive(Clone, Debug, PartialEq)]
pub struct AssembledTensor {
    /// The tensor. A replicated element has the value of the first rank that holds it; an element that no
    /// rank holds is 0.
    pub tensor: NdArray,
    /// The elements that at least one rank holds and that all ranks holding them have written.
    pub written: WrittenMask,
    /// For each element the rank from which it was taken; `None` if no rank holds it.
    pub owners: Vec<Option<usize>>,
    /// The first element, in order of ranks, for which two ranks hold different values.
    pub conflict: Option<ReplicaConflict>,
    /// The values without rounding; `None` if all are exact.
    pub shadow: Option<Shadow>,
}

impl AssembledTensor {
    /// Returns the tensor and its shadow.
    pub fn shadowed(&self) -> ShadowedTensor<'_> {
        ShadowedTensor { tensor: &self.tensor, shadow: self.shadow.as_ref() }
    }
}

/// A replicated element that differs between ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaConflict {
    /// Its index in the whole tensor, slowest dimension first.
    pub index: Vec<usize>,
    /// The two ranks.
    pub ranks: [usize; 2],
    /// The value on each of them.
    pub values: [String; 2],
}

/// Assembles shards. Written elements that several ranks hold must be equal bit for bit or, if they are
/// inexact, agree by their shadows, because ranks may sum in different orders.
///
/// Without shards, the result is an empty tensor.
///
/// # Errors
/// Rejects shards of different tensors.
pub fn assemble_shards(parts: &[RankShard]) -> Result<AssembledTensor, ShardError> {
    let Some(first) = parts.first() else {
        let tensor = NdArray { shape: vec![0], data: Data::Bool(Vec::new()) };
        return Ok(AssembledTensor {
            tensor,
            written: WrittenMask::full(0),
            owners: Vec::new(),
            conflict: None,
            shadow: None,
        });
    };
    let shape = &first.layout.shape;
    let mut data = Data::zeros(first.data.dtype(), shape.iter().product())?;
    let mut written = vec![true; data.len()];
    let mut owners = vec![None; data.len()];
    let mut conflict = None;
    let mut shadow = parts.iter().any(|it| it.shadow.is_some()).then(|| Shadow::of(&data));
    let mut known: BTreeMap<*const Data, &ShardLayout> = BTreeMap::new();
    for part in parts {
        // Ranks may share one shard, which equals itself.
        if known.insert(part.data, part.layout) == Some(part.layout) {
            continue;
        }
        let indices = part.layout.global_indices();
        if part.layout.shape != *shape || part.data.len() != indices.len() {
            return Err(ShardError::Part { rank: part.rank, first: first.rank });
        }
        // Compare elements of earlier ranks before this shard is written.
        let earlier = data.pick(&indices);
        let earlier_shadow = shadow.as_ref().map(|it| it.pick(&indices));
        let fresh: Vec<bool> = indices.iter().map(|&at| owners[at].is_none()).collect();
        if conflict.is_none() {
            let differs = |&local: &usize| {
                let both = !fresh[local] && written[indices[local]] && part.written.get(local);
                let agrees = || {
                    let mine = Estimate::of(part.data, part.shadow, local);
                    let theirs = Estimate::of(&earlier, earlier_shadow.as_ref(), local);
                    let may_differ = || {
                        mine.tolerance(theirs) == f64::INFINITY
                            || !part.data.differs_beyond_rounding(local, &earlier)
                    };
                    shadow.is_some() && mine.agrees(theirs) && may_differ()
                };
                both && !part.data.has_same_value(local, &earlier) && !agrees()
            };
            conflict = (0..indices.len()).find(differs).map(|local| ReplicaConflict {
                index: unravel_index(indices[local], shape),
                ranks: [owners[indices[local]].unwrap_or(part.rank), part.rank],
                values: [earlier.text(local), part.data.text(local)],
            });
        }
        if !data.put(&indices, &fresh, part.data) {
            return Err(ShardError::Part { rank: part.rank, first: first.rank });
        }
        if let Some(shadow) = &mut shadow {
            let exact = || Shadow::of(part.data);
            shadow.put(&indices, &fresh, &part.shadow.cloned().unwrap_or_else(exact));
        }
        for (local, &at) in indices.iter().enumerate() {
            written[at] &= part.written.get(local);
            owners[at] = owners[at].or(Some(part.rank));
        }
    }
    written.iter_mut().zip(&owners).for_each(|(it, owner)| *it &= owner.is_some());
    let tensor = NdArray { shape: shape.clone(), data };
    Ok(AssembledTensor { tensor, written: WrittenMask::from_flags(written), owners, conflict, shadow })
}

/// Returns the index along each dimension of element `at` of a row-major tensor.
pub fn unravel_index(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (digit, &extent) in index.iter_mut().zip(shape).rev() {
        *digit = at % extent.max(1);
        at /= extent.max(1);
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;
    use hir_plan::{AxisPiece, Number};

    /// Returns the layout of the `rank`th of `ranks` groups of columns of a `[2, 4]` tensor.
    fn columns(rank: usize, ranks: usize) -> ShardLayout {
        let whole = AxisPiece { extent: 2, coordinate: None };
        let split = [
            AxisPiece { extent: ranks, coordinate: Some(rank) },
            AxisPiece { extent: 4 / ranks, coordinate: None },
        ];
        ShardLayout { shape: vec![2, 4], pieces: vec![vec![whole], split.to_vec()] }
    }

    fn tensor() -> NdArray {
        NdArray { shape: vec![2, 4], data: Data::I32((0..8).collect()) }
    }

    #[test]
    fn slices_and_assembles() -> Result<(), ShardError> {
        let layouts = [columns(0, 2), columns(1, 2)];
        let parts = [local_shard(&tensor(), &layouts[0])?, local_shard(&tensor(), &layouts[1])?];
        assert_eq!(parts[1], Data::I32(vec![2, 3, 6, 7]));
        let full = WrittenMask::full(4);
        let part = |rank: usize| RankShard {
            rank,
            layout: &layouts[rank],
            data: &parts[rank],
            written: &full,
            shadow: None,
        };
        let all = assemble_shards(&[part(0), part(1)])?;
        assert_eq!((all.tensor, all.conflict), (tensor(), None));
        assert!(all.written.is_full());
        let half = assemble_shards(&[part(1)])?;
        assert_eq!(half.tensor.data, Data::I32(vec![0, 0, 2, 3, 0, 0, 6, 7]));
        assert_eq!(half.owners[..3], [None, None, Some(1)]);
        assert_eq!(half.written.first_unwritten(), Some(0));
        Ok(())
    }

    #[test]
    fn only_the_whole_shape_is_sliced() {
        let flat = NdArray { shape: vec![8], ..tensor() };
        assert!(local_shard(&flat, &columns(1, 2)).is_err());
        assert_eq!(local_shard(&tensor(), &ShardLayout::whole(&[2, 4])), Ok(flat.data));
        let error = local_shard(&tensor(), &ShardLayout::whole(&[4, 2])).map_err(|it| it.to_string());
        assert_eq!(error, Err("a tensor of shape [2, 4] does not match shape [4, 2]".to_owned()));
    }

    #[test]
    fn replicas_must_agree() -> Result<(), ShardError> {
        let layout = ShardLayout::whole(&[2, 4]);
        let (one, mut other, full) = (tensor().data, tensor().data, WrittenMask::full(8));
        other.set(6, Number::Int(60));
        let missing = WrittenMask::from_flags((0..8).map(|it| it != 6).collect());
        let parts = |written| {
            let part = |rank, data, written| RankShard { rank, layout: &layout, data, written, shadow: None };
            assemble_shards(&[part(3, &one, &full), part(5, &other, written)])
        };
        let conflict =
            ReplicaConflict { index: vec![1, 2], ranks: [3, 5], values: ["6".to_owned(), "60".to_owned()] };
        assert_eq!(parts(&full)?.conflict, Some(conflict));
        let unwritten = parts(&missing)?;
        assert_eq!((unwritten.conflict, unwritten.written), (None, missing));
        assert_eq!(unwritten.tensor, tensor());
        Ok(())
    }

    #[test]
    fn replicas_that_are_inexact_agree_by_their_shadows() -> Result<(), ShardError> {
        let (layout, full) = (ShardLayout::whole(&[1]), WrittenMask::full(1));
        let (one, other) = (Data::F32(vec![0.3]), Data::F32(vec![0.30000004]));
        let conflict = |theirs: f64| {
            let shadow = |it: f64| Shadow::from_lanes([vec![it], vec![it], vec![it]]);
            let (mine, theirs) = (shadow(0.3), shadow(theirs));
            let first =
                RankShard { rank: 0, layout: &layout, data: &one, written: &full, shadow: Some(&mine) };
            let second = RankShard { rank: 1, data: &other, shadow: Some(&theirs), ..first };
            Ok::<_, ShardError>(assemble_shards(&[first, second])?.conflict.is_some())
        };
        assert!(!conflict(0.3 * (1.0 + 0.9e-9))?);
        assert!(conflict(0.3 * (1.0 + 1.1e-9))?);
        Ok(())
    }

    #[test]
    fn parts_of_different_tensors() {
        let (whole, columns) = (ShardLayout::whole(&[2, 4]), columns(0, 2));
        let (ints, floats, full) = (tensor().data, Data::F32(vec![0.0; 4]), WrittenMask::full(8));
        let first = RankShard { rank: 0, layout: &whole, data: &ints, written: &full, shadow: None };
        let other = RankShard { rank: 1, layout: &columns, data: &floats, written: &full, shadow: None };
        assert_eq!(assemble_shards(&[first, other]), Err(ShardError::Part { rank: 1, first: 0 }));
        assert_eq!(assemble_shards(&[]).map(|it| it.tensor.data.len()), Ok(0));
    }
}
