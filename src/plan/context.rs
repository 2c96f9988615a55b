//! The state of planning one rank: names, storage, errors, scalars, and the instructions emitted so far. All
//! lowerings use it.

use std::sync::Arc;

use grammar::{
    BlockId, Code, DType, Diagnostic, ExprId, LineIndex, Op, Program, Span, Stmt, StmtId, SymbolId, TensorId,
    attr::AttrName,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Backend, Buffer, BufferNo, CallerUses, CommunicatorNo, EventNo, Inst, InstKind, Number, Origin, P2pOp,
    Plan, PlanStream, StreamNo, View, ViewKey, WorkNo,
    caching_allocator::CachingAllocator,
    limits,
    posted::{AfterWait, Dispatched, GatheredView, PostedComm, Request},
    scalar::{ScalarError, Scalars, Value},
    shape::{self, LayoutError},
    teams::Teams,
};

/// The view that a tensor name is bound to.
#[derive(Clone, Debug)]
pub(super) struct Binding {
    /// The elements.
    pub(super) view: View,
    /// The stream whose slice this is, for tensors that hold one stream's slice.
    pub(super) stream: Option<usize>,
    /// The statement that made the name a view of its operand, in place of a copy.
    pub(super) copied_by: Option<StmtId>,
}

/// An array: its elements in row-major order and its shape. The shape of a scalar is empty.
#[derive(Clone, Debug)]
pub(super) struct Array {
    pub(super) shape: Vec<usize>,
    pub(super) elements: Vec<Number>,
}

/// The reason of `PlanBuilder::unsupported` for an operator that no executor implements.
pub(super) const NOT_IMPLEMENTED: &str = "";

/// A result whose error ends the planning of the rank.
pub(super) type Result<T> = std::result::Result<T, Box<Diagnostic>>;

/// The state of planning one rank.
pub(super) struct PlanBuilder<'p> {
    pub(super) program: &'p Program,
    pub(super) lines: &'p LineIndex,
    pub(super) uses: &'p CallerUses<'p>,
    pub(super) scalars: Scalars<'p>,
    /// The arrays that definitions have named so far: `a5 = {i0, i1}`.
    pub(super) arrays: FxHashMap<SymbolId, Result<Array>>,
    pub(super) bindings: Vec<Option<Binding>>,
    /// The number of references to each buffer: names bound to it, and posted communications that keep it (`held_operands`).
    pub(super) name_counts: FxHashMap<BufferNo, usize>,
    /// How many of these are by communications: those of `held` and `held_by_handles`, which each removal of a name would have to search.
    pub(super) hold_counts: FxHashMap<BufferNo, usize>,
    /// The buffers that each communication keeps until the program waits for it.
    pub(super) held: FxHashMap<WorkNo, Vec<BufferNo>>,
    /// How many of these hold each buffer that PyTorch does not release in the next call (`held_operands`).
    pub(super) firm_holds: FxHashMap<BufferNo, usize>,
    /// By communicator of NCCL: what was posted since the last call.
    pub(super) last_calls: FxHashMap<CommunicatorNo, Vec<WorkNo>>,
    /// The communications of which PyTorch may have released the operands.
    pub(super) watched: FxHashSet<WorkNo>,
    /// The buffers that handles of peers' memory keep (`held_operands`).
    pub(super) held_by_handles: FxHashSet<BufferNo>,
    pub(super) allocator: CachingAllocator,
    /// The streams that are recorded for each buffer.
    pub(super) recorded: FxHashMap<BufferNo, Vec<StreamNo>>,
    /// For tensors of which this rank holds no part: the stream whose slice the tensor holds on the other
    /// ranks.
    pub(super) slices: FxHashMap<TensorId, usize>,
    pub(super) plan: Plan,
    pub(super) streams: FxHashMap<StreamKey, StreamNo>,
    pub(super) current: StreamNo,
    /// The event for which the host has waited last.
    pub(super) host_wait: Option<EventNo>,
    /// The loops with conditions around the current statement, outermost first.
    pub(super) open_loops: Vec<OpenLoop>,
    /// The source range of the current statement.
    pub(super) span: Span,
    pub(super) origin: OriginNo,
    pub(super) iteration: Option<u32>,
    /// The number of statements executed and array elements evaluated so far, limited by
    /// `limits::MAX_RANK_INSTRUCTIONS`.
    pub(super) work: usize,
    /// The number of enclosing branches and loops whose condition or bounds depend on the rank.
    pub(super) divergence_depth: usize,
    /// The statements that were executed in such a branch or loop.
    pub(super) divergent: FxHashSet<StmtId>,
    /// By work: what the statement requests.
    pub(super) requests: Vec<Request>,
    /// The communications that this rank has come to, by the number that `Wait` refers to.
    pub(super) posted: FxHashMap<u32, PostedComm>,
    /// By work: what follows the wait for it.
    pub(super) after_wait: FxHashMap<WorkNo, AfterWait>,
    /// The views of the shards of all ranks.
    pub(super) gathered: Vec<GatheredView>,
    /// The dispatches of rows that are not combined.
    pub(super) dispatched: Vec<Dispatched>,
    /// The sends and receives collected since StartCoalescing.
    pub(super) coalesced_ops: Option<Vec<P2pOp>>,
    pub(super) comm: Communications,
    /// The teams of all ranks.
    pub(super) teams: &'p Teams,
    /// By loop body: the tensors that are defined from the loop index.
    pub(super) dependents: FxHashMap<BlockId, Vec<TensorId>>,
    /// By tensor: the statement that unbound it last, a loop over an axis or a Deallocate.
    pub(super) unbound_by: FxHashMap<TensorId, StmtId>,
}

