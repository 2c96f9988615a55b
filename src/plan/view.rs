//! Buffers, strided views of buffers, and the layout of a rank's part of a tensor.

use std::{cmp::Reverse, ops::Range};

use grammar::DType;

use super::BufferNo;

/// Storage for elements of one type. Indices start at 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// The name of the tensor, for reports. Several buffers may have one name.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// The number of elements.
    pub len: usize,
    /// What it stores.
    pub role: BufferRole,
}

/// What a buffer stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferRole {
    /// Elements of a tensor, or intermediate values of an instruction.
    Elements,
    /// Slots, into which the peers of a team write (`transport::slots`). No statement of the program names them.
    Slots,
}

impl Buffer {
    /// Creates storage for elements of a tensor, or for intermediate values.
    pub fn new(name: impl Into<String>, dtype: DType, len: usize) -> Self {
        Self { name: name.into(), dtype, len, role: BufferRole::Elements }
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.len.saturating_mul(self.dtype.size())
    }
}

/// A strided view of a buffer. It is contiguous and row-major if `strides` are the products of the following
/// extents.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The buffer.
    pub buffer: BufferNo,
    /// The offset of the first element, in elements.
    pub offset: usize,
    /// The extents, slowest dimension first.
    pub shape: Vec<usize>,
    /// The distance of neighbours along each dimension, in elements; 0 for a broadcast dimension.
    pub strides: Vec<usize>,
}

/// A view as a hash key: buffer, offset, shape, strides.
pub type ViewKey = (BufferNo, usize, Vec<usize>, Vec<usize>);

impl View {
    /// Returns a view of a whole row-major buffer.
    pub fn contiguous(buffer: BufferNo, shape: Vec<usize>) -> Self {
        let mut strides = vec![1; shape.len()];
        for at in (1..shape.len()).rev() {
            strides[at - 1] = strides[at] * shape[at];
        }
        Self { buffer, offset: 0, shape, strides }
    }

    /// Returns the number of elements. With broadcast dimensions it can exceed the size of the buffer by far.
    pub fn len(&self) -> usize {
        self.shape.iter().fold(1, |len: usize, extent| len.saturating_mul(*extent))
    }

    /// Returns the number of elements without those that a broadcast dimension repeats: what a kernel reads from memory.
    pub fn distinct_len(&self) -> usize {
        let extents = self.shape.iter().zip(&self.strides);
        extents.fold(1, |len: usize, (extent, stride)| {
            len.saturating_mul(if *stride == 0 { (*extent).min(1) } else { *extent })
        })
    }

    /// Returns whether the view has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the first and the last element of the buffer that the view contains; `None` if the view is
    /// empty.
    pub fn bounds(&self) -> Option<(usize, usize)> {
        let extents = self.shape.iter().zip(&self.strides);
        let reach: usize = extents.map(|(n, stride)| n.saturating_sub(1) * stride).sum();
        (!self.is_empty()).then_some((self.offset, self.offset + reach))
    }

    /// Returns the view as a hash key.
    pub fn key(&self) -> ViewKey {
        (self.buffer, self.offset, self.shape.clone(), self.strides.clone())
    }

    /// Returns true if the elements are contiguous in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut step = 1;
        let follows = |(extent, stride): (&usize, &usize)| {
            let is_next = *extent == 1 || *stride == step;
            step *= extent;
            is_next
        };
        self.len() <= 1 || self.shape.iter().zip(&self.strides).rev().all(follows)
    }

    /// Returns a view of the same whole buffer whose dimensions have the order in memory that those of `like` have; `None` if they already have
    /// it, or if `like` has none: it repeats elements, or its last dimension is not the innermost one.
    pub fn in_order_of(&self, like: &Self) -> Option<Self> {
        let rank = self.shape.len();
        let mut order: Vec<usize> = (0..rank).collect();
        order.sort_by_key(|dim| Reverse(like.strides.get(*dim).copied()));
        let is_known =
            like.shape.len() == rank && !like.repeats_elements() && order.last() == Some(&(rank - 1));
        if !is_known || order.is_sorted() {
            return None;
        }
        let stored = order.iter().map(|dim| self.shape[*dim]).collect();
        let mut back = vec![0; rank];
        order.iter().enumerate().for_each(|(at, dim)| back[*dim] = at);
        Some(Self { offset: self.offset, ..Self::contiguous(self.buffer, stored).permute(&back) })
    }

    /// Returns whether an element of the buffer is several elements of the view: whether a dimension is expanded.
    pub fn repeats_elements(&self) -> bool {
        !self.is_empty() && self.shape.iter().zip(&self.strides).any(|(n, stride)| *n > 1 && *stride == 0)
    }

    /// Returns whether the two views may have an element in common: whether their bounds overlap.
    pub fn may_alias(&self, other: &Self) -> bool {
        let bounds = self.bounds().zip(other.bounds());
        self.buffer == other.buffer && bounds.is_some_and(|(a, b)| a.0 <= b.1 && b.0 <= a.1)
    }
}

/// A view in the memory of this rank or of a peer.
#[derive(Clone, Debug, PartialEq)]
pub struct ViewOnRank {
    /// The rank that owns the buffer.
    pub rank: usize,
    /// The view. Buffer numbers are those of that rank.
    pub view: View,
}

