//! Lowers `sdpa`, scaled dot-product attention: `softmax(scale · q · kᵀ + bias) · v`.
//!
//! The scores are temporary buffers of the compute type, binary32 unless the operands are binary64, as in fused kernels
//! (Dao et al., "FlashAttention", 2022). The probabilities are rounded to the type of the values before the second
//! product. The batch is computed in parts, so that the scores of a long sequence fit in memory.
//!
//! `dropout_p` has to be 0: the random numbers of a dropout belong to one library and have no other definition. The state
//! of the random numbers, which `sdpa` also returns, is then 0.

use grammar::{
    attr,
    dtype::DType,
    ir::{OpStmt, Program, TensorId},
    ops::Op,
};

use super::{
    Arg, Buffer, BufferNo, Gemm, InstKind, Number, Reduce, ReduceOp, View,
    context::{PlanBuilder, Result},
    scalar::Value,
};

/// Why an attention on differently sharded tensors does not run.
const DIFFERENT_SHARDINGS: &str =
    "its operands and results are sharded differently, or along an axis that each result needs whole";

/// The largest number of elements of a buffer for scores, unless those of one element of the batch are more.
const MAX_SCORES: usize = 1 << 28;

/// An attention on views of one rank.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attention {
    /// The query `[b…, l, k]`.
    pub query: View,
    /// The keys `[b…, s, k]`.
    pub key: View,
    /// The values `[b…, s, e]`.
    pub value: View,
    /// Added to the scaled scores: `[b…, l, s]`.
    pub bias: Option<View>,
    /// Booleans `[b…, l, s]`; a score whose mask is false is -∞.
    pub mask: Option<View>,
    /// Whether row `i` attends to the keys 0 to `i` only.
    pub is_causal: bool,
    /// The factor of the scores.
    pub scale: f64,
    /// The result `[b…, l, e]`.
    pub out: View,
    /// The logarithm of each row's sum of exponentials: `[b…, l]`.
    pub logsumexp: Option<View>,
}

/// The optional operands and attributes of `sdpa`, which both planners read in the same way.
pub(crate) struct AttentionOptions {
    /// The position of the bias in `OpStmt::tensor_operands`.
    pub bias: Option<usize>,
    /// The position of the mask.
    pub mask: Option<usize>,
    pub is_causal: bool,
    pub scale: f64,
}

impl AttentionOptions {
    /// Reads the options of a statement. `columns` is the last extent of the query.
    ///
    /// # Errors
    /// Returns the reason why hir does not run the statement, or what `value` returns.
    pub(crate) fn of<E>(
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
    pub(crate) fn of(
        views: &[View],
        options: &AttentionOptions,
        out: View,
        logsumexp: Option<View>,
    ) -> std::result::Result<Self, (Vec<usize>, Vec<usize>)> {
        let [query, key, value, ..] = views else { return Err((Vec::new(), out.shape)) };
        let expect = |view: &View, shape: Vec<usize>| match view.shape == shape {
            true => Ok(()),
            false => Err((view.shape.clone(), shape)),
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
            scale: options.scale,
            out,
            logsumexp,
        })
    }

    /// Returns the instructions. `dtype` is the type of the operands, and `new_buffer` creates a temporary buffer.
    pub(crate) fn instructions(
        &self,
        dtype: DType,
        new_buffer: &mut dyn FnMut(&str, DType, usize) -> BufferNo,
    ) -> Vec<InstKind> {
        let ([batch @ .., rows, _], [.., keys, _]) = (&self.query.shape[..], &self.value.shape[..]) else {
            return Vec::new();
        };
        if self.out.is_empty() {
            return Vec::new();
        }
        let (rows, keys) = (*rows, *keys);
        let computed = if dtype == DType::Double { DType::Double } else { DType::Float };
        // The first dimension of the batch is split into parts.
        let (outer, inner) =
            batch.split_first().map_or((1, 1), |(outer, rest)| (*outer, rest.iter().product()));
        let step = (MAX_SCORES / (inner * rows * keys).max(1)).clamp(1, outer);
        let all_rows = step * inner * rows;
        let mut buffers = TemporaryBuffers {
            scores: new_buffer("scores", computed, all_rows * keys),
            weights: new_buffer("weights", dtype, all_rows * keys),
            largest: new_buffer("row maxima", computed, all_rows),
            sums: new_buffer("row sums", computed, all_rows),
            causal_mask: None,
        };
        let mut code = Code(Vec::new());
        if self.is_causal {
            buffers.causal_mask = Some(code.causal_mask(rows, keys, new_buffer));
        }
        for start in (0..outer).step_by(step) {
            let count = step.min(outer - start);
            let part = |it: &View| if batch.is_empty() { it.clone() } else { it.narrow(0, start, count) };
            let part = Self {
                query: part(&self.query),
                key: part(&self.key),
                value: part(&self.value),
                bias: self.bias.as_ref().map(part),
                mask: self.mask.as_ref().map(part),
                out: part(&self.out),
                logsumexp: self.logsumexp.as_ref().map(part),
                ..*self
            };
            part.append_to(&mut code, &buffers);
        }
        code.0
    }

