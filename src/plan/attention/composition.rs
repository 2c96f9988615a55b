//! The instructions that define what an attention computes. The simulator runs them, and so do GPUs for an attention
//! that is not one kernel.
//!
//! ```text
//! scores  = q · kᵀ                      largest = maxima of the rows of scores
//! scores  = scores · scale + bias       scores  = exp(scores - largest)
//! scores  = where(mask, scores, -∞)     sums    = sums of the rows of scores
//!                                       weights = scores / sums, times the dropout
//! out     = weights · v                 logsumexp = largest + log(sums)
//! ```
//!
//! The weights of a row without a key that counts, whose scores are all -∞, are 0, and so is its `logsumexp`, as in PyTorch: for this row,
//! `largest` is 0 and `sums` is 1, which is the least sum of any other row.
//!
//! The scores are of the compute type, binary32 unless the operands are binary64, as in fused kernels (Dao et al.,
//! "FlashAttention", 2022). The weights are rounded to the type of the operands before the second product. The rows are
//! computed in parts, so that the scores of a long sequence fit in memory.

use grammar::{dtype::DType, ops::Op};

use crate::{
    Arg, Attention, Buffer, BufferNo, InstKind, Number, ReduceOp, View,
    inst_builder::{InstBuilder, view},
};

/// The instructions of an attention, in order, and their temporary buffers.
pub struct AttentionComposition {
    /// The instructions.
    pub code: Vec<InstKind>,
    /// Numbered from the `first_buffer` of `Attention::composition`.
    pub buffers: Vec<Buffer>,
    /// The softmax of the scores of the last part.
    pub weights: View,
}

impl Attention {
    /// Splits the rows of the query into parts with at most `max_scores` scores each, or with one row.
    pub fn parts(&self, max_scores: usize) -> Vec<Self> {
        let mut parts = vec![self.clone()];
        let shape = self.score_shape();
        for (dim, extent) in shape[..shape.len() - 1].iter().enumerate() {
            let inner = shape[dim + 1..].iter().fold(1, |all: usize, it| all.saturating_mul(*it));
            let step = (max_scores / inner.max(1)).clamp(1, (*extent).max(1));
            let ranges = || (0..*extent).step_by(step).map(|start| (start, step.min(extent - start)));
            parts = parts.iter().flat_map(|it| ranges().map(|range| it.narrow(dim, range))).collect();
            if inner <= max_scores {
                break;
            }
        }
        parts
    }

    /// Returns a range, its start and length, of the rows or of a dimension of the batch.
    fn narrow(&self, dim: usize, (start, count): (usize, usize)) -> Self {
        let part = |it: &View| it.narrow(dim, start, count);
        let is_row = dim == self.query.shape.len() - 2;
        let of_batch = |it: &View| if is_row { it.clone() } else { part(it) };
        Self {
            query: part(&self.query),
            key: of_batch(&self.key),
            value: of_batch(&self.value),
            bias: self.bias.as_ref().map(part),
            mask: self.mask.as_ref().map(part),
            keep: self.keep.as_ref().map(part),
            first_row: if is_row { self.first_row + start } else { self.first_row },
            out: part(&self.out),
            logsumexp: self.logsumexp.as_ref().map(part),
            ..*self
        }
    }

    /// Returns the instructions. `dtype` is the type of the operands. The numbers of temporary buffers begin with
    /// `first_buffer`; the buffer of the scores has at most `max_scores` elements, or those of one row.
    pub fn composition(
        &self,
        dtype: DType,
        first_buffer: BufferNo,
        max_scores: usize,
    ) -> AttentionComposition {
        let mut builder = Builder { base: InstBuilder::new(0, first_buffer), causal_mask: None };
        let parts = self.parts(max_scores);
        let shape = parts.first().map_or_else(|| vec![0, 0], Self::score_shape);
        let (all, all_rows) = (shape.iter().product(), shape[..shape.len() - 1].iter().product());
        let computed = if dtype == DType::Double { DType::Double } else { DType::Float };
        let temporaries = Temporaries {
            scores: builder.base.buffer("scores", computed, all),
            weights: builder.base.buffer("weights", dtype, all),
            largest: builder.base.buffer("row maxima", computed, all_rows),
            sums: builder.base.buffer("row sums", computed, all_rows),
            has_keys: builder.base.buffer("rows with keys", DType::Bool, all_rows),
        };
        if let (true, [.., rows, keys]) = (self.is_causal, &shape[..]) {
            let last = parts.last().map_or(0, |it| it.first_row + it.score_shape()[shape.len() - 2]);
            builder.causal_mask = Some(builder.causal_mask_buffers(last, *rows, *keys));
        }
        for part in &parts {
            part.append_to(&mut builder, &temporaries);
        }
        let shape = parts.last().map_or(shape, Self::score_shape);
        let weights = View::contiguous(temporaries.weights, shape);
        AttentionComposition { code: builder.base.code, buffers: builder.base.buffers, weights }
    }

