//! `sdpa_bwd`: the gradients of scaled dot-product attention.
//!
//! ```text
//! weights = exp(scale · q · kᵀ - logsumexp)     dv = weightsᵀ · do
//! dots    = sums of the rows of do · out         ds = weights · (do · vᵀ - dots)
//! dq      = scale · ds · k                       dk = scale · dsᵀ · q
//! ```
//!
//! If consecutive heads of the query share keys and values, `dk` and `dv` are the sums over these heads: in their products, the rows
//! of these heads are one after the other.
//!
//! The scores are of binary32, or of binary64 for such operands (Dao et al., "FlashAttention", 2022, appendix B.4).

use grammar::{attr, dtype::DType, ops::Op};

use super::{
    OperatorCall, Result, batch_of_keys, kept_weights, misfit, repeat_heads, shared_heads, split_heads,
};
use crate::{
    Arg, Number, ReduceOp, View,
    inst_builder::{InstBuilder, float, view},
};

impl OperatorCall<'_> {
    /// Operands: the gradient of the result, the query, the keys, the values, the result, then `logsum_exp=`.
    pub(super) fn attention_gradient(&self, code: &mut InstBuilder) -> Result<()> {
        let stmt = self.stmt;
        let number = |key| stmt.get(key).map(|it| self.scalar(it).map(|it| it.real())).transpose();
        let dropout = number(attr::DROPOUT_P)?.unwrap_or(0.0);
        let needs = "it needs the gradient of the result, the query, the keys, the values and the result, then `logsum_exp=`";
        let Some(logsumexp) = self.keyed(stmt.get(attr::LOGSUM_EXP)) else {
            return Err(self.unsupported(needs));
        };
        let [gradient, query, key, value, out] = [0, 1, 2, 3, 4].map(|at| self.operands.get(at));
        let (Some(gradient), Some(query), Some(key), Some(value), Some(out)) =
            (gradient, query, key, value, out)
        else {
            return Err(self.unsupported(needs));
        };
        let [batch @ .., rows, columns] = &query.shape[..] else { return Err(misfit(query, &[1, 1])) };
        let [.., keys, width] = value.shape[..] else { return Err(misfit(value, &query.shape)) };
        let groups = shared_heads(batch, key);
        let own = batch_of_keys(batch, groups);
        let shape = |last: &[usize]| [batch, last].concat();
        let shared = |last: [usize; 2]| [&own[..], &last].concat();
        let [dq, dk, dv] = [self.result(0)?, self.result(1)?, self.result(2)?];
        for (view, wanted) in [
            (key, shared([keys, *columns])),
            (value, shared([keys, width])),
            (out, shape(&[*rows, width])),
            (gradient, shape(&[*rows, width])),
            (logsumexp, shape(&[*rows])),
            (dq, shape(&[*rows, *columns])),
            (dk, shared([keys, *columns])),
            (dv, shared([keys, width])),
        ] {
            if view.shape != wanted {
                return Err(misfit(view, &wanted));
            }
        }
        let scale = number(attr::SCALE)?.unwrap_or_else(|| (*columns.max(&1) as f64).sqrt().recip());
        let is_causal = number(attr::IS_CAUSAL)?.is_some_and(|it| it != 0.0);
        let narrow = self.result_dtype(0);
        let wide = if narrow == DType::Double { DType::Double } else { DType::Float };
        let keep = match dropout {
            0.0 => None,
            _ => Some(self.dropout(code, dropout, keys, out)?),
        };
        // The heads of the query, split into groups, and the keys and values repeated for each head of a group.
        let heads = batch.len().saturating_sub(1);
        let split = |it: &View| groups.map_or(it.clone(), |groups| split_heads(it, heads, groups));
        let each_head =
            |it: &View| groups.map_or(it.clone(), |groups| repeat_heads(it, heads, batch[heads] / groups));
        let [query, gradient, out, logsumexp, dq] = [query, gradient, out, logsumexp, dq].map(split);
        let [query, gradient, out, logsumexp, dq] = [&query, &gradient, &out, &logsumexp, &dq];
        let keep = keep.as_ref().map(split);
        let [key, value] = [key, value].map(each_head);
        let [key, value] = [&key, &value];
        let outer = &query.shape[..query.shape.len() - 2];
        let shape = |last: &[usize]| [outer, last].concat();
        let score_shape = shape(&[*rows, keys]);
        let dims = score_shape.len();
        let swapped = |it: &View| {
            let mut order: Vec<usize> = (0..it.shape.len()).collect();
            let last = order.len() - 1;
            order.swap(last - 1, last);
            it.permute(&order)
        };
        // The rows of the heads that share keys and values, one after the other.
        let joined = |it: &View| match groups {
            None => it.clone(),
            Some(_) => {
                let [outer @ .., count, rows, last] = &it.shape[..] else { return it.clone() };
                View {
                    offset: it.offset,
                    ..View::contiguous(it.buffer, [outer, &[count * rows, *last]].concat())
                }
            }
        };
        let [whole_query, whole_gradient] = [query, gradient].map(|it| match groups {
            None => it.clone(),
            Some(_) => {
                let whole = code.temporary("rows of heads", narrow, it.shape.clone());
                code.copy(it, &whole);
                joined(&whole)
            }
        });
        let repeated = |it: &View| it.unsqueeze(dims - 1).expand(&score_shape);
        let weights = code.temporary("weights", wide, score_shape.clone());
        let scores = code.temporary("gradients of scores", wide, score_shape.clone());
        let sums = code.temporary("dots", wide, shape(&[*rows]));
        let product = code.temporary("products", wide, shape(&[*rows, width]));
        let rounded = code.temporary("rounded", narrow, score_shape.clone());
        code.gemm(query, &swapped(key), &weights);
        code.map(Op::Mul, [view(&weights), float(scale)], &weights);
        let each = repeated(logsumexp).ok_or_else(|| misfit(logsumexp, &score_shape))?;
        code.map(Op::Sub, [view(&weights), view(&each)], &weights);
        code.map(Op::Exp, [view(&weights)], &weights);
        if is_causal {
            let mask = causal_mask(code, *rows, keys);
            let mask = mask.broadcast(&score_shape).ok_or_else(|| misfit(&mask, &score_shape))?;
            code.map(Op::Where, [view(&mask), view(&weights), Arg::Number(Number::Float(0.0))], &weights);
        }
        match &keep {
            Some(keep) => code.map(Op::Mul, [view(&weights), view(keep)], &rounded),
            None => code.copy(&weights, &rounded),
        }
        code.gemm(&swapped(&joined(&rounded)), &whole_gradient, dv);
        code.map(Op::Mul, [view(gradient), view(out)], &product);
        code.reduce_rows(ReduceOp::Sum, Number::Float(0.0), &product, &sums);
        code.gemm(gradient, &swapped(value), &scores);
        if let Some(keep) = &keep {
            code.map(Op::Mul, [view(&scores), view(keep)], &scores);
        }
        let each = repeated(&sums).ok_or_else(|| misfit(&sums, &score_shape))?;
        code.map(Op::Sub, [view(&scores), view(&each)], &scores);
        code.map(Op::Mul, [view(&scores), view(&weights)], &scores);
        code.map(Op::Mul, [view(&scores), float(scale)], &scores);
        code.copy(&scores, &rounded);
        code.gemm(&rounded, key, dq);
        code.gemm(&swapped(&joined(&rounded)), &whole_query, dk);
        Ok(())
    }

    /// Draws the numbers of the dropout again, from the state that `sdpa` returned.
    fn dropout(&self, code: &mut InstBuilder, probability: f64, keys: usize, out: &View) -> Result<View> {
        let state = |key, name: &str| {
            let view = self.keyed(self.stmt.get(key)).ok_or_else(|| {
                self.unsupported(&format!("its dropout needs `{name}=`, the state that `sdpa` returned"))
            })?;
            // nvFuser's seed has two words.
            Ok(Arg::View(match view.shape[..] {
                [2] => view.narrow(0, 0, 1),
                _ => view.clone(),
            }))
        };
        let seed = state(attr::PHILOX_SEED, "philox_seed")?;
        let offset = state(attr::PHILOX_OFFSET, "philox_offset")?;
        let layout = (keys, self.layout);
        let drawn = kept_weights(code, probability, layout, out, (seed, offset));
        drawn.ok_or_else(|| self.unsupported("the state of its random numbers has another shape"))
    }
}

/// Returns booleans `[rows, keys]`: whether the index of the key is at most that of the row.
fn causal_mask(code: &mut InstBuilder, rows: usize, keys: usize) -> View {
    let indices = code.temporary("indices", DType::Int32, vec![rows.max(keys)]);
    code.iota(&indices, 0, 1);
    let mask = code.temporary("causal mask", DType::Bool, vec![rows, keys]);
    let repeated = |strides: [usize; 2]| {
        Arg::View(View { shape: vec![rows, keys], strides: strides.to_vec(), ..indices.clone() })
    };
    code.map(Op::Ge, [repeated([1, 0]), repeated([0, 1])], &mask);
    mask
}
