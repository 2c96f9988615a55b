//! Plans `sdpa`, scaled dot-product attention: `softmax(scale · q · kᵀ + bias) · v`, as one instruction. `composition`
//! has the instructions that define what it computes.
//!
//! `dropout_p` has to be 0: the random numbers of a dropout belong to one library and have no other definition. The state
//! of the random numbers, which `sdpa` also returns, is then 0.

use grammar::{
    attr,
    dtype::DType,
    ir::{OpStmt, Program, TensorId},
};

use super::{
    Attention, InstKind, Number, View,
    context::{PlanBuilder, Result},
    scalar::Value,
};

mod composition;

pub use composition::AttentionComposition;

/// The optional operands and attributes of `sdpa`, which both planners read in the same way.
pub struct AttentionOptions {
    /// The position of the bias in `OpStmt::tensor_operands`.
    pub bias: Option<usize>,
    /// The position of the mask.
    pub mask: Option<usize>,
    /// Whether a row of the query sees only the keys up to its own position.
    pub is_causal: bool,
    /// What the scores are multiplied with.
    pub scale: f64,
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
        if Program::tensors_of(&stmt.args).count() != 3 {
            return Err(refuse("it needs a query, keys and values"));
        }
        let number = |key| stmt.get(key).map(|it| value(it).map(Value::real)).transpose();
        if number(attr::DROPOUT_P)?.is_some_and(|it| it != 0.0) {
            return Err(refuse("its dropout draws random numbers; `dropout_p` has to be 0"));
        }
        let args = stmt.tensor_operands();
        let is_bool = |it: TensorId| program.tensors[it].dtype == Some(DType::Bool);
        let position = |it: TensorId| args.iter().skip(3).position(|arg| *arg == it).map(|at| at + 3);
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
        expect(key, shape(&[keys, *columns]))?;
        expect(value, shape(&[keys, width]))?;
        expect(&out, shape(&[*rows, width]))?;
        logsumexp.iter().try_for_each(|it| expect(it, shape(&[*rows])))?;
        let scores = shape(&[*rows, keys]);
        let wide = |at: Option<usize>| {
            let Some(it) = at.and_then(|at| views.get(at)) else { return Ok(None) };
            it.broadcast(&scores).map(Some).ok_or_else(|| (it.shape.clone(), scores.clone()))
        };
        Ok(Self {
            bias: wide(options.bias)?,
            mask: wide(options.mask)?,
            query: query.clone(),
            key: key.clone(),
            value: value.clone(),
            is_causal: options.is_causal,
            first_row: 0,
            scale: options.scale,
            out,
            logsumexp,
        })
    }
}

impl PlanBuilder<'_> {
    /// Lowers `sdpa` on this rank's parts of its operands.
    pub(super) fn attention(&mut self, stmt: &OpStmt) -> Result<()> {
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
        let columns = views.first().and_then(|it| it.shape.last()).copied().unwrap_or(0);
        let options = AttentionOptions::of(
            self.program,
            stmt,
            columns,
            |it| self.value(it, "the operand"),
            |why| self.unsupported(stmt.op, why),
        )?;
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
        let mut targets = targets.into_iter();
        let Some(target) = targets.next() else { return Ok(()) };
        let it = Attention::of(&views, &options, target, targets.next())
            .map_err(|(have, want)| self.shape_mismatch(stmt.op, &have, &want))?;
        self.emit(InstKind::Attention(Box::new(it)));
        for state in targets {
            self.emit(InstKind::Fill { to: Box::new(state), value: Number::Int(0) });
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
