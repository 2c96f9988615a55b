//! `--expect=unsharded`: evaluates a program with all shardings, stream axes and communications erased.
//!
//! Each tensor is one buffer of its logical shape on one rank, and each operator becomes instructions on
//! whole tensors (`operators`). This code shares nothing with the sharded planner, with resharding, with the
//! passes or with the assembly of shards, so that a fault in one of those shows as a difference. It shares
//! only the parser, the evaluation of scalars and the simulator's implementation of each instruction.
//!
//! Tensors have value semantics: no tensor is a view of another, and a statement that writes a tensor again, or in the
//! next iteration of a loop, replaces its value. A program whose outputs depend on which tensors are views is refused
//! (`values`).

mod construct;
mod loops;
mod lowered;
mod operators;
mod values;

use std::sync::Arc;

use grammar::{
    Code, DType, Diagnostic, ExprId, LineIndex, Op, OpStmt, Program, Source, Span, Stmt, StmtId, SymbolId,
    TensorId, axis_text,
};

use values::TensorValue;

use super::{
    failure::JobFailure,
    inputs::InputSpec,
    memory_limit::memory_limit_diagnostic,
    prepare::{PrepareOptions, prepare_program},
    verdict::{Expectation, ExpectationSource, input_mismatch, simulated_expectations},
};
use rustc_hash::FxHashMap;

use hir_plan::{
    Attention, AttentionOptions, Buffer, Inst, InstKind, IoBinding, Number, Origin, Plan, PlanStream, Shard,
    ShardLayout, View, World, dropout, limits,
    operators::{OperatorCall, OperatorFault, is_lowered},
    scalar::{ScalarError, Scalars},
};
use hir_sim::SimLimits;
use hir_tensor::generate::InputKind;

/// Returns the outputs of the program before passes, without shardings, on the same inputs, as expectations
/// for `plans`.
///
/// # Errors
/// The errors of `plan_unsharded`. Each rank has its own program, inputs are given or generated shard by
/// shard, or the plan exceeds the memory limit.
pub fn unsharded_expectations(
    sources: &[Source],
    setup: &PrepareOptions<'_>,
    limits: SimLimits<'_>,
    input_spec: &InputSpec,
    plans: &[Plan],
) -> std::result::Result<Vec<Expectation>, JobFailure> {
    let usage = |message: String| JobFailure::Usage(format!("`--expect=unsharded`: {message}"));
    let [source] = sources else {
        return Err(usage(
            "`--program` gives each rank its own program, but a single program is needed".to_owned(),
        ));
    };
    if input_spec.generator.kind == InputKind::Rank {
        return Err(usage("`--inputs rank` fills shards, but whole tensors are needed".to_owned()));
    }
    if let Some(flag) = input_spec.flags.iter().find(|it| it.local) {
        return Err(usage(format!("`--input {}@local` gives shards; give the whole tensor", flag.name)));
    }
    let setup = PrepareOptions { passes: &|_, _| Ok(()), ..*setup };
    let (source, program, _) = prepare_program(source.clone(), &setup, false)?;
    let rejected = |fault| JobFailure::Rejected(source.clone(), vec![fault]);
    let unsharded = plan_unsharded(&program, &source.lines).map_err(rejected)?;
    if let Some(fault) = memory_limit_diagnostic(program.spans.header, &unsharded, limits.memory) {
        return Err(rejected(fault));
    }
    if let Some(message) = input_mismatch(plans, &unsharded) {
        return Err(usage(format!("without shardings the program {message}")));
    }
    let inputs = input_spec.fill_corresponding(plans, &unsharded)?;
    let (mut found, notes) =
        simulated_expectations(&unsharded, inputs, "the program without shardings", limits)?;
    let exact = notes.exactness.is_exact();
    found.iter_mut().for_each(|it| it.source = ExpectationSource::Reference { exact });
    Ok(found)
}

type Result<T> = std::result::Result<T, Box<Diagnostic>>;