/// A loop with a condition whose iterations are being planned.
pub(super) struct OpenLoop {
    /// The header.
    pub(super) stmt: StmtId,
    /// The event that is recorded at its end.
    pub(super) end: EventNo,
    /// The names that are bound before it.
    pub(super) bindings: Vec<Option<Binding>>,
    /// Where the host finds the condition, once it is known.
    pub(super) condition: Option<View>,
}

/// The origin of the current statement. It is added to the plan when the first instruction of the statement
/// needs it.
#[derive(Clone, Copy)]
pub(super) enum OriginNo {
    /// An index into `Plan::origins`.
    Known(u32),
    /// A statement and its innermost iteration, which are not in the plan yet.
    New(StmtId, Option<u32>),
}

/// The identity of a stream: equal keys denote the same stream.
#[derive(PartialEq, Eq, Hash)]
pub(super) enum StreamKey {
    Named(u32),
    Index(i64),
}

/// The communicators and memory handles of a rank so far.
#[derive(Default)]
pub(super) struct Communications {
    /// Communicators by backend and by the address of the shared team.
    pub(super) communicators: FxHashMap<(Backend, *const [usize]), CommunicatorNo>,
    /// Handles shared so far, by number, peer and view: the index of the exchange among those of its sender and receiver.
    pub(super) shared: FxHashMap<(u32, usize, ViewKey), u32>,
    /// The number of handles exchanged so far, by sender and receiver.
    pub(super) exchanged: FxHashMap<(usize, usize), u32>,
}

impl<'p> PlanBuilder<'p> {
    /// Returns the initial state of a rank.
    pub(super) fn new(
        (program, lines): (&'p Program, &'p LineIndex),
        rank: usize,
        teams: &'p Teams,
        uses: &'p CallerUses<'p>,
    ) -> Self {
        Self {
            program,
            lines,
            uses,
            scalars: Scalars::new(program, rank),
            arrays: FxHashMap::default(),
            bindings: vec![None; program.tensors.len()],
            name_counts: FxHashMap::default(),
            hold_counts: FxHashMap::default(),
            held: FxHashMap::default(),
            firm_holds: FxHashMap::default(),
            last_calls: FxHashMap::default(),
            watched: FxHashSet::default(),
            held_by_handles: FxHashSet::default(),
            allocator: CachingAllocator::default(),
            recorded: FxHashMap::default(),
            slices: FxHashMap::default(),
            plan: Plan::empty(rank, teams.world().len(), vec![PlanStream::Entry]),
            streams: FxHashMap::default(),
            current: 0,
            host_wait: None,
            open_loops: Vec::new(),
            span: program.spans.header,
            origin: OriginNo::Known(0),
            iteration: None,
            work: 0,
            divergence_depth: 0,
            divergent: FxHashSet::default(),
            requests: Vec::new(),
            posted: FxHashMap::default(),
            after_wait: FxHashMap::default(),
            dispatched: Vec::new(),
            gathered: Vec::new(),
            coalesced_ops: None,
            comm: Communications::default(),
            teams,
            dependents: FxHashMap::default(),
            unbound_by: FxHashMap::default(),
        }
    }
}

