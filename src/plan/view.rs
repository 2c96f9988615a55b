//! Where elements are: buffers, strided views of them, and how a rank's part sits in the whole.

use std::ops::Range;

use grammar::dtype::DType;

use super::BufferNo;

/// Storage of one element type, zero-based.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// The tensor's name, for reports.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub len: usize,
}

impl Buffer {
    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.len.saturating_mul(self.dtype.size())
    }
}

/// A strided window into a buffer; row-major when `strides` are those of `shape`.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The storage.
    pub buffer: BufferNo,
    /// First element.
    pub offset: usize,
    /// Extents, slowest first.
    pub shape: Vec<usize>,
    /// Elements between neighbours along each dimension; 0 repeats.
    pub strides: Vec<usize>,
}

/// A view as a key: buffer, offset, shape, strides.
pub type ViewKey = (BufferNo, usize, Vec<usize>, Vec<usize>);

impl View {
    /// The whole of a row-major buffer.
    pub fn contiguous(buffer: BufferNo, shape: Vec<usize>) -> Self {
        let mut strides = vec![1; shape.len()];
        for at in (1..shape.len()).rev() {
            strides[at - 1] = strides[at] * shape[at];
        }
        Self { buffer, offset: 0, shape, strides }
    }

    /// Number of elements. Where operands repeat it can be far beyond what any buffer holds.
    pub fn len(&self) -> usize {
        self.shape.iter().fold(1, |len: usize, extent| len.saturating_mul(*extent))
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first and the last element of the buffer that it has; `None`: it has no elements.
    pub fn bounds(&self) -> Option<(usize, usize)> {
        let extents = self.shape.iter().zip(&self.strides);
        let reach: usize = extents.map(|(n, stride)| n.saturating_sub(1) * stride).sum();
        (!self.is_empty()).then_some((self.offset, self.offset + reach))
    }

    /// The view as a key.
    pub fn key(&self) -> ViewKey {
        (self.buffer, self.offset, self.shape.clone(), self.strides.clone())
    }

    /// Whether the two may have an element in common: their bounds overlap.
    pub fn may_alias(&self, other: &Self) -> bool {
        let bounds = self.bounds().zip(other.bounds());
        self.buffer == other.buffer && bounds.is_some_and(|(a, b)| a.0 <= b.1 && b.0 <= a.1)
    }
}

/// A view in this rank's memory or in a peer's.
#[derive(Clone, Debug, PartialEq)]
pub struct ViewOnRank {
    /// The rank whose buffer it is.
    pub rank: usize,
    /// The view, in that rank's numbering.
    pub view: View,
}

/// One rank's part of a whole tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Shard {
    /// Where the part is; `None` where the rank holds none.
    pub view: Option<View>,
    /// Which part it is.
    pub layout: ShardLayout,
}

/// How a part sits in the whole: each dimension of the whole is a mixed-radix number of `pieces`, slowest first; a piece
/// with a coordinate is fixed on this rank, the others make up the part's own dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardLayout {
    /// The whole tensor's shape.
    pub shape: Vec<usize>,
    /// Pieces of each dimension; their extents multiply to the dimension's.
    pub pieces: Vec<Vec<AxisPiece>>,
}

/// A digit of a dimension's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisPiece {
    /// How many values it has.
    pub extent: usize,
    /// The value on this rank; `None`: all of them are here.
    pub coordinate: Option<usize>,
}

impl ShardLayout {
    /// A tensor that is whole on this rank.
    pub fn whole(shape: &[usize]) -> Self {
        let pieces = shape.iter().map(|&extent| vec![AxisPiece { extent, coordinate: None }]).collect();
        Self { shape: shape.to_vec(), pieces }
    }

    /// The part's shape.
    pub fn local_shape(&self) -> Vec<usize> {
        let local = |pieces: &Vec<AxisPiece>| {
            pieces.iter().filter(|it| it.coordinate.is_none()).map(|it| it.extent).product()
        };
        self.pieces.iter().map(local).collect()
    }

    /// The indices of the whole dimension that the part has, where they follow each other.
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

    /// The index in the whole, row-major, of every element of the part in row-major order.
    pub fn global_indices(&self) -> Vec<usize> {
        let (starts, len) = self.global_runs();
        starts.into_iter().flat_map(|start| start..start + len).collect()
    }

    /// The part as runs of elements that follow each other in the whole: where each begins there, and how long all of them are.
    pub fn global_runs(&self) -> (Vec<usize>, usize) {
        // One dimension may be long where another has nothing.
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
    /// The tensor's name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// This rank's part.
    pub shard: Shard,
    /// The axes in the order in which the text prints them, reductions left out; `None` where an index of a printed axis means
    /// different elements on different ranks (a swizzle).
    pub printed_axes: Option<Vec<PrintedAxis>>,
    /// Whether each dimension of the whole is a broadcast.
    pub broadcast: Vec<bool>,
    /// Whether each rank's part is judged by itself: ranks that hold the same elements may hold different values.
    pub is_compared_per_rank: bool,
}

/// One axis of a tensor as the text prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrintedAxis {
    /// The dimension of the whole that it is a part of.
    pub dim: usize,
    /// Which piece of that dimension it is.
    pub piece: usize,
}