/// Plans the program without shardings, for a world of one rank.
///
/// # Errors
/// The program contains branches, loops over streams, views, transfers between two ranks or kernels without code, which have no
/// meaning on whole tensors. An operator is not supported, a scalar has no value, or a tensor is read that may be a view of one
/// that was written again.
pub fn plan_unsharded(program: &Program, lines: &LineIndex) -> std::result::Result<World, Diagnostic> {
    let plan = Plan::empty(0, 1, vec![PlanStream::Entry]);
    let mut planner = UnshardedPlanner {
        program,
        lines,
        scalars: Scalars::new(program, 0),
        values: vec![TensorValue::default(); program.tensors.len()],
        storage_count: 0,
        loop_depth: 0,
        arrays: FxHashMap::default(),
        plan,
        span: program.spans.header,
    };
    match planner.program() {
        Ok(()) => Ok(World::new(vec![planner.plan])),
        Err(fault) => Err(*fault),
    }
}

struct UnshardedPlanner<'p> {
    program: &'p Program,
    lines: &'p LineIndex,
    scalars: Scalars<'p>,
    /// The current value of each tensor.
    values: Vec<TensorValue>,
    /// The number of storages that names may share.
    storage_count: u32,
    /// The number of loops around the current statement.
    loop_depth: usize,
    /// Arrays of scalars, by the symbol that names them.
    arrays: FxHashMap<SymbolId, ExprId>,
    plan: Plan,
    /// Span of the statement that is being planned.
    span: Span,
}