    /// Appends the instructions of one part of the batch.
    fn append_to(&self, code: &mut Code, buffers: &TemporaryBuffers) {
        let dims = self.query.shape.len();
        let row_shape = &self.query.shape[..dims - 1];
        let score_shape = [row_shape, &[self.value.shape[dims - 2]]].concat();
        let scores = View::contiguous(buffers.scores, score_shape.clone());
        let weights = View::contiguous(buffers.weights, score_shape.clone());
        let largest = View::contiguous(buffers.largest, row_shape.to_vec());
        let sums = View::contiguous(buffers.sums, row_shape.to_vec());
        // A row's value, repeated for each of its scores.
        let repeated = |it: &View| View {
            shape: score_shape.clone(),
            strides: [&it.strides[..], &[0]].concat(),
            ..it.clone()
        };
        let mut transposed: Vec<usize> = (0..dims).collect();
        transposed.swap(dims - 2, dims - 1);
        code.gemm(&self.query, &self.key.permute(&transposed), &scores);
        code.map(Op::Mul, [view(&scores), Arg::Number(Number::Float(self.scale))], &scores);
        if let Some(bias) = &self.bias {
            code.map(Op::Add, [view(&scores), view(bias)], &scores);
        }
        let lowest = Number::Float(f64::NEG_INFINITY);
        let causal_mask = buffers.causal_mask.as_ref().and_then(|it| it.broadcast(&score_shape));
        for mask in self.mask.iter().chain(&causal_mask) {
            code.map(Op::Where, [view(mask), view(&scores), Arg::Number(lowest)], &scores);
        }
        code.reduce_rows(ReduceOp::Max, lowest, &scores, &largest);
        code.map(Op::Sub, [view(&scores), Arg::View(repeated(&largest))], &scores);
        code.map(Op::Exp, [view(&scores)], &scores);
        code.reduce_rows(ReduceOp::Sum, Number::Int(0), &scores, &sums);
        code.map(Op::Div, [view(&scores), Arg::View(repeated(&sums))], &weights);
        code.gemm(&weights, &self.value, &self.out);
        if let Some(it) = &self.logsumexp {
            code.map(Op::Log, [view(&sums)], &sums);
            code.map(Op::Add, [view(&largest), view(&sums)], it);
        }
    }
}

/// The temporary buffers of an attention.
struct TemporaryBuffers {
    scores: BufferNo,
    /// The softmax of the scores.
    weights: BufferNo,
    largest: BufferNo,
    sums: BufferNo,
    /// Booleans `[l, s]`.
    causal_mask: Option<View>,
}

/// The instructions so far.
struct Code(Vec<InstKind>);

impl Code {
    fn map<const N: usize>(&mut self, op: Op, args: [Arg; N], out: &View) {
        self.0.push(InstKind::Map { op, args: args.to_vec(), out: Box::new(out.clone()) });
    }

    fn gemm(&mut self, a: &View, b: &View, out: &View) {
        let it = Gemm { a: a.clone(), b: b.clone(), bias: None, out: out.clone() };
        self.0.push(InstKind::Gemm(Box::new(it)));
    }

    fn reduce_rows(&mut self, op: ReduceOp, init: Number, input: &View, out: &View) {
        let axes = vec![input.shape.len() - 1];
        let it = Reduce { op, init, input: input.clone(), axes, out: out.clone() };
        self.0.push(InstKind::Reduce(Box::new(it)));
    }

    /// Computes a mask of `rows` × `keys` booleans: whether the index of the key is at most that of the row.
    fn causal_mask(
        &mut self,
        rows: usize,
        keys: usize,
        new_buffer: &mut dyn FnMut(&str, DType, usize) -> BufferNo,
    ) -> View {
        let longest = rows.max(keys);
        let indices = View::contiguous(new_buffer("indices", DType::Int32, longest), vec![longest]);
        let mask = View::contiguous(new_buffer("causal mask", DType::Bool, rows * keys), vec![rows, keys]);
        self.0.push(InstKind::Iota { to: Box::new(indices.clone()), start: 0, step: 1 });
        let repeated = |strides: [usize; 2]| {
            Arg::View(View { shape: vec![rows, keys], strides: strides.to_vec(), ..indices.clone() })
        };
        self.map(Op::Ge, [repeated([1, 0]), repeated([0, 1])], &mask);
        mask
    }
}

fn view(it: &View) -> Arg {
    Arg::View(it.clone())
}

impl PlanBuilder<'_> {
    /// Lowers `sdpa` on this rank's parts of its operands.
    pub(super) fn attention(&mut self, stmt: &OpStmt) -> Result<()> {
        let outs: Vec<TensorId> = Program::tensors_of(&stmt.outs).collect();
        let args = stmt.tensor_operands();
        let Some(out) = outs.first() else { return Ok(()) };
        if !self.has_results_alike(stmt) || self.needs_reshard(stmt, &args, *out)? {
            let it = *self.unsupported(stmt.op, DIFFERENT_SHARDINGS);
            return Err(Box::new(it.help(
                "shard its results alike, and add `--passes decompose-resharding`, which reshards the operands",
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
        let mut targets = targets.collect::<Result<Vec<_>>>()?.into_iter();
        let Some(target) = targets.next() else { return Ok(()) };
        let it = Attention::of(&views, &options, target, targets.next())
            .map_err(|(have, want)| self.shape_mismatch(stmt.op, &have, &want))?;
        let name = self.program.tensor_name(*out);
        let mut temporaries = Vec::new();
        let code = it.instructions(self.dtype(args[0]), &mut |what, dtype, len| {
            self.plan.buffers.push(Buffer { name: format!("{what} of {name}"), dtype, len });
            temporaries.push(self.plan.buffers.len() as BufferNo - 1);
            self.plan.buffers.len() as BufferNo - 1
        });
        for buffer in &temporaries {
            self.allocate_buffer(*buffer, false);
        }
        code.into_iter().for_each(|kind| self.emit(kind));
        for state in targets {
            self.emit(InstKind::Fill { to: Box::new(state), value: Number::Int(0) });
        }
        // No name refers to a temporary buffer, so it is freed here.
        for buffer in temporaries {
            self.name_counts.insert(buffer, 1);
            self.release(buffer);
        }
        Ok(())
    }
}
