//! Plans `sdpa`, scaled dot-product attention: `softmax(scale · q · kᵀ + bias) · v`, as one instruction. `composition`
//! has the instructions that define what it computes.
//!
//! A dropout draws a number for each weight, by the index of the weight in the whole tensor of scores (`operators::random`). The
//! state of the random numbers, which `sdpa` also returns, is the seed 0 and the offset of the statement.
//!
//! If there are fewer heads of keys and values than of queries, consecutive heads of the query share them.

use grammar::{
    attr,
    dtype::DType,
    ir::{OpStmt, Program, TensorId},
    ops::Op,
};

use super::{
    Arg, Attention, BufferNo, InstKind, Number, ShardLayout, View,
    context::{NOT_IMPLEMENTED, PlanBuilder, Result},
    inst_builder::{InstBuilder, int},
    operators::{batch_of_keys, is_lowered, kept_weights, repeat_heads, shared_heads, split_heads},
    scalar::Value,
};

mod causal_mask;
mod composition;
mod gradient;

pub use composition::AttentionComposition;
pub(super) use gradient::AttentionGradient;

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

impl PlanBuilder<'_> {
    /// Lowers an operator with several results, or `sdpa`, on this rank's parts of its operands.
    pub(super) fn several_results(&mut self, stmt: &OpStmt) -> Result<()> {
        if stmt.op != Op::Sdpa && !is_lowered(self.program, stmt) {
            return Err(self.unsupported(stmt.op, NOT_IMPLEMENTED));
        }
        let outs: Vec<TensorId> = Program::tensors_of(&stmt.outs).collect();
        let args = stmt.tensor_operands();
        let Some(out) = outs.first() else { return Ok(()) };
        if let Some(other) = self.result_sharded_differently(stmt) {
            let [first, other] = [*out, other].map(|it| self.program.tensor_name(it));
            let why = format!("its results `{first}` and `{other}` are sharded differently");
            let it = *self.unsupported(stmt.op, &why);
            return Err(Box::new(
                it.help(format!("shard `{other}` along the same axes as `{first}`, or not at all")),
            ));
        }
        if self.needs_reshard(stmt, &args, *out)? {
            let name = self.program.tensor_name(*out);
            let why = format!(
                "an operand is not sharded as its result `{name}` is, or `{name}` is sharded along an axis that it needs whole"
            );
            let it = *self.unsupported(stmt.op, &why);
            return Err(Box::new(it.help(
                "add `--passes decompose-resharding`, which reshards the operands, or names the axis that has to be whole",
            )));
        }
        if !self.holds_part(*out) {
            outs.iter().for_each(|out| self.note_slice(&args, *out));
            return Ok(());
        }
        let views = args.iter().map(|arg| self.view(*arg)).collect::<Result<Vec<_>>>()?;
        let stream = args.iter().find_map(|arg| self.binding(*arg).and_then(|it| it.stream));
        let targets = outs.iter().map(|it| {
            let target = self.output_view(*it)?;
            if stream.is_some() {
                self.bind(*it, target.clone(), stream);
            }
            Ok(target)
        });
        let targets = targets.collect::<Result<Vec<_>>>()?;
        self.check_separate_results(stmt, &outs, &targets)?;
        if stmt.op != Op::Sdpa {
            let first = self.plan.buffers.len() as u32;
            let lowered = self.lower(stmt, &views, &args, *out, &targets, self.rank(), first)?;
            self.emit_lowered(lowered);
            return Ok(());
        }
        self.attention(stmt, &views, targets)
    }

    /// Lowers `sdpa`.
    fn attention(&mut self, stmt: &OpStmt, views: &[View], targets: Vec<View>) -> Result<()> {
        let columns = views.first().and_then(|it| it.shape.last()).copied().unwrap_or(0);
        let options = AttentionOptions::of(
            self.program,
            stmt,
            columns,
            |it| self.value(it, "the operand"),
            |why| self.unsupported(stmt.op, why),
        )?;
        let mut targets = targets.into_iter();
        let (Some(target), Some(out)) = (targets.next(), stmt.out_tensor()) else { return Ok(()) };
        let keys = views.get(1).and_then(|it| it.shape.iter().rev().nth(1)).copied().unwrap_or(0);
        let (layout, first) = (self.layout(out)?, self.plan.buffers.len() as BufferNo);
        let (mut keep, mut temporaries) = (None, Vec::new());
        if let Some((code, drawn)) = dropout(&options, (keys, &layout), &target, self.rank(), first) {
            temporaries = self.allocate_temporaries(code.buffers);
            code.code.into_iter().for_each(|kind| self.emit(kind));
            keep = Some(drawn);
        }
        let it = Attention::of(views, &options, keep, target, targets.next())
            .map_err(|(have, want)| self.shape_mismatch(stmt.op, &have, &want))?;
        self.emit(InstKind::Attention(Box::new(it)));
        temporaries.into_iter().for_each(|buffer| self.release(buffer));
        for (state, value) in targets.zip([0, options.offset]) {
            self.emit(InstKind::Fill { to: Box::new(state), value: Number::Int(value) });
        }
        Ok(())
    }

    /// Checks that no two results have the same memory: one kernel writes them. Views of which neither is contiguous may
    /// have alternating elements, and are not compared.
    fn check_separate_results(&self, stmt: &OpStmt, outs: &[TensorId], views: &[View]) -> Result<()> {
        for (at, view) in views.iter().enumerate() {
            let shares = |it: &View| it.may_alias(view) && (it.is_contiguous() || view.is_contiguous());
            if let Some(other) = views[..at].iter().position(shares) {
                let [name, other] = [at, other].map(|it| self.program.tensor_name(outs[it]));
                let why =
                    format!("its results `{other}` and `{name}` share memory, and one kernel writes both");
                let it = *self.unsupported(stmt.op, &why);
                return Err(Box::new(it.help(format!("give `{name}` memory of its own"))));
            }
        }
        Ok(())
    }
}
