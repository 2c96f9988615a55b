//! `sdpa_bwd`: the gradients of scaled dot-product attention.

use grammar::attr;

use super::{
    OperatorCall, OperatorFault, Result, attention::AttentionOptions, expect_shape, kept_weights,
    shared_heads, split_heads,
};
use crate::{Arg, Attention, AttentionGradient, InstKind, View, inst_builder::InstBuilder};

impl OperatorCall<'_> {
    /// Operands: the gradient of the result, the query, the keys, the values, the result, then `logsum_exp=`.
    pub(super) fn attention_gradient(&self, code: &mut InstBuilder) -> Result<()> {
        let needs = "it needs the gradient of the result, the query, the keys, the values and the result, then `logsum_exp=`";
        let Some(logsumexp) = self.keyed(self.stmt.get(attr::LOGSUM_EXP)) else {
            return Err(self.unsupported(needs));
        };
        let [gradient, operands @ ..] = self.operands else { return Err(self.unsupported(needs)) };
        let [query, key, value, out, ..] = operands else { return Err(self.unsupported(needs)) };
        let columns = query.shape.last().copied().unwrap_or(0);
        let refuse = |why: &str| self.unsupported(why);
        let mut options =
            AttentionOptions::of(self.program, self.stmt, columns, |it| self.scalar(it), refuse)?;
        // The gradient is before the query.
        [&mut options.bias, &mut options.mask].into_iter().flatten().for_each(|it| *it -= 1);
        let mut attention = Attention::of(operands, &options, None, out.clone(), Some(logsumexp.clone()))
            .map_err(|(have, want)| OperatorFault::Shape(have, want))?;
        let [dq, dk, dv] = [self.result(0)?, self.result(1)?, self.result(2)?];
        for (view, like) in [(gradient, out), (dq, query), (dk, key), (dv, value)] {
            expect_shape(view, &like.shape)?;
        }
        let groups = shared_heads(&query.shape[..query.shape.len() - 2], key);
        // The heads are the dimension before the rows.
        let split =
            |it: &View| groups.map_or(it.clone(), |groups| split_heads(it, it.shape.len() - 3, groups));
        // The shapes are right: those of the numbers follow from them.
        if let ([.., keys, _], true) = (&value.shape[..], options.dropout != 0.0) {
            attention.keep = Some(split(&self.dropout(code, options.dropout, *keys, out)?));
        }
        let it = AttentionGradient {
            attention,
            result: split(gradient),
            query: split(dq),
            key: dk.clone(),
            value: dv.clone(),
            shares_keys: groups.is_some(),
        };
        code.code.push(InstKind::AttentionGradient(Box::new(it)));
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
