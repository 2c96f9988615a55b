//! `--expect=unsharded`: what a program means when every sharding, stream axis and communication is erased.
//!
//! Each tensor is one buffer of its logical shape on one rank, and each operator becomes instructions on whole tensors
//! (`operators`). Nothing of this is shared with the planner of shards, with resharding, with the passes or with what puts
//! shards together, so that a fault in one of those shows as a difference. What it shares with them is the text's
//! reader, the evaluation of scalars and the simulator's definition of each instruction.
//!
//! Every tensor is a value: one statement gives it, in a buffer of its own, and no name is a view of another one.

mod construct;
mod operators;

use std::sync::Arc;

use grammar::{
    arena::Id,
    axis_text,
    codes::Code,
    diagnostic::Diagnostic,
    dtype::DType,
    ir::{ExprId, OpStmt, Program, Stmt, StmtId, SymbolId, TensorId},
    ops::{Op, OpClass},
    span::{LineIndex, Span},
};

use super::{
    inputs::InputSpec,
    prepare::{JobFailure, PrepareOptions, memory_limit_diagnostic, prepare_program},
    verdict::{Expectation, ExpectationSource, input_mismatch, simulated_expectations},
};
use rustc_hash::FxHashMap;

use crate::{
    exit::Exit,
    io::generate::InputKind,
    plan::{
        Buffer, Inst, InstKind, IoBinding, Origin, Plan, Shard, ShardLayout, View, limits,
        scalar::{ScalarError, Scalars},
    },
    source::Source,
};

/// What the outputs of `plans` have to be: those of the program before passes, without shardings, on the same inputs.
///
/// # Errors
/// As `plan`; a program for each rank, inputs that are given or made shard by shard, more memory than the limit.
pub fn unsharded_expectations(
    sources: &[Source],
    setup: &PrepareOptions<'_>,
    memory_limit: usize,
    filling: &InputSpec,
    plans: &[Plan],
) -> std::result::Result<Vec<Expectation>, JobFailure> {
    let usage = |message: String| JobFailure::Other(Exit::Usage, format!("`--expect=unsharded`: {message}"));
    let [source] = sources else {
        return Err(usage("`--program` gives each rank its own program, and one is needed".to_owned()));
    };
    if filling.generator.kind == InputKind::Rank {
        return Err(usage("`--inputs rank` fills shards, and whole tensors are needed".to_owned()));
    }
    if let Some(flag) = filling.flags.iter().find(|it| it.local) {
        return Err(usage(format!("`--input {}@local` gives shards; give the whole tensor", flag.name)));
    }
    let setup = PrepareOptions { passes: &|_, _| Ok(()), ..*setup };
    let (source, program, _) = prepare_program(source.clone(), &setup, false)?;
    let rejected = |fault| JobFailure::Rejected(source.clone(), vec![fault]);
    let erased = [plan_unsharded(&program, &source.lines).map_err(rejected)?];
    if let Some(fault) = memory_limit_diagnostic(program.spans.header, &erased, memory_limit) {
        return Err(rejected(fault));
    }
    if let Some(message) = input_mismatch(plans, &erased) {
        return Err(usage(format!("without shardings the program {message}")));
    }
    let inputs = filling.fill_corresponding(plans, &erased)?;
    let (mut found, notes) = simulated_expectations(&erased, inputs, "the program without shardings")?;
    let exact = notes.exactness.is_exact();
    found.iter_mut().for_each(|it| it.source = ExpectationSource::Reference { exact });
    Ok(found)
}

type Result<T> = std::result::Result<T, Box<Diagnostic>>;

/// The plan of the program without shardings, for a world of one rank.
///
/// # Errors
/// A program that is lowered already: it holds communications, streams, storage, loops or launches. An operator that does
/// not run, a scalar without a value, a tensor that is written twice.
pub fn plan_unsharded(program: &Program, lines: &LineIndex) -> std::result::Result<Plan, Diagnostic> {
    let plan = Plan::empty(0, 1, vec!["main".to_owned()]);
    let mut eraser = UnshardedPlanner {
        program,
        lines,
        scalars: Scalars::new(program, 0),
        values: vec![None; program.tensors.len()],
        arrays: FxHashMap::default(),
        plan,
        span: program.spans.header,
    };
    match eraser.program() {
        Ok(()) => Ok(eraser.plan),
        Err(fault) => Err(*fault),
    }
}

struct UnshardedPlanner<'p> {
    program: &'p Program,
    lines: &'p LineIndex,
    scalars: Scalars<'p>,
    /// The latest value of each tensor.
    values: Vec<Option<View>>,
    /// Arrays of scalars by the symbols that statements call them.
    arrays: FxHashMap<SymbolId, ExprId>,
    plan: Plan,
    /// The statement that is erased.
    span: Span,
}