/// One rank's part of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Shard {
    /// The elements; `None` if the rank holds no part.
    pub view: Option<View>,
    /// The position of the part in the whole tensor.
    pub layout: ShardLayout,
}

/// The position of a rank's part in the whole tensor. Each index of a dimension of the whole tensor is a
/// mixed-radix number whose digits are `pieces`, slowest first. A piece with a coordinate is fixed on this
/// rank; the other pieces form the dimension of the part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShardLayout {
    /// The shape of the whole tensor.
    pub shape: Vec<usize>,
    /// The pieces of each dimension. The product of their extents is the extent of the dimension.
    pub pieces: Vec<Vec<AxisPiece>>,
}

/// A digit of a dimension's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AxisPiece {
    /// The number of values.
    pub extent: usize,
    /// The value on this rank; `None` if the rank holds all values.
    pub coordinate: Option<usize>,
}

impl ShardLayout {
    /// Returns the layout of a tensor of which this rank holds every element.
    pub fn whole(shape: &[usize]) -> Self {
        let pieces = shape.iter().map(|&extent| vec![AxisPiece { extent, coordinate: None }]).collect();
        Self { shape: shape.to_vec(), pieces }
    }

    /// Returns the shape of the part.
    pub fn local_shape(&self) -> Vec<usize> {
        let local = |pieces: &Vec<AxisPiece>| {
            pieces.iter().filter(|it| it.coordinate.is_none()).map(|it| it.extent).product()
        };
        self.pieces.iter().map(local).collect()
    }

    /// Returns the global indices of a dimension that the part holds, if they are contiguous.
    pub fn range(&self, dim: usize) -> Option<Range<usize>> {
        let pieces = self.pieces.get(dim)?;
        let is_fixed = |it: &AxisPiece| it.coordinate.is_some() && it.extent > 1;
        let inner = pieces.iter().rposition(is_fixed).map_or(0, |at| at + 1);
        let (outer, inner) = pieces.split_at(inner);
        let count: usize = inner.iter().map(|it| it.extent).product();
        let digit = |number: usize, piece: &AxisPiece| match piece.coordinate {
            Some(at) => Some(number * piece.extent + at),
            None => (piece.extent == 1).then_some(number),
        };
        let number = outer.iter().try_fold(0, digit)?;
        Some(number * count..(number + 1) * count)
    }

    /// Returns the view of the part in a row-major buffer of the whole tensor.
    pub fn view_in_whole(&self, whole: BufferNo) -> View {
        let (mut offset, mut step) = (0, 1);
        let (mut shape, mut strides) = (Vec::new(), Vec::new());
        for piece in self.pieces.iter().flatten().rev() {
            match piece.coordinate {
                Some(at) => offset += at * step,
                None => {
                    shape.push(piece.extent);
                    strides.push(step);
                }
            }
            step *= piece.extent;
        }
        shape.reverse();
        strides.reverse();
        View { buffer: whole, offset, shape, strides }
    }

    /// Returns the global row-major index of each element of the part, in row-major order of the part.
    pub fn global_indices(&self) -> Vec<usize> {
        let (starts, len) = self.global_runs();
        starts.into_iter().flat_map(|start| start..start + len).collect()
    }

    /// Returns the runs of elements of the part that are contiguous in the whole tensor: the global start of
    /// each run, and the common length.
    pub fn global_runs(&self) -> (Vec<usize>, usize) {
        // An empty part needs no enumeration of its other dimensions, which may be long.
        if self.local_shape().contains(&0) {
            return (Vec::new(), 0);
        }
        let mut high: Vec<&AxisPiece> = self.pieces.iter().flatten().collect();
        let mut len = 1;
        while let Some(piece) = high.pop_if(|it| it.coordinate.is_none()) {
            len *= piece.extent;
        }
        let mut starts = vec![0];
        for piece in high {
            let digits = piece.coordinate.map_or(0..piece.extent, |at| at..at + 1);
            let below =
                |start: &usize| digits.clone().map(|digit| start * piece.extent + digit).collect::<Vec<_>>();
            starts = starts.iter().flat_map(below).collect();
        }
        starts.iter_mut().for_each(|it| *it *= len);
        (starts, len)
    }
}

/// An input or output of the program on this rank.
#[derive(Clone, Debug, PartialEq)]
pub struct IoBinding {
    /// The name of the tensor.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// This rank's part.
    pub shard: Shard,
    /// The axes in the order in which the text prints them, without reduction axes; `None` if a printed axis
    /// is swizzled, since its indices mean different elements on different ranks.
    pub printed_axes: Option<Vec<PrintedAxis>>,
    /// By dimension of the whole tensor: whether it is a broadcast dimension.
    pub broadcast: Vec<bool>,
    /// Whether the part of each rank is compared separately, since ranks that hold the same elements may hold
    /// different values.
    pub is_compared_per_rank: bool,
}

/// One axis of a tensor as printed in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrintedAxis {
    /// The dimension of the whole tensor that contains the axis.
    pub dim: usize,
    /// The index of the piece in that dimension.
    pub piece: usize,
}
