//! Computes which part of a tensor a rank holds, from the splits of the tensor's logical axes.

use grammar::{
    Axis, AxisId, AxisKind, DeviceDim, Memory, ParallelType, Program, TensorId, Transform, axis_text,
};

use super::{
    AxisPiece, ShardLayout, View, limits,
    scalar::{ScalarError, Scalars},
};

/// The reason why a tensor has no layout.
pub(crate) enum LayoutError {
    /// An extent has no value.
    Scalar(ScalarError),
    /// An extent is invalid; the text says why.
    Extent(String),
    /// A stream axis does not split an extent into equal parts.
    Indivisible {
        /// What cannot be split.
        message: String,
        /// The extent.
        extent: usize,
    },
    /// The tensor has too many elements.
    Size,
}

impl From<ScalarError> for LayoutError {
    fn from(fault: ScalarError) -> Self {
        Self::Scalar(fault)
    }
}

/// Returns the layout of a tensor on `rank`, which must be a member of its mesh. `stream` is the index of the
/// slice, if the tensor holds the slice of one stream.
pub(crate) fn shard_layout(
    program: &Program,
    scalars: &Scalars<'_>,
    tensor: TensorId,
    rank: usize,
    stream: Option<usize>,
) -> Result<ShardLayout, LayoutError> {
    let shaper = PieceCollector {
        program,
        tensor,
        rank,
        stream: program.is_split_by_stream(tensor).then(|| stream.unwrap_or(0)),
    };
    let mut layout = ShardLayout { shape: Vec::new(), pieces: Vec::new() };
    let mut elements = 1usize;
    for axis in program.dimensions(tensor) {
        let extent = global_extent(program, scalars, tensor, axis)?;
        // An extent of 0 counts as 1, because strides are products of the other extents.
        elements = elements.saturating_mul(extent.max(1));
        if elements > limits::MAX_TENSOR_ELEMENTS {
            return Err(LayoutError::Size);
        }
        let mut pieces = Vec::new();
        shaper.pieces(scalars, axis, extent, &mut pieces)?;
        layout.shape.push(extent);
        layout.pieces.push(pieces);
    }
    Ok(layout)
}

/// Returns the extent of a logical axis in the whole tensor. nvFuser gives one rank's shard, the operand of a
/// SymmetricContiguousView, a broadcast device axis of extent 1.
fn global_extent(
    program: &Program,
    scalars: &Scalars<'_>,
    tensor: TensorId,
    axis: AxisId,
) -> Result<usize, LayoutError> {
    match (extent(program, scalars, axis)?, &program.axes[axis]) {
        (1, Axis { kind: AxisKind::Broadcast, parallel: ParallelType::Device(dim), .. })
            if program.tensors[tensor].memory == Memory::Symmetric =>
        {
            Ok(program.tensors[tensor].mesh.extent(*dim).max(1))
        }
        (extent, _) => Ok(extent),
    }
}

/// Returns the extent of an axis; for an expanded broadcast axis, the expanded extent.
pub(crate) fn extent(program: &Program, scalars: &Scalars<'_>, axis: AxisId) -> Result<usize, LayoutError> {
    let it = &program.axes[axis];
    let value = scalars.int(it.expanded.unwrap_or(it.extent))?;
    usize::try_from(value).map_err(|_| {
        LayoutError::Extent(format!("`{}` has the negative extent {value}", axis_text(program, axis)))
    })
}

struct PieceCollector<'p> {
    program: &'p Program,
    tensor: TensorId,
    rank: usize,
    stream: Option<usize>,
}

