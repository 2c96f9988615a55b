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

use grammar::{DType, Op};

use super::causal_mask::CausalMask;
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
        in_parts(self, &self.score_shape(), max_scores, Self::narrow)
    }

    /// Returns a range, its start and length, of the rows or of a dimension of the batch.
    pub(super) fn narrow(&self, dim: usize, (start, count): (usize, usize)) -> Self {
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
        let mut code = InstBuilder::new(0, first_buffer);
        let parts = self.parts(max_scores);
        let shape = parts.first().map_or_else(|| vec![0, 0], Self::score_shape);
        let (all, all_rows) = (shape.iter().product(), shape[..shape.len() - 1].iter().product());
        let computed = if dtype == DType::Double { DType::Double } else { DType::Float };
        let temporaries = Temporaries {
            scores: code.buffer("scores", computed, all),
            weights: code.buffer("weights", dtype, all),
            largest: code.buffer("row maxima", computed, all_rows),
            sums: code.buffer("row sums", computed, all_rows),
            has_keys: code.buffer("rows with keys", DType::Bool, all_rows),
        };
        let mut causal_mask = CausalMask::of_parts(&mut code, &parts);
        for part in &parts {
            part.append_to(&mut code, causal_mask.as_mut(), &temporaries);
        }
        let shape = parts.last().map_or(shape, Self::score_shape);
        let weights = View::contiguous(temporaries.weights, shape);
        AttentionComposition { code: code.code, buffers: code.buffers, weights }
    }

    /// Returns the instructions that set to 0 the logarithms of rows without a key that counts, for kernels that leave -∞ there, and their
    /// temporary buffers, numbered from `first_buffer` on.
    pub fn finish_logsumexp(&self, first_buffer: BufferNo) -> (Vec<InstKind>, Vec<Buffer>) {
        let mut code = InstBuilder::new(0, first_buffer);
        if let Some(it) = &self.logsumexp {
            let rows = it.shape.iter().product();
            let has_keys = code.buffer("rows with keys", DType::Bool, rows);
            let has_keys = View::contiguous(has_keys, it.shape.clone());
            let lowest = Arg::Number(Number::Float(f64::NEG_INFINITY));
            code.map(Op::Ne, [view(it), lowest], &has_keys);
            code.map(Op::Where, [view(&has_keys), view(it), Arg::Number(Number::Float(0.0))], it);
        }
        (code.code, code.buffers)
    }

    /// Returns the shape `[b…, l, s]` of the scores.
    pub(super) fn score_shape(&self) -> Vec<usize> {
        let rows = &self.query.shape[..self.query.shape.len() - 1];
        [rows, &[self.value.shape[rows.len() - 1]]].concat()
    }

    /// Returns the values of the rows, each repeated for the scores of its row.
    pub(super) fn for_each_score(&self, rows: &View) -> View {
        View { shape: self.score_shape(), strides: [&rows.strides[..], &[0]].concat(), ..rows.clone() }
    }

    /// Appends the instructions of one part of the rows.
    fn append_to(&self, code: &mut InstBuilder, causal_mask: Option<&mut CausalMask>, buffers: &Temporaries) {
        let dims = self.query.shape.len();
        let row_shape = &self.query.shape[..dims - 1];
        let score_shape = self.score_shape();
        let scores = View::contiguous(buffers.scores, score_shape.clone());
        let weights = View::contiguous(buffers.weights, score_shape.clone());
        let largest = View::contiguous(buffers.largest, row_shape.to_vec());
        let sums = View::contiguous(buffers.sums, row_shape.to_vec());
        let has_keys = View::contiguous(buffers.has_keys, row_shape.to_vec());
        code.gemm(&self.query, &transposed(&self.key), &scores);
        code.map(Op::Mul, [view(&scores), Arg::Number(Number::Float(self.scale))], &scores);
        if let Some(bias) = &self.bias {
            code.map(Op::Add, [view(&scores), view(bias)], &scores);
        }
        let lowest = Number::Float(f64::NEG_INFINITY);
        let causal_mask = causal_mask.and_then(|it| it.of(code, self).broadcast(&score_shape));
        for mask in self.mask.iter().chain(&causal_mask) {
            code.map(Op::Where, [view(mask), view(&scores), Arg::Number(lowest)], &scores);
        }
        code.reduce_rows(ReduceOp::Max, lowest, &scores, &largest);
        let zero = Arg::Number(Number::Float(0.0));
        code.map(Op::Ne, [view(&largest), Arg::Number(lowest)], &has_keys);
        code.map(Op::Where, [view(&has_keys), view(&largest), zero], &largest);
        code.map(Op::Sub, [view(&scores), view(&self.for_each_score(&largest))], &scores);
        code.map(Op::Exp, [view(&scores)], &scores);
        code.reduce_rows(ReduceOp::Sum, Number::Int(0), &scores, &sums);
        code.map(Op::Max, [view(&sums), Arg::Number(Number::Float(1.0))], &sums);
        code.map(Op::Div, [view(&scores), view(&self.for_each_score(&sums))], &weights);
        if let Some(keep) = &self.keep {
            code.map(Op::Mul, [view(&weights), view(keep)], &weights);
        }
        code.gemm(&weights, &self.value, &self.out);
        if let Some(it) = &self.logsumexp {
            code.map(Op::Log, [view(&sums)], &sums);
            code.map(Op::Add, [view(&largest), view(&sums)], it);
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

/// Returns the last two dimensions in the other order.
pub(super) fn transposed(it: &View) -> View {
    let mut order: Vec<usize> = (0..it.shape.len()).collect();
    let last = order.len() - 1;
    order.swap(last - 1, last);
    it.permute(&order)
}

/// Splits the leading dimensions of `shape` so that each part has at most `most` elements, or one of each leading dimension. `narrow` returns
/// a range, its start and length, of a dimension of a part.
pub(super) fn in_parts<P: Clone>(
    whole: &P,
    shape: &[usize],
    most: usize,
    narrow: impl Fn(&P, usize, (usize, usize)) -> P,
) -> Vec<P> {
    let mut parts = vec![whole.clone()];
    for (dim, extent) in shape[..shape.len() - 1].iter().enumerate() {
        let inner = shape[dim + 1..].iter().fold(1, |all: usize, it| all.saturating_mul(*it));
        let step = (most / inner.max(1)).clamp(1, (*extent).max(1));
        parts =
            parts.iter().flat_map(|it| ranges(*extent, step).map(|range| narrow(it, dim, range))).collect();
        if inner <= most {
            break;
        }
    }
    parts
}

/// Returns the ranges, starts and lengths, of at most `step` elements each.
pub(super) fn ranges(extent: usize, step: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..extent).step_by(step).map(move |start| (start, step.min(extent - start)))
}