impl UnshardedPlanner<'_> {
    fn program(&mut self) -> Result<()> {
        let program = self.program;
        for tensor in Program::tensors_of(&program.inputs) {
            self.span = program.tensor_span(tensor);
            let value = self.buffer(tensor)?;
            self.values[tensor.index()] = Some(value.clone());
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
            Stmt::Op(it) => self.operator(it),
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
            Stmt::For(_) => Err(self.lowered("a loop")),
            Stmt::If(_) => Err(self.lowered("a branch")),
        }
    }

    fn operator(&mut self, it: &OpStmt) -> Result<()> {
        match it.op.def().class {
            OpClass::Compute | OpClass::Elementwise => (),
            OpClass::View if it.op == Op::Select => (),
            OpClass::View
            | OpClass::Allocate
            | OpClass::Deallocate
            | OpClass::Communicate
            | OpClass::Wait
            | OpClass::Stream
            | OpClass::Coalescing
            | OpClass::ShareHandles
            | OpClass::HostUnit
            | OpClass::Opaque => return Err(self.lowered(&format!("`{}`", it.op.name()))),
        }
        let mut rank_dependent = false;
        it.scalars(&mut |expr| rank_dependent |= self.scalars.depends_on_rank(expr));
        if rank_dependent {
            return Err(self.lowered("a scalar that depends on the rank"));
        }
        let ([out], Some(tensor)) = (&it.outs[..], it.out_tensor()) else {
            return Err(self.unsupported(it.op));
        };
        debug_assert_eq!(out.tensor(), Some(tensor));
        if self.values[tensor.index()].is_some() {
            let name = self.program.tensor_name(tensor);
            let message = format!("`{name}` is written again: what has no storage has one value");
            let it = self.diagnostic(Code::InvalidReference, message);
            return Err(Box::new(it.help("give the second result a name of its own")));
        }
        let args: Vec<TensorId> = operands(it);
        let views = args.iter().map(|arg| self.value(*arg)).collect::<Result<Vec<_>>>()?;
        let target = self.buffer(tensor)?;
        let mut code = vec![InstKind::Alloc { buffer: target.buffer, zero: false }];
        code.extend(operators::instructions(self, it, &args, &views, tensor, &target)?);
        let origin = self.plan.origins.len() as u32 - 1;
        self.plan.code.extend(code.into_iter().map(|kind| Inst { kind, stream: 0, origin }));
        self.values[tensor.index()] = Some(target);
        Ok(())
    }

    // ---- tensors

    /// A new buffer of the tensor's logical shape.
    fn buffer(&mut self, tensor: TensorId) -> Result<View> {
        let shape = self.shape(tensor)?;
        let dtype = self.dtype(tensor);
        if matches!(dtype, DType::Composite(_)) {
            return Err(self.diagnostic(Code::Unsupported, format!("element type `{dtype}` does not run")));
        }
        let name = self.program.tensor_name(tensor);
        self.plan.buffers.push(Buffer { name, dtype, len: shape.iter().product() });
        Ok(View::contiguous(self.plan.buffers.len() as u32 - 1, shape))
    }

    /// Extents of the logical axes that are no reductions.
    fn shape(&self, tensor: TensorId) -> Result<Vec<usize>> {
        let (mut shape, mut elements) = (Vec::new(), 1usize);
        for axis in self.program.dimensions(tensor) {
            let it = &self.program.axes[axis];
            let value =
                self.scalars.int(it.expanded.unwrap_or(it.extent)).map_err(|it| self.scalar_fault(it))?;
            let Some(extent) = usize::try_from(value).ok().filter(|_| !it.is_ragged) else {
                let message =
                    format!("`{}` of extent {value} is no dimension", axis_text(self.program, axis));
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

    /// As the planner has it: dialects before September 2024 print no type, and mean float.
    fn dtype(&self, tensor: TensorId) -> DType {
        self.program.tensors[tensor].dtype.unwrap_or(DType::Float)
    }

    fn value(&self, tensor: TensorId) -> Result<View> {
        self.values[tensor.index()].clone().ok_or_else(|| {
            let name = self.program.tensor_name(tensor);
            self.diagnostic(Code::UndefinedTensor, format!("no statement gives `{name}` a value"))
        })
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
    }

    // ---- faults

    fn diagnostic(&self, code: Code, message: String) -> Box<Diagnostic> {
        Box::new(Diagnostic::new(code, self.span, format!("{message} (`--expect=unsharded`)"), "here"))
    }

    fn lowered(&self, what: &str) -> Box<Diagnostic> {
        let message = format!("{what} has no meaning without shardings: the program is lowered");
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

/// The tensors that an operator reads, positional ones first.
fn operands(it: &OpStmt) -> Vec<TensorId> {
    let keyed = it.attrs.iter().filter_map(|(_, attr)| attr.tensor());
    Program::tensors_of(&it.args).chain(keyed).collect()
}