impl PieceCollector<'_> {
    fn pieces(
        &self,
        scalars: &Scalars<'_>,
        axis: AxisId,
        extent: usize,
        acc: &mut Vec<AxisPiece>,
    ) -> Result<(), LayoutError> {
        let text = || axis_text(self.program, axis);
        for transform in &self.program.tensors[self.tensor].domains.transforms {
            match transform {
                Transform::Split { input, factor, outer_split, outer, inner } if *input == axis => {
                    let factor = scalars.int(*factor)?;
                    let by = usize::try_from(factor).ok().filter(|by| *by > 0 && extent.is_multiple_of(*by));
                    let Some(by) = by else {
                        let message = format!(
                            "`{}` of extent {extent} cannot be split into {factor} equal parts",
                            text()
                        );
                        // The number of chunks is the extent of a stream axis.
                        let made = if *outer_split { *outer } else { *inner };
                        return Err(match self.program.axes[made].parallel {
                            ParallelType::Stream => LayoutError::Indivisible { message, extent },
                            ParallelType::Device(_) | ParallelType::Serial | ParallelType::Kernel(_) => {
                                LayoutError::Extent(message)
                            }
                        });
                    };
                    let (slow, fast) = if *outer_split { (by, extent / by) } else { (extent / by, by) };
                    self.pieces(scalars, *outer, slow, acc)?;
                    return self.pieces(scalars, *inner, fast, acc);
                }
                Transform::Swizzle1D { input, output } if *input == axis => {
                    return self.pieces(scalars, *output, extent, acc);
                }
                Transform::Merge { outer, inner, .. } if [*outer, *inner].contains(&axis) => {
                    return Err(LayoutError::Extent(format!(
                        "`{}` is merged with another axis, which is not supported",
                        text()
                    )));
                }
                Transform::Split { .. } | Transform::Swizzle1D { .. } | Transform::Merge { .. } => (),
            }
        }
        let coordinate = match self.program.axes[axis].parallel {
            ParallelType::Device(dim) => Some(self.device(dim, extent, &text)?),
            ParallelType::Stream => self.stream,
            ParallelType::Serial | ParallelType::Kernel(_) => None,
        };
        acc.push(AxisPiece { extent, coordinate });
        Ok(())
    }

    fn device(&self, dim: DeviceDim, extent: usize, text: &dyn Fn() -> String) -> Result<usize, LayoutError> {
        let mesh = &self.program.tensors[self.tensor].mesh;
        let wanted = mesh.extent(dim);
        match mesh.coordinate(self.rank, dim) {
            Some(at) if extent == wanted => Ok(at),
            Some(_) => Err(LayoutError::Extent(format!(
                "`{}` has extent {extent}, but the mesh has {wanted} devices in this dimension",
                text()
            ))),
            None => {
                Err(LayoutError::Extent(format!("rank {} is not in the mesh of `{}`", self.rank, text())))
            }
        }
    }
}

/// Returns the stream axis of a tensor: its dimension, its index among the pieces of the dimension, and
/// whether it is swizzled.
pub(crate) fn stream_piece(program: &Program, tensor: TensorId) -> Option<(usize, usize, bool)> {
    let it = &program.tensors[tensor];
    program.dimensions(tensor).enumerate().find_map(|(dim, axis)| {
        let mut leaves = Vec::new();
        leaf_axes(program, tensor, axis, &mut leaves);
        let at = leaves.iter().position(|leaf| program.axes[*leaf].parallel == ParallelType::Stream)?;
        let swizzled = it.domains.transforms.iter().any(
            |transform| matches!(transform, Transform::Swizzle1D { output, .. } if *output == leaves[at]),
        );
        Some((dim, at, swizzled))
    })
}

/// Appends the loop axes that a logical axis is split into, slowest first.
pub fn leaf_axes(program: &Program, tensor: TensorId, axis: AxisId, acc: &mut Vec<AxisId>) {
    for transform in &program.tensors[tensor].domains.transforms {
        match transform {
            Transform::Split { input, outer, inner, .. } if *input == axis => {
                leaf_axes(program, tensor, *outer, acc);
                return leaf_axes(program, tensor, *inner, acc);
            }
            Transform::Swizzle1D { input, output } if *input == axis => {
                return leaf_axes(program, tensor, *output, acc);
            }
            Transform::Split { .. } | Transform::Swizzle1D { .. } | Transform::Merge { .. } => (),
        }
    }
    acc.push(axis);
}