impl PlanBuilder<'_> {
    pub(super) fn rank(&self) -> usize {
        self.plan.rank
    }

    // ---- names

    pub(super) fn dtype(&self, tensor: TensorId) -> DType {
        // Dialects before September 2024 do not print the type. nvFuser's default is float.
        self.program.tensors[tensor].dtype.unwrap_or(DType::Float)
    }

    /// Adds a buffer for elements of a tensor, and returns the view of all of them.
    pub(super) fn buffer(&mut self, tensor: TensorId, shape: Vec<usize>) -> View {
        let (name, number) = (self.program.tensor_name(tensor), self.plan.buffers.len() as BufferNo);
        let (buffer, view) = Buffer::of_elements(name, self.dtype(tensor), number, shape);
        self.plan.buffers.push(buffer);
        view
    }

    pub(super) fn layout(&self, tensor: TensorId) -> Result<super::ShardLayout> {
        self.layout_on(tensor, self.rank())
    }

    /// Returns the layout of a tensor on any rank of its mesh, evaluated with this rank's scalars.
    pub(super) fn layout_on(&self, tensor: TensorId, rank: usize) -> Result<super::ShardLayout> {
        self.layout_of_slice(tensor, rank, None)
    }

    /// Like `layout_on`. `stream` is the slice that the tensor holds if its binding does not determine the
    /// slice.
    pub(super) fn layout_of_slice(
        &self,
        tensor: TensorId,
        rank: usize,
        stream: Option<usize>,
    ) -> Result<super::ShardLayout> {
        let ragged =
            self.program.tensors[tensor].loop_domain.iter().find(|it| self.program.axes[**it].is_ragged);
        let reason = match (self.dtype(tensor), ragged) {
            (dtype @ DType::Composite(_), _) => Some(format!("its element type is `{dtype}`")),
            (_, Some(axis)) => Some(format!("axis `{}` is ragged", grammar::axis_text(self.program, *axis))),
            (_, None) => None,
        };
        if let Some(reason) = reason {
            let message =
                format!("hir cannot run a program with `{}`: {reason}", self.program.tensor_name(tensor));
            let label = "neither the simulator nor the GPU executor runs this";
            return Err(Box::new(Diagnostic::new(Code::Unsupported, self.span, message, label)));
        }
        let stream = self.binding(tensor).and_then(|it| it.stream).or(stream);
        shape::shard_layout(self.program, &self.scalars, tensor, rank, stream).map_err(|fault| {
            let name = self.program.tensor_name(tensor);
            match fault {
                LayoutError::Scalar(fault) => self.scalar_error(fault, &format!("an extent of `{name}`")),
                LayoutError::Extent(message) => {
                    let it = self.error(Code::BadIndex, format!("`{name}`: {message}"), "needed here");
                    Box::new(it.help("change the extent, or set its scalars to other numbers with `--set`"))
                }
                LayoutError::Indivisible { message, extent } => {
                    let it = self.error(Code::BadIndex, format!("`{name}`: {message}"), "needed here");
                    Box::new(it.help(format!(
                        "use an extent that is a multiple; if a pass chose the number of chunks, set its option `count`, as in `chunk{{count=…}}` or `@overlap{{overlap.count=…}}`, to a divisor of {extent}"
                    )))
                }
                LayoutError::Size => {
                    let message = format!(
                        "the extents of `{name}` multiply to more than {} elements",
                        limits::MAX_TENSOR_ELEMENTS
                    );
                    let it = self.error(Code::TooLarge, message, "needed here");
                    let it = it.help("use smaller extents; `--set` sets symbolic ones");
                    Box::new(it.note(
                        "an extent of 0 counts as 1, since the other extents still determine the strides",
                    ))
                }
            }
        })
    }

    // ---- errors

    /// Returns an error at the current statement, with the rank and the loop iteration in its message.
    pub(super) fn error(
        &self,
        code: Code,
        message: impl Into<String>,
        label: impl Into<String>,
    ) -> Box<Diagnostic> {
        let mut place = format!("rank {}", self.rank());
        let mut frame = self.iteration;
        while let Some(it) = frame.map(|at| &self.plan.iterations[at as usize]) {
            place += &format!(", {}={}", it.name, it.value);
            frame = it.parent;
        }
        Box::new(Diagnostic::new(code, self.span, format!("{} ({place})", message.into()), label))
    }

    pub(super) fn scalar_error(&self, fault: ScalarError, what: &str) -> Box<Diagnostic> {
        match fault {
            ScalarError::Unbound(symbol) => {
                let name = &self.program.symbols[symbol];
                let message = format!("{what} needs `{name}`, which has no value here");
                let it = self.error(Code::UnboundSymbol, message, "needed here");
                let is_index = |stmt: &Stmt| matches!(stmt, Stmt::For(own) if own.index == symbol);
                let around = self.program.stmts.iter().find(|(_, stmt)| is_index(stmt));
                Box::new(match around {
                    Some((id, _)) => it
                        .label(
                            self.program.stmt_span(id),
                            format!("`{name}` has a value only in the body of this loop"),
                        )
                        .help("indent the statement as the body of the loop, or move it there"),
                    None => it.help(format!("set it with `--set {name}=…`")),
                })
            }
            ScalarError::Arithmetic(message) => {
                let it = self.error(Code::BadIndex, format!("{what}: {message}"), "needed here");
                Box::new(it.help("change the expression, or set its scalars to other numbers with `--set`"))
            }
        }
    }

    pub(super) fn int(&self, expr: ExprId, what: &str) -> Result<i64> {
        self.scalars.int(expr).map_err(|fault| self.scalar_error(fault, what))
    }

    pub(super) fn value(&self, expr: ExprId, what: &str) -> Result<Value> {
        self.scalars.eval(expr).map_err(|fault| self.scalar_error(fault, what))
    }

    /// Evaluates an index.
    ///
    /// # Errors
    /// The value is negative, or not below `bound`. The error is located at `place`.
    pub(super) fn index(&self, expr: ExprId, bound: usize, what: &str, place: Span) -> Result<usize> {
        let value = self.int(expr, what)?;
        let index = usize::try_from(value).ok().filter(|index| *index < bound);
        index.ok_or_else(|| {
            let text = grammar::expr_text(self.program, expr);
            let shown = if text == value.to_string() {
                format!("{what} is {value}")
            } else {
                format!("{what} `{text}` is {value}")
            };
            let last = bound as i64 - 1;
            let message = format!("{shown}, which is outside of 0 to {last}");
            let mut it = self.error(Code::BadIndex, message, format!("expected 0 to {last}"));
            it.labels.iter_mut().for_each(|(span, _)| *span = place);
            it
        })
    }

    /// Returns the position of an attribute of the current statement.
    pub(super) fn attr_span(&self, attr: AttrName) -> Span {
        self.current_stmt().map_or(self.span, |stmt| self.program.attr_span(stmt, attr))
    }

    pub(super) fn unsupported(&self, op: Op, why: &str) -> Box<Diagnostic> {
        let message = match why {
            NOT_IMPLEMENTED => format!("hir cannot run `{}`", op.name()),
            why => format!("hir cannot run this `{}`: {why}", op.name()),
        };
        let label = "neither the simulator nor the GPU executor runs this";
        let it = Diagnostic::new(Code::Unsupported, self.span, message, label);
        Box::new(it.help("replace it by statements that hir runs (`hir-opt --list-ops` lists all operators)"))
    }

    // ---- instructions

    pub(super) fn emit(&mut self, kind: InstKind) {
        self.emit_on(self.current, kind);
    }

    pub(super) fn emit_on(&mut self, stream: StreamNo, kind: InstKind) {
        let origin = self.origin_no();
        match kind {
            InstKind::Wait { work } => self.release_operands(work),
            _ => self.hold_operands(&kind),
        }
        self.plan.code.push(Inst { kind, stream, origin });
    }

    /// Returns the current statement.
    pub(super) fn current_stmt(&self) -> Option<StmtId> {
        match self.origin {
            OriginNo::Known(origin) => self.plan.origins[origin as usize].stmt,
            OriginNo::New(stmt, _) => Some(stmt),
        }
    }

    /// Returns the index of the current statement in `Plan::origins`, and adds it there if it is new.
    pub(super) fn origin_no(&mut self) -> u32 {
        match self.origin {
            OriginNo::Known(origin) => origin,
            OriginNo::New(stmt, iteration) => {
                let origin = self.plan.origins.len() as u32;
                let line = self.lines.line(self.program.stmt_span(stmt).start);
                let it = Origin { stmt: Some(stmt), line, iteration };
                Arc::make_mut(&mut self.plan.origins).push(it);
                self.origin = OriginNo::Known(origin);
                origin
            }
        }
    }

    /// Makes a statement the current one: instructions and errors refer to it from now on.
    ///
    /// # Errors
    /// The program unrolls to too many instructions.
    pub(super) fn enter_statement(&mut self, stmt: StmtId) -> Result<()> {
        self.span = self.program.stmt_span(stmt);
        self.origin = OriginNo::New(stmt, self.iteration);
        self.work += 1;
        if self.is_divergent() {
            self.divergent.insert(stmt);
        }
        self.check_instruction_limit(self.work.max(self.plan.code.len()))
    }

    /// Reports an error if `count` instructions, or loop iterations without instructions, exceed the limit.
    pub(super) fn check_instruction_limit(&self, count: usize) -> Result<()> {
        if count > limits::MAX_RANK_INSTRUCTIONS {
            let message =
                format!("the program unrolls to more than {} instructions", limits::MAX_RANK_INSTRUCTIONS);
            return Err(self.error(Code::TooLong, message, "the limit is reached here"));
        }
        Ok(())
    }

    pub(super) fn is_divergent(&self) -> bool {
        self.divergence_depth > 0
    }
}
