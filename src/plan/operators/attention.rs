//! What both planners know of `sdpa` and `sdpa_bwd`: their options, the operands of an attention, and the instructions that define it and its
//! gradient.
//!
//! If there are fewer heads of keys and values than of queries, consecutive heads of the query share them.

use grammar::{DType, Op, OpStmt, Program, TensorId, attr};

use super::{batch_of_keys, kept_weights, repeat_heads, shared_heads, split_heads};
use crate::{
    Arg, Attention, BufferNo, Number, ShardLayout, View,
    inst_builder::{InstBuilder, int},
    scalar::Value,
};

mod causal_mask;
mod composition;
mod gradient;

pub use composition::AttentionComposition;

/// The optional operands and attributes of `sdpa` and `sdpa_bwd`, which both planners read in the same way.
pub struct AttentionOptions {
    /// The position of the bias in `OpStmt::tensor_operands`.
    pub bias: Option<usize>,
    /// The position of the mask.
    pub mask: Option<usize>,
    /// Whether a row of the query sees only the keys up to its own position.
    pub is_causal: bool,
    /// What the scores are multiplied with.
    pub scale: f64,
    /// The probability with which a weight is dropped.
    pub dropout: f64,
    /// The offset of the random numbers.
    pub offset: i64,
}

impl AttentionOptions {
    /// Reads the options of a statement. `columns` is the last extent of the query.
    ///
    /// # Errors
    /// Returns the reason why hir does not run the statement, or what `value` returns.
    pub fn of<E>(
        program: &Program,
        stmt: &OpStmt,
        columns: usize,
        value: impl Fn(grammar::ir::ExprId) -> std::result::Result<Value, E>,
        refuse: impl Fn(&str) -> E,
    ) -> std::result::Result<Self, E> {
        let (count, needs) = match stmt.op {
            Op::SdpaBwd => {
                (5, "it needs the gradient of the result, the query, the keys, the values and the result")
            }
            _ => (3, "it needs a query, keys and values"),
        };
        if Program::tensors_of(&stmt.args).count() != count {
            return Err(refuse(needs));
        }
        let number = |key| stmt.get(key).map(|it| value(it).map(Value::real)).transpose();
        let dropout = number(attr::DROPOUT_P)?.unwrap_or(0.0);
        if !(0.0..1.0).contains(&dropout) {
            return Err(refuse("its `dropout_p` is not from 0 to below 1"));
        }
        let args = stmt.tensor_operands();
        let is_bool = |it: TensorId| program.tensors[it].dtype == Some(DType::Bool);
        let position = |it: TensorId| args.iter().skip(count).position(|arg| *arg == it).map(|at| at + count);
        // As in PyTorch, a mask of numbers is added to the scores.
        let (mask, added) = match stmt.get(attr::MASK) {
            Some(it) if is_bool(it) => (position(it), None),
            it => (None, it.and_then(position)),
        };
        let bias = match (stmt.get(attr::BIAS).and_then(position), added) {
            (Some(_), Some(_)) => return Err(refuse("its `mask` is not of type bool, and it has a `bias`")),
            (bias, added) => bias.or(added),
        };
        Ok(Self {
            bias,
            mask,
            is_causal: number(attr::IS_CAUSAL)?.is_some_and(|it| it != 0.0),
            scale: number(attr::SCALE)?.unwrap_or_else(|| (columns.max(1) as f64).sqrt().recip()),
            dropout,
            offset: number(attr::RNG_OFFSET)?.map_or(0, |it| it as i64),
        })
    }
}

impl Attention {
    /// Describes an attention on `views`, which are in the order of `OpStmt::tensor_operands`.
    ///
    /// # Errors
    /// Returns the shape of the view that does not match, and a shape that would match.
    pub fn of(
        views: &[View],
        options: &AttentionOptions,
        keep: Option<View>,
        out: View,
        logsumexp: Option<View>,
    ) -> std::result::Result<Self, (Vec<usize>, Vec<usize>)> {
        let [query, key, value, ..] = views else { return Err((Vec::new(), out.shape)) };
        let expect = |view: &View, shape: Vec<usize>| {
            if view.shape == shape { Ok(()) } else { Err((view.shape.clone(), shape)) }
        };
        let [batch @ .., rows, columns] = &query.shape[..] else {
            return Err((query.shape.clone(), vec![1, 1]));
        };
        let [.., keys, width] = value.shape[..] else {
            return Err((value.shape.clone(), query.shape.clone()));
        };
        let shape = |last: &[usize]| [batch, last].concat();
        let groups = shared_heads(batch, key);
        let own = batch_of_keys(batch, groups);
        let shared = |last: [usize; 2]| [&own[..], &last].concat();
        expect(key, shared([keys, *columns]))?;
        expect(value, shared([keys, width]))?;
        expect(&out, shape(&[*rows, width]))?;
        logsumexp.iter().try_for_each(|it| expect(it, shape(&[*rows])))?;
        let scores = shape(&[*rows, keys]);
        let wide = |at: Option<usize>| {
            let Some(it) = at.and_then(|at| views.get(at)) else { return Ok(None) };
            it.broadcast(&scores).map(Some).ok_or_else(|| (it.shape.clone(), scores.clone()))
        };
        let it = Self {
            bias: wide(options.bias)?,
            mask: wide(options.mask)?,
            keep,
            query: query.clone(),
            key: key.clone(),
            value: value.clone(),
            is_causal: options.is_causal,
            first_row: 0,
            scale: options.scale,
            out,
            logsumexp,
        };
        Ok(match groups {
            Some(groups) => it.with_shared_heads(batch.len() - 1, groups),
            None => it,
        })
    }

    /// Splits the heads of the query, dimension `dim`, into groups, one for each of the heads `shared` of keys and values.
    fn with_shared_heads(self, dim: usize, shared: usize) -> Self {
        let split = |it: &View| split_heads(it, dim, shared);
        let count = self.query.shape[dim] / shared;
        let repeated = |it: &View| repeat_heads(it, dim, count);
        Self {
            query: split(&self.query),
            key: repeated(&self.key),
            value: repeated(&self.value),
            bias: self.bias.as_ref().map(split),
            mask: self.mask.as_ref().map(split),
            keep: self.keep.as_ref().map(split),
            out: split(&self.out),
            logsumexp: self.logsumexp.as_ref().map(split),
            ..self
        }
    }
}

/// Returns the instructions that draw the dropout of an attention, its temporary buffers, and the numbers that the weights are
/// multiplied with. `layout` is that of the result on `rank`; `None` without a dropout.
pub fn dropout(
    options: &AttentionOptions,
    (keys, layout): (usize, &ShardLayout),
    out: &View,
    rank: usize,
    first_buffer: BufferNo,
) -> Option<(InstBuilder, View)> {
    if options.dropout == 0.0 || out.shape.len() < 2 {
        return None;
    }
    let mut code = InstBuilder::new(rank, first_buffer);
    let offset = Arg::Number(Number::Int(options.offset));
    let keep = kept_weights(&mut code, options.dropout, (keys, layout), out, (int(0), offset))?;
    Some((code, keep))
}