impl View {
    /// Selects one index of a dimension and removes the dimension.
    pub(crate) fn select(&self, dim: usize, index: usize) -> View {
        let mut view = self.clone();
        view.offset += index * view.strides.remove(dim);
        view.shape.remove(dim);
        view
    }

    /// Restricts a dimension to a range.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> View {
        let mut view = self.clone();
        view.offset += start * view.strides[dim];
        view.shape[dim] = len;
        view
    }

    /// Permutes the dimensions: dimension `i` of the result is dimension `order[i]` of this view.
    pub(crate) fn permute(&self, order: &[usize]) -> View {
        View {
            buffer: self.buffer,
            offset: self.offset,
            shape: order.iter().map(|at| self.shape[*at]).collect(),
            strides: order.iter().map(|at| self.strides[*at]).collect(),
        }
    }

    /// Inserts a dimension of extent 1.
    pub(crate) fn unsqueeze(&self, dim: usize) -> View {
        let mut view = self.clone();
        view.shape.insert(dim, 1);
        view.strides.insert(dim, 0);
        view
    }

    /// Broadcasts dimensions of extent 1 to `shape`; `None` if another extent differs.
    pub(crate) fn expand(&self, shape: &[usize]) -> Option<View> {
        if self.shape.len() != shape.len() {
            return None;
        }
        let mut view = self.clone();
        for (at, &want) in shape.iter().enumerate() {
            match view.shape[at] {
                have if have == want => (),
                1 => view.strides[at] = 0,
                _ => return None,
            }
        }
        view.shape = shape.to_vec();
        Some(view)
    }

    /// Like `expand`, for a view that may lack the first dimensions of `shape`.
    pub(crate) fn broadcast(&self, shape: &[usize]) -> Option<View> {
        let mut view = self.clone();
        while view.shape.len() < shape.len() {
            view = view.unsqueeze(0);
        }
        view.expand(shape)
    }

    /// Returns this view and another of the same number of elements in a common shape: the shape of either
    /// view, or one dimension. `None` if each of these needs a copy.
    pub(crate) fn in_common_shape(&self, other: &View) -> Option<(View, View)> {
        let flat = || Some((self.reshape(&[self.len()])?, other.reshape(&[other.len()])?));
        let own = || Some((self.clone(), other.reshape(&self.shape)?));
        let theirs = || Some((self.reshape(&other.shape)?, other.clone()));
        own().or_else(theirs).or_else(flat)
    }

    /// Returns the same elements, in row-major order, in another shape; `None` if that needs a copy.
    ///
    /// The algorithm divides the dimensions of both shapes into groups of equal size. A group can be reshaped
    /// if the stride of each of its dimensions is the next dimension's stride times its extent.
    pub fn reshape(&self, shape: &[usize]) -> Option<View> {
        if shape.iter().product::<usize>() != self.len() {
            return None;
        }
        if self.is_empty() {
            return Some(View { offset: self.offset, ..View::contiguous(self.buffer, shape.to_vec()) });
        }
        let mut strides = vec![0; shape.len()];
        // Dimensions are processed from the last to the first. Dimensions of extent 1 belong to no group.
        let (mut have, mut want) = (self.shape.len(), shape.len());
        loop {
            while have > 0 && self.shape[have - 1] == 1 {
                have -= 1;
            }
            while want > 0 && shape[want - 1] == 1 {
                want -= 1;
            }
            if have == 0 || want == 0 {
                break;
            }
            let step = self.strides[have - 1];
            let (mut mine, mut theirs) = (self.shape[have - 1], shape[want - 1]);
            strides[want - 1] = step;
            (have, want) = (have - 1, want - 1);
            while mine != theirs {
                if mine < theirs {
                    have = have.checked_sub(1)?;
                    if self.shape[have] != 1 && self.strides[have] != step * mine {
                        return None;
                    }
                    mine *= self.shape[have];
                } else {
                    want = want.checked_sub(1)?;
                    strides[want] = step * theirs;
                    theirs *= shape[want];
                }
            }
        }
        Some(View { buffer: self.buffer, offset: self.offset, shape: shape.to_vec(), strides })
    }
}
