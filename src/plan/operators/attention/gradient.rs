//! The instructions that define the gradients of an attention. The simulator runs them, and so do GPUs, except where a library of the process
//! computes an attention.
//!
//! ```text
//! weights = exp(scale · q · kᵀ + bias - logsumexp), where the mask is true, else 0
//! dots    = sums of the rows of do · out         ds = weights · (do · vᵀ - dots)
//! dq      = scale · ds · k                       dk = scale · dsᵀ · q
//! dv      = weightsᵀ · do
//! ```
//!
//! With a dropout, the weights in `dv`, and `do · vᵀ`, are multiplied with its numbers. If consecutive heads of the query share keys and
//! values, `dk` and `dv` are the sums over these heads: in their products, the rows of these heads are one after the other.
//!
//! The scores are of binary32, or of binary64 for such operands (Dao et al., "FlashAttention", 2022, appendix B.4); what is multiplied is
//! rounded to the type of the operands. The scores are computed in parts, so that those of a long sequence fit in memory. A part of the rows
//! of a causal attention has the keys that its last row sees.

use grammar::{DType, Op};

use super::{
    causal_mask::CausalMask,
    composition::{in_parts, ranges, transposed},
};
use crate::{
    Attention, AttentionGradient, Buffer, BufferNo, InstKind, Number, ReduceOp, View,
    inst_builder::{InstBuilder, float, view},
};

/// The largest number of rows of a part of a causal attention. Fewer rows have fewer keys that no row sees, and smaller products.
const CAUSAL_ROWS: usize = 1 << 9;

/// The temporary buffers of all parts.
struct Temporaries {
    /// The scores, then the weights.
    scores: View,
    /// The gradients of the weights, then those of the scores.
    score_gradients: View,
    rounded_weights: View,
    rounded_gradients: View,
    /// The product of the result and its gradient, and the sums of its rows.
    products: View,
    dots: View,
    /// The query and the gradient of the result, with the rows of heads that share keys one after the other.
    rows: Option<[View; 2]>,
    causal_mask: Option<CausalMask>,
}

impl AttentionGradient {
    /// Returns the instructions, with at most `max_scores` scores in memory, unless those of one row of heads that share keys are more, and
    /// their temporary buffers, whose numbers begin with `first_buffer`. `dtype` is the type of the operands, `rank` that of both sides of
    /// copies.
    pub fn composition(
        &self,
        rank: usize,
        dtype: DType,
        first_buffer: BufferNo,
        max_scores: usize,
    ) -> (Vec<InstKind>, Vec<Buffer>) {
        let mut code = InstBuilder::new(rank, first_buffer);
        self.append_to(dtype, max_scores, &mut code);
        (code.code, code.buffers)
    }

    fn append_to(&self, dtype: DType, max_scores: usize, code: &mut InstBuilder) {
        let shape = self.attention.score_shape();
        let [batch @ .., rows, keys] = &shape[..] else { return };
        let (batch, heads) = match batch {
            [batch @ .., heads] if self.shares_keys => (batch, *heads),
            _ => (batch, 1),
        };
        let most = (max_scores / (heads * keys).max(1)).min(if self.attention.is_causal {
            CAUSAL_ROWS
        } else {
            *rows
        });
        let step = most.clamp(1, (*rows).max(1));
        let batches = in_parts(self, &[batch, &[heads * step * keys]].concat(), max_scores, Self::of_batch);
        let Some(first) = batches.first() else { return };
        let wide = if dtype == DType::Double { DType::Double } else { DType::Float };
        let parts: Vec<Self> = ranges(*rows, step).map(|range| first.of_rows(range)).collect();
        let mut temporaries = Temporaries::of(&parts, [dtype, wide], code);
        let sums = (parts.len() > 1).then(|| {
            [&first.key, &first.value].map(|it| code.temporary("sums of gradients", wide, it.shape.clone()))
        });
        for batch in &batches {
            let sums = sums.as_ref().map(|all| {
                [(&all[0], &batch.key), (&all[1], &batch.value)].map(|(sum, it)| first_part(sum, &it.shape))
            });
            sums.iter().flatten().for_each(|it| code.fill(it, Number::Float(0.0)));
            for range in ranges(*rows, step) {
                batch.of_rows(range).part(code, &mut temporaries, sums.as_ref());
            }
            if let Some([key, value]) = sums {
                code.copy(&key, &batch.key);
                code.copy(&value, &batch.value);
            }
        }
    }

    /// Returns a range of a dimension of the batch.
    fn of_batch(&self, dim: usize, (start, count): (usize, usize)) -> Self {
        let part = |it: &View| it.narrow(dim, start, count);
        Self {
            attention: self.attention.narrow(dim, (start, count)),
            result: part(&self.result),
            query: part(&self.query),
            key: part(&self.key),
            value: part(&self.value),
            shares_keys: self.shares_keys,
        }
    }

