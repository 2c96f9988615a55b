//! Shapes of one rank: how a tensor's logical axes split into what is here and what is elsewhere.

use grammar::{
    axis_text,
    ir::{AxisId, DeviceDim, ParallelType, Program, TensorId, Transform},
};

use super::{
    AxisPiece, ShardLayout, View, limits,
    scalar::{ScalarError, Scalars},
};

/// Why a tensor has no layout.
pub(crate) enum LayoutError {
    /// An extent without a value.
    Scalar(ScalarError),
    /// An extent that does not fit, with what to say.
    Extent(String),
    /// More elements than a tensor may have.
    Size,
}

impl From<ScalarError> for LayoutError {
    fn from(fault: ScalarError) -> Self {
        Self::Scalar(fault)
    }
}

/// The layout of a tensor on `rank`, a member of its mesh. `stream` is the coordinate of a tensor that holds one
/// stream's slice.
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
        let extent = extent(program, scalars, axis)?;
        // Extents of 0 make no tensor small: strides multiply the others.
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

/// The extent of an axis: of an expanded broadcast, the expanded one.
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
                        return Err(LayoutError::Extent(format!(
                            "`{}` of extent {extent} does not divide into {factor} equal parts",
                            text()
                        )));
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
                        "`{}` is merged with another axis: not planned",
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
                "`{}` has extent {extent} on a mesh of {wanted} devices",
                text()
            ))),
            None => {
                Err(LayoutError::Extent(format!("rank {} is not in the mesh of `{}`", self.rank, text())))
            }
        }
    }
}

/// The stream piece of a tensor: the dimension, the place among its pieces, whether it is swizzled.
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

/// The loop axes that a logical axis became, slowest first.
pub(crate) fn leaf_axes(program: &Program, tensor: TensorId, axis: AxisId, acc: &mut Vec<AxisId>) {
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
    /// One index of a dimension, which vanishes.
    pub(crate) fn select(&self, dim: usize, index: usize) -> View {
        let mut view = self.clone();
        view.offset += index * view.strides.remove(dim);
        view.shape.remove(dim);
        view
    }

    /// A range of a dimension.
    pub(crate) fn narrow(&self, dim: usize, start: usize, len: usize) -> View {
        let mut view = self.clone();
        view.offset += start * view.strides[dim];
        view.shape[dim] = len;
        view
    }

    /// The dimensions in another order: dimension `i` of the result is `order[i]` of this one.
    pub(crate) fn permute(&self, order: &[usize]) -> View {
        View {
            buffer: self.buffer,
            offset: self.offset,
            shape: order.iter().map(|at| self.shape[*at]).collect(),
            strides: order.iter().map(|at| self.strides[*at]).collect(),
        }
    }

    /// A new dimension of extent 1.
    pub(crate) fn unsqueeze(&self, dim: usize) -> View {
        let mut view = self.clone();
        view.shape.insert(dim, 1);
        view.strides.insert(dim, 0);
        view
    }

    /// Dimensions of extent 1 repeated to `shape`; `None` where another extent differs.
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

    /// This view and another of as many elements in a shape that both have; `None` where their dimensions do not fit into each
    /// other.
    pub(crate) fn in_common_shape(&self, other: &View) -> Option<(View, View)> {
        let flat = || Some((self.reshape(&[self.len()])?, other.reshape(&[other.len()])?));
        let own = || Some((self.clone(), other.reshape(&self.shape)?));
        let theirs = || Some((self.reshape(&other.shape)?, other.clone()));
        own().or_else(theirs).or_else(flat)
    }

    /// The same elements in row-major order under another shape; `None` where that needs a copy.
    ///
    /// Dimensions fall into groups of the same size on both sides. A group can have another shape if its elements stand
    /// at one step from each other: if each dimension's stride is the next one's times its extent.
    pub(crate) fn reshape(&self, shape: &[usize]) -> Option<View> {
        if shape.iter().product::<usize>() != self.len() {
            return None;
        }
        if self.is_empty() {
            return Some(View { offset: self.offset, ..View::contiguous(self.buffer, shape.to_vec()) });
        }
        let mut strides = vec![0; shape.len()];
        // From the last dimension on; extents of 1 belong nowhere.
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