    /// Returns the shape `[b…, l, s]` of the scores.
    fn score_shape(&self) -> Vec<usize> {
        let rows = &self.query.shape[..self.query.shape.len() - 1];
        [rows, &[self.value.shape[rows.len() - 1]]].concat()
    }

    /// Appends the instructions of one part of the rows.
    fn append_to(&self, code: &mut Builder, buffers: &Temporaries) {
        let dims = self.query.shape.len();
        let row_shape = &self.query.shape[..dims - 1];
        let score_shape = self.score_shape();
        let scores = View::contiguous(buffers.scores, score_shape.clone());
        let weights = View::contiguous(buffers.weights, score_shape.clone());
        let largest = View::contiguous(buffers.largest, row_shape.to_vec());
        let sums = View::contiguous(buffers.sums, row_shape.to_vec());
        let has_keys = View::contiguous(buffers.has_keys, row_shape.to_vec());
        // A row's value, repeated for each of its scores.
        let repeated = |it: &View| View {
            shape: score_shape.clone(),
            strides: [&it.strides[..], &[0]].concat(),
            ..it.clone()
        };
        let mut transposed: Vec<usize> = (0..dims).collect();
        transposed.swap(dims - 2, dims - 1);
        code.base.gemm(&self.query, &self.key.permute(&transposed), &scores);
        code.base.map(Op::Mul, [view(&scores), Arg::Number(Number::Float(self.scale))], &scores);
        if let Some(bias) = &self.bias {
            code.base.map(Op::Add, [view(&scores), view(bias)], &scores);
        }
        let lowest = Number::Float(f64::NEG_INFINITY);
        let causal_mask = code.causal_mask(self).and_then(|it| it.broadcast(&score_shape));
        for mask in self.mask.iter().chain(&causal_mask) {
            code.base.map(Op::Where, [view(mask), view(&scores), Arg::Number(lowest)], &scores);
        }
        code.base.reduce_rows(ReduceOp::Max, lowest, &scores, &largest);
        let zero = Arg::Number(Number::Float(0.0));
        code.base.map(Op::Ne, [view(&largest), Arg::Number(lowest)], &has_keys);
        code.base.map(Op::Where, [view(&has_keys), view(&largest), zero], &largest);
        code.base.map(Op::Sub, [view(&scores), Arg::View(repeated(&largest))], &scores);
        code.base.map(Op::Exp, [view(&scores)], &scores);
        code.base.reduce_rows(ReduceOp::Sum, Number::Int(0), &scores, &sums);
        code.base.map(Op::Max, [view(&sums), Arg::Number(Number::Float(1.0))], &sums);
        code.base.map(Op::Div, [view(&scores), Arg::View(repeated(&sums))], &weights);
        if let Some(keep) = &self.keep {
            code.base.map(Op::Mul, [view(&weights), view(keep)], &weights);
        }
        code.base.gemm(&weights, &self.value, &self.out);
        if let Some(it) = &self.logsumexp {
            code.base.map(Op::Log, [view(&sums)], &sums);
            code.base.map(Op::Add, [view(&largest), view(&sums)], it);
        }
    }
}

/// The temporary buffers of an attention.
struct Temporaries {
    scores: BufferNo,
    weights: BufferNo,
    largest: BufferNo,
    sums: BufferNo,
    has_keys: BufferNo,
}

/// The buffers of the causal mask.
struct CausalMask {
    /// The numbers from 0 to the largest index of a row or a key.
    indices: View,
    /// The booleans.
    mask: BufferNo,
    /// The first row of the current mask, and its shape.
    current: Option<(usize, Vec<usize>)>,
}

/// The instructions and temporary buffers so far, and the causal mask.
struct Builder {
    base: InstBuilder,
    causal_mask: Option<CausalMask>,
}

impl Builder {
    /// Adds the buffers of causal masks of up to `rows` × `keys` booleans, for rows before `end`.
    fn causal_mask_buffers(&mut self, end: usize, rows: usize, keys: usize) -> CausalMask {
        let longest = end.max(keys);
        let indices = self.base.temporary("indices", DType::Int32, vec![longest]);
        let mask = self.base.buffer("causal mask", DType::Bool, rows * keys);
        self.base.iota(&indices, 0, 1);
        CausalMask { indices, mask, current: None }
    }

    /// Returns the causal mask of a part: whether the index of the key is at most that of the row.
    fn causal_mask(&mut self, part: &Attention) -> Option<View> {
        let mut causal_mask = self.causal_mask.take()?;
        let shape = part.score_shape();
        let shape = shape[shape.len() - 2..].to_vec();
        let mask = View::contiguous(causal_mask.mask, shape.clone());
        let wanted = Some((part.first_row, shape.clone()));
        if causal_mask.current != wanted {
            let repeated = |offset, strides: [usize; 2]| {
                let shape = shape.clone();
                Arg::View(View { offset, shape, strides: strides.to_vec(), ..causal_mask.indices.clone() })
            };
            self.base.map(Op::Ge, [repeated(part.first_row, [1, 0]), repeated(0, [0, 1])], &mask);
            causal_mask.current = wanted;
        }
        self.causal_mask = Some(causal_mask);
        Some(mask)
    }
}