    /// Returns a range of the rows, with the keys that they see.
    fn of_rows(&self, (start, count): (usize, usize)) -> Self {
        let rows = self.query.shape.len() - 2;
        let part = |it: &View| it.narrow(rows, start, count);
        let mut attention = self.attention.narrow(rows, (start, count));
        let all = self.attention.value.shape[rows];
        let keys = if attention.is_causal { all.min(attention.first_row + count) } else { all };
        let seen = |it: &mut View, dim: usize| *it = it.narrow(dim, 0, keys);
        seen(&mut attention.key, rows);
        seen(&mut attention.value, rows);
        [&mut attention.bias, &mut attention.mask, &mut attention.keep]
            .into_iter()
            .flatten()
            .for_each(|it| seen(it, rows + 1));
        Self { attention, result: part(&self.result), query: part(&self.query), ..self.clone() }
    }

    /// Appends the instructions of a part. `sums` are the gradients of all keys and values, to which those of the part are added; without
    /// them, the part is all there is.
    fn part(&self, code: &mut InstBuilder, buffers: &mut Temporaries, sums: Option<&[View; 2]>) {
        let Attention { query, key, value, out, scale, .. } = &self.attention;
        let score_shape = self.attention.score_shape();
        let rows = &score_shape[..score_shape.len() - 1];
        let of = |it: &View| first_part(it, &score_shape);
        let [scores, gradients] = [&buffers.scores, &buffers.score_gradients].map(of);
        let [weights, rounded] = [&buffers.rounded_weights, &buffers.rounded_gradients].map(of);
        let (products, dots) = (first_part(&buffers.products, &out.shape), first_part(&buffers.dots, rows));
        let repeated = |it: &View| view(&self.attention.for_each_score(it));
        code.map(Op::Mul, [view(&self.result), view(out)], &products);
        code.reduce_rows(ReduceOp::Sum, Number::Float(0.0), &products, &dots);
        code.gemm(query, &transposed(key), &scores);
        code.gemm(&self.result, &transposed(value), &gradients);
        let causal_mask =
            buffers.causal_mask.as_mut().and_then(|it| it.of(code, &self.attention).broadcast(&score_shape));
        code.map(Op::Mul, [view(&scores), float(*scale)], &scores);
        if let Some(bias) = &self.attention.bias {
            code.map(Op::Add, [view(&scores), view(bias)], &scores);
        }
        if let Some(logsumexp) = &self.attention.logsumexp {
            code.map(Op::Sub, [view(&scores), repeated(logsumexp)], &scores);
        }
        code.map(Op::Exp, [view(&scores)], &scores);
        for mask in self.attention.mask.iter().chain(&causal_mask) {
            code.map(Op::Where, [view(mask), view(&scores), float(0.0)], &scores);
        }
        match &self.attention.keep {
            Some(keep) => {
                code.map(Op::Mul, [view(&scores), view(keep)], &weights);
                code.map(Op::Mul, [view(&gradients), view(keep)], &gradients);
            }
            None => code.copy(&scores, &weights),
        }
        code.map(Op::Sub, [view(&gradients), repeated(&dots)], &gradients);
        code.map(Op::Mul, [view(&gradients), view(&scores)], &gradients);
        code.map(Op::Mul, [view(&gradients), float(*scale)], &gradients);
        code.copy(&gradients, &rounded);
        code.gemm(&rounded, key, &self.query);
        let (query_rows, result_rows) = match &buffers.rows {
            Some(whole) => {
                let [a, b] = [(&whole[0], query), (&whole[1], &self.result)].map(|(whole, it)| {
                    let whole = first_part(whole, &it.shape);
                    code.copy(it, &whole);
                    self.joined(&whole)
                });
                (a, b)
            }
            None => (query.clone(), self.result.clone()),
        };
        let [weights, rounded] = [&weights, &rounded].map(|it| transposed(&self.joined(it)));
        match sums {
            Some([key_sum, value_sum]) => {
                let keys = self.attention.value.shape[self.query.shape.len() - 2];
                let seen = |it: &View| it.narrow(it.shape.len() - 2, 0, keys);
                code.add_gemm(&weights, &result_rows, &seen(value_sum));
                code.add_gemm(&rounded, &query_rows, &seen(key_sum));
            }
            None => {
                code.gemm(&weights, &result_rows, &self.value);
                code.gemm(&rounded, &query_rows, &self.key);
            }
        }
    }

    /// Returns the rows of the heads that share keys and values, one after the other. `it` is contiguous.
    fn joined(&self, it: &View) -> View {
        match &it.shape[..] {
            [batch @ .., heads, rows, last] if self.shares_keys => View {
                offset: it.offset,
                ..View::contiguous(it.buffer, [batch, &[heads * rows, *last]].concat())
            },
            _ => it.clone(),
        }
    }
}