impl UnshardedPlanner<'_> {
    fn program(&mut self) -> Result<()> {
        let program = self.program;
        for tensor in Program::tensors_of(&program.inputs) {
            self.span = program.tensor_span(tensor);
            let value = self.buffer(tensor)?;
            self.bind(tensor, value.clone());
            let port = self.port(tensor, value);
            self.plan.inputs.push(port);
        }
        for stmt in program.body() {
            self.statement(*stmt)?;
        }
        for tensor in Program::tensors_of(&program.outputs) {
            self.span = program.tensor_span(tensor);
            let value = self.value(tensor)?;
            let port = self.port(tensor, value);
            self.plan.outputs.push(port);
        }
        self.plan.code.push(Inst { kind: InstKind::ReadOutputs, stream: 0, origin: 0 });
        Ok(())
    }

    fn statement(&mut self, stmt: StmtId) -> Result<()> {
        self.span = self.program.stmt_span(stmt);
        let line = self.lines.line(self.span.start);
        Arc::make_mut(&mut self.plan.origins).push(Origin { stmt: Some(stmt), line, iteration: None });
        match &self.program.stmts[stmt] {
            Stmt::Op(it) => self.operator(stmt, it),
            Stmt::Let(_, value) if self.scalars.depends_on_rank(*value) => {
                Err(self.lowered("a scalar that depends on the rank"))
            }
            Stmt::Let(symbol, value) if construct::array_items(self.program, self, *value).is_some() => {
                self.arrays.insert(*symbol, *value);
                Ok(())
            }
            Stmt::Let(symbol, value) => {
                let value = self.scalars.eval(*value).map_err(|it| self.scalar_fault(it))?;
                self.scalars.bind(*symbol, Some(value));
                Ok(())
            }
            Stmt::For(it) => self.for_loop(stmt, it),
            Stmt::If(_) => Err(self.lowered("a branch")),
        }
    }

    fn operator(&mut self, stmt: StmtId, it: &OpStmt) -> Result<()> {
        if self.loop_depth == 0 && self.lowered_statement(it)? {
            return Ok(());
        }
        if !it.computes() && it.op != Op::Select {
            return Err(self.lowered(&format!("`{}`", it.op.name())));
        }
        let mut rank_dependent = false;
        it.scalars(&mut |expr| rank_dependent |= self.scalars.depends_on_rank(expr));
        if rank_dependent {
            return Err(self.lowered("a scalar that depends on the rank"));
        }
        if it.op == Op::Sdpa {
            return self.attention(it);
        }
        if is_lowered(self.program, it) {
            return self.lowered_operator(it);
        }
        let ([out], Some(tensor)) = (&it.outs[..], it.out_tensor()) else {
            return Err(self.unsupported(it.op));
        };
        debug_assert_eq!(out.tensor(), Some(tensor));
        let args: Vec<TensorId> = operands(it);
        let views = args.iter().map(|arg| self.value(*arg)).collect::<Result<Vec<_>>>()?;
        self.check_selected_dim(it)?;
        self.end_view(stmt, it, tensor);
        let target = self.result(tensor)?;
        for (views, targets) in hir_plan::parts(self.program, it, &views, &[target]) {
            let code = operators::instructions(self, it, &args, &views, tensor, &targets[0])?;
            code.into_iter().for_each(|kind| self.emit(kind));
        }
        self.note_view(stmt, it, tensor);
        Ok(())
    }

    /// Plans `sdpa` on whole tensors.
    fn attention(&mut self, it: &OpStmt) -> Result<()> {
        let args: Vec<TensorId> = operands(it);
        let views = args.iter().map(|arg| self.value(*arg)).collect::<Result<Vec<_>>>()?;
        let columns = views.first().and_then(|it| it.shape.last()).copied().unwrap_or(0);
        let scalar = |it| self.scalars.eval(it).map_err(|it| self.scalar_fault(it));
        let refuse = |why: &str| {
            self.diagnostic(Code::Unsupported, format!("this `{}` does not run: {why}", it.op.name()))
        };
        let options = AttentionOptions::of(self.program, it, columns, scalar, refuse)?;
        let results =
            Program::tensors_of(&it.outs).map(|out| self.result(out)).collect::<Result<Vec<_>>>()?;
        let mut results = results.into_iter();
        let Some(out) = results.next() else { return Ok(()) };
        let keys = views.get(1).and_then(|it| it.shape.iter().rev().nth(1)).copied().unwrap_or(0);
        let (layout, first) = (ShardLayout::whole(&out.shape), self.plan.buffers.len() as u32);
        let mut keep = None;
        if let Some((code, drawn)) = dropout(&options, (keys, &layout), &out, 0, first) {
            self.add_temporaries(code.buffers);
            code.code.into_iter().for_each(|kind| self.emit(kind));
            keep = Some(drawn);
        }
        let attention = Attention::of(&views, &options, keep, out, results.next())
            .map_err(|(have, want)| self.shape_mismatch(it.op, &have, &want))?;
        self.emit(InstKind::Attention(Box::new(attention)));
        for (state, value) in results.zip([0, options.offset]) {
            self.emit(InstKind::Fill { to: Box::new(state), value: Number::Int(value) });
        }
        Ok(())
    }

    /// Plans an operator that is several instructions.
    fn lowered_operator(&mut self, it: &OpStmt) -> Result<()> {
        let operands = operands(it).iter().map(|arg| self.value(*arg)).collect::<Result<Vec<_>>>()?;
        let results =
            Program::tensors_of(&it.outs).map(|out| self.result(out)).collect::<Result<Vec<_>>>()?;
        let layout = ShardLayout::whole(results.first().map_or(&[], |it| &it.shape));
        for (operands, results) in hir_plan::parts(self.program, it, &operands, &results) {
            let value = |it| self.scalars.eval(it).ok();
            let (program, first) = (self.program, self.plan.buffers.len() as u32);
            let call = OperatorCall {
                program,
                stmt: it,
                operands: &operands,
                results: &results,
                layout: &layout,
                value: &value,
            };
            let lowered = hir_plan::operators::lower(&call, 0, first);
            let (code, buffers) = lowered.map_err(|fault| self.operator_fault(it.op, fault))?;
            self.add_temporaries(buffers);
            code.into_iter().for_each(|kind| self.emit(kind));
        }
        Ok(())
    }

    /// Adds temporary buffers, and allocates them.
    fn add_temporaries(&mut self, buffers: Vec<Buffer>) {
        let first = self.plan.buffers.len() as u32;
        let numbers = first..first + buffers.len() as u32;
        self.plan.buffers.extend(buffers);
        numbers.for_each(|buffer| self.emit(InstKind::Alloc { buffer, zeroed: None }));
    }

    fn emit(&mut self, kind: InstKind) {
        let origin = self.plan.origins.len() as u32 - 1;
        self.plan.code.push(Inst { kind, stream: 0, origin });
    }

    // ---- tensors

    /// Creates a buffer with the logical shape of the tensor.
    fn buffer(&mut self, tensor: TensorId) -> Result<View> {
        let shape = self.shape(tensor)?;
        let dtype = self.dtype(tensor);
        if matches!(dtype, DType::Composite(_)) {
            return Err(self.diagnostic(Code::Unsupported, format!("element type `{dtype}` does not run")));
        }
        let name = self.program.tensor_name(tensor);
        let (buffer, view) = Buffer::of_elements(name, dtype, self.plan.buffers.len() as u32, shape);
        self.plan.buffers.push(buffer);
        Ok(view)
    }

    /// Returns the extents of the logical axes, without reduction axes.
    fn shape(&self, tensor: TensorId) -> Result<Vec<usize>> {
        let (mut shape, mut elements) = (Vec::new(), 1usize);
        for axis in self.program.dimensions(tensor) {
            let it = &self.program.axes[axis];
            let value =
                self.scalars.int(it.expanded.unwrap_or(it.extent)).map_err(|it| self.scalar_fault(it))?;
            let Some(extent) = usize::try_from(value).ok().filter(|_| !it.is_ragged) else {
                let message =
                    format!("`{}` of extent {value} is not a valid dimension", axis_text(self.program, axis));
                return Err(self.diagnostic(Code::Unsupported, message));
            };
            elements = elements.saturating_mul(extent.max(1));
            shape.push(extent);
        }
        if elements > limits::MAX_TENSOR_ELEMENTS {
            let name = self.program.tensor_name(tensor);
            let message = format!("`{name}` has more than {} elements", limits::MAX_TENSOR_ELEMENTS);
            return Err(self.diagnostic(Code::TooLarge, message));
        }
        Ok(shape)
    }

    /// Returns the element type, as in the sharded planner: dialects before September 2024 print no type,
    /// which means float.
    fn dtype(&self, tensor: TensorId) -> DType {
        self.program.tensors[tensor].dtype.unwrap_or(DType::Float)
    }

    fn port(&self, tensor: TensorId, view: View) -> IoBinding {
        let layout = ShardLayout::whole(&view.shape);
        let (name, dtype) = (self.program.tensor_name(tensor), self.dtype(tensor));
        IoBinding {
            name,
            dtype,
            printed_axes: None,
            broadcast: vec![false; layout.shape.len()],
            is_compared_per_rank: false,
            shard: Shard { view: Some(view), layout },
        }
        .with_parts()
    }

    // ---- diagnostics

    fn diagnostic(&self, code: Code, message: String) -> Box<Diagnostic> {
        Box::new(Diagnostic::new(code, self.span, format!("{message} (`--expect=unsharded`)"), "here"))
    }

    fn lowered(&self, what: &str) -> Box<Diagnostic> {
        let message = format!("{what} has no meaning without shardings: the program is already lowered");
        let it = self.diagnostic(Code::InvalidReference, message);
        Box::new(it.help(
            "compare with the program that it was lowered from: `--reference SPEC.hir`, or give that program and `--passes`",
        ))
    }

    fn unsupported(&self, op: Op) -> Box<Diagnostic> {
        self.diagnostic(Code::Unsupported, format!("`{}` does not run", op.name()))
    }

    fn shape_mismatch(&self, op: Op, have: &[usize], want: &[usize]) -> Box<Diagnostic> {
        let message = format!("`{}`: the shape {have:?} does not fit {want:?}", op.name());
        self.diagnostic(Code::RuntimeShape, message)
    }

    fn operator_fault(&self, op: Op, fault: OperatorFault) -> Box<Diagnostic> {
        match fault {
            OperatorFault::Shape(have, want) => self.shape_mismatch(op, &have, &want),
            OperatorFault::Unsupported(why) => {
                self.diagnostic(Code::Unsupported, format!("this `{}` does not run: {why}", op.name()))
            }
            OperatorFault::Scalar(expr) => match self.scalars.eval(expr) {
                Ok(_) => self.unsupported(op),
                Err(fault) => self.scalar_fault(fault),
            },
        }
    }

    fn scalar_fault(&self, fault: ScalarError) -> Box<Diagnostic> {
        match fault {
            ScalarError::Unbound(symbol) => {
                let name = &self.program.symbols[symbol];
                let it = self.diagnostic(Code::UnboundSymbol, format!("`{name}` has no value"));
                Box::new(it.help(format!("give it with `--set {name}=…`")))
            }
            ScalarError::Arithmetic(message) => self.diagnostic(Code::BadIndex, message),
        }
    }
}

/// Returns the tensors that an operator reads, positional operands first.
fn operands(it: &OpStmt) -> Vec<TensorId> {
    let keyed = it.attrs.iter().filter_map(|(_, attr)| attr.tensor());
    Program::tensors_of(&it.args).chain(keyed).collect()
}