impl Temporaries {
    /// Adds the buffers of parts of the rows. `narrow` and `wide` are the types of operands and of scores.
    fn of(parts: &[AttentionGradient], [narrow, wide]: [DType; 2], code: &mut InstBuilder) -> Self {
        let largest = |shape: &dyn Fn(&AttentionGradient) -> Vec<usize>| {
            vec![parts.iter().map(|it| shape(it).iter().product()).max().unwrap_or(0)]
        };
        let scores = largest(&|it| it.attention.score_shape());
        let [query, out] = [largest(&|it| it.query.shape.clone()), largest(&|it| it.result.shape.clone())];
        let dots = largest(&|it| it.attention.query.shape[..it.query.shape.len() - 1].to_vec());
        let shares_keys = parts.first().is_some_and(|it| it.shares_keys);
        let attentions: Vec<Attention> = parts.iter().map(|it| it.attention.clone()).collect();
        let mut of = |name, dtype, shape: &Vec<usize>| code.temporary(name, dtype, shape.clone());
        Self {
            scores: of("weights", wide, &scores),
            score_gradients: of("gradients of scores", wide, &scores),
            rounded_weights: of("rounded weights", narrow, &scores),
            rounded_gradients: of("rounded gradients", narrow, &scores),
            products: of("products", wide, &out),
            dots: of("dots", wide, &dots),
            rows: shares_keys.then(|| [&query, &out].map(|it| of("rows of heads", narrow, it))),
            causal_mask: CausalMask::of_parts(code, &attentions),
        }
    }
}

/// Returns the first elements of a buffer.
fn first_part(buffer: &View, shape: &[usize]) -> View {
    View::contiguous(buffer.buffer, shape.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The gradients of two sequences with four heads of eight rows, which see eight keys. The buffers are numbered as the fields.
    fn gradient(is_causal: bool) -> AttentionGradient {
        let [query, key, value, out, result, dq, dk, dv] =
            [0, 1, 2, 3, 4, 5, 6, 7].map(|it| View::contiguous(it, vec![2, 4, 8, 3]));
        let logsumexp = Some(View::contiguous(8, vec![2, 4, 8]));
        let attention = Attention {
            query,
            key,
            value,
            out,
            logsumexp,
            is_causal,
            bias: None,
            mask: None,
            keep: None,
            first_row: 0,
            scale: 1.0,
        };
        AttentionGradient { attention, result, query: dq, key: dk, value: dv, shares_keys: false }
    }

    /// Returns the parts of a buffer that instructions read or write: offsets, and extents in ascending order.
    fn parts(code: &InstBuilder, buffer: u32, is_written: bool) -> BTreeSet<(usize, Vec<usize>)> {
        let mut found = BTreeSet::new();
        for it in code.code.iter().flat_map(|it| it.accesses(0)) {
            if it.view.buffer == buffer && it.is_write == is_written {
                let mut shape = it.view.shape.clone();
                shape.sort_unstable();
                found.insert((it.view.offset, shape));
            }
        }
        found
    }

    #[test]
    fn parts_of_the_batch_read_and_write_the_same_heads() {
        for is_causal in [false, true] {
            // Three heads of a sequence, then one.
            let mut code = InstBuilder::new(0, 9);
            gradient(is_causal).append_to(DType::Float, 3 * 64, &mut code);
            let heads = BTreeSet::from(
                [(0, 3), (72, 1), (96, 3), (168, 1)].map(|(at, heads)| (at, sorted([1, heads, 8, 3]))),
            );
            for (buffer, is_written) in
                [(0, false), (1, false), (2, false), (3, false), (4, false), (5, true), (6, true), (7, true)]
            {
                assert_eq!(parts(&code, buffer, is_written), heads, "buffer {buffer}");
            }
        }
    }

    #[test]
    fn parts_of_the_rows_are_added() {
        // Four rows of a head, with all keys; with a causal mask, the first rows see as many keys.
        let mut code = InstBuilder::new(0, 9);
        gradient(true).append_to(DType::Float, 32, &mut code);
        let heads = |rows: usize| (0..8).map(move |it| (it * 24, sorted([1, 1, rows, 3])));
        let halves: BTreeSet<_> = heads(4).chain(heads(4).map(|(at, shape)| (at + 12, shape))).collect();
        assert_eq!([parts(&code, 0, false), parts(&code, 5, true)], [halves.clone(), halves]);
        assert_eq!(parts(&code, 1, false), heads(4).chain(heads(8)).collect());
        assert_eq!(parts(&code, 6, true), heads(8).collect());
        let is_sum = |it: &&InstKind| matches!(it, InstKind::Gemm(it) if it.bias.as_ref() == Some(&it.out));
        assert_eq!(code.code.iter().filter(is_sum).count(), 2 * 2 * 8);
    }

    fn sorted(mut shape: [usize; 4]) -> Vec<usize> {
        shape.sort_unstable();
        shape.to_vec()
    }
}
