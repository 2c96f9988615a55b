//! Collects the tensors, axes, scalars, streams and communications of a program in the order in which its
//! text mentions them.

use grammar::{
    Attr, AxesState, AxisId, BlockId, ExprId, OpStmt, Operand, Program, Stmt, Stream, SymbolId, TensorId,
    Transform, UnitId,
};
use indexmap::{IndexMap, IndexSet};
use rustc_hash::{FxHashMap, FxHashSet};

/// Everything that a program mentions, in textual order.
pub struct MentionOrder<'p> {
    pub program: &'p Program,
    /// The HostUnit whose text is being visited; `None` for the container.
    pub namespace: Option<UnitId>,
    pub tensors: IndexSet<TensorId>,
    /// Axes, each with its namespace. Of axes that print the same, only the first is kept.
    pub axes: IndexSet<AxisId>,
    pub axis_spaces: FxHashMap<AxisId, Option<UnitId>>,
    /// Axes by namespace and number.
    pub by_number: FxHashMap<(Option<UnitId>, u32), Vec<AxisId>>,
    /// For an axis, the axes that must get smaller numbers than it.
    pub smaller: FxHashMap<AxisId, Vec<AxisId>>,
    pub streams: IndexSet<u32>,
    pub works: IndexSet<NumberedWork>,
    pub symbols: IndexMap<SymbolId, Option<UnitId>>,
    /// Scalars of the container that the program assigns or defines.
    pub defined: FxHashSet<SymbolId>,
    /// Number of assignments in scope at the current position, by scalar.
    pub known: FxHashMap<SymbolId, usize>,
    /// Scalars that are used where no value is in scope.
    pub free: FxHashSet<SymbolId>,
    pub definitions: IndexSet<SymbolId>,
}

/// An entity that takes its number from the counter of posted communications.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum NumberedWork {
    Posted(u32),
    Unit(UnitId),
}

impl<'p> MentionOrder<'p> {
    pub fn new(program: &'p Program) -> Self {
        let defined: FxHashSet<SymbolId> = program.definitions.keys().copied().collect();
        Self {
            program,
            namespace: None,
            tensors: IndexSet::new(),
            axes: IndexSet::new(),
            axis_spaces: FxHashMap::default(),
            by_number: FxHashMap::default(),
            smaller: FxHashMap::default(),
            streams: IndexSet::new(),
            works: IndexSet::new(),
            symbols: IndexMap::new(),
            known: defined.iter().map(|it| (*it, 1)).collect(),
            defined,
            free: FxHashSet::default(),
            definitions: IndexSet::new(),
        }
    }

    // ---- mentions in the text

    pub fn block(&mut self, block: BlockId) {
        let program = self.program;
        for stmt in program.block(block) {
            match &program.stmts[*stmt] {
                Stmt::Op(it) => self.op(it),
                Stmt::Let(symbol, value) => {
                    self.binder(*symbol);
                    self.scalar(*value);
                    *self.known.entry(*symbol).or_default() += 1;
                }
                Stmt::For(for_loop) => {
                    self.binder(for_loop.index);
                    match for_loop.axis {
                        Some(axis) => self.axis(axis),
                        None => {
                            [for_loop.start, for_loop.stop].into_iter().for_each(|bound| self.scalar(bound))
                        }
                    }
                    *self.known.entry(for_loop.index).or_default() += 1;
                    self.block(for_loop.body);
                    *self.known.entry(for_loop.index).or_default() -= 1;
                }
                Stmt::If(it) => {
                    self.scalar(it.cond);
                    self.block(it.then_block);
                    it.else_block.iter().for_each(|other| self.block(*other));
                }
            }
        }
    }

    fn op(&mut self, it: &OpStmt) {
        self.operands(&it.outs);
        self.works.extend(it.number.map(NumberedWork::Posted));
        self.operands(&it.args);
        for (_, attr) in &it.attrs {
            self.attr(attr);
        }
        if it.rule().axes_state() == AxesState::Order
            && let Some(out) = it.out_tensor()
        {
            self.keep_order(out);
        }
    }

    fn attr(&mut self, attr: &Attr) {
        match attr {
            Attr::Tensor(tensor) => self.tensor(*tensor),
            Attr::Axis(axis) => self.axis(*axis),
            Attr::Values(values) => self.operands(values),
            Attr::Unit(unit) => self.unit(*unit),
            Attr::Work(number) => _ = self.works.insert(NumberedWork::Posted(*number)),
            Attr::Stmts(stmts) => {
                for stmt in stmts {
                    if let Stmt::Op(it) = &self.program.stmts[*stmt] {
                        self.op(it);
                    }
                }
            }
            Attr::Scalar(expr) => self.scalar(*expr),
            Attr::Scalars(exprs) => exprs.iter().for_each(|it| self.scalar(*it)),
            Attr::Ranges(ranges) => ranges.iter().flatten().for_each(|it| self.scalar(*it)),
            Attr::Word(_)
            | Attr::Name(_)
            | Attr::DType(_)
            | Attr::Bool(_)
            | Attr::Bytes(_)
            | Attr::Team(_)
            | Attr::Flags(_) => (),
        }
    }

    pub fn operands(&mut self, operands: &[Operand]) {
        for operand in operands {
            match operand {
                Operand::Tensor(tensor) => self.tensor(*tensor),
                Operand::Scalar(expr) => self.scalar(*expr),
                Operand::Stream(stream) => match self.program.streams[*stream] {
                    Stream::Named(number) => _ = self.streams.insert(number),
                    Stream::Index(index) => self.scalar(index),
                },
            }
        }
    }

    pub fn unit(&mut self, unit: UnitId) {
        self.works.insert(NumberedWork::Unit(unit));
    }

    fn tensor(&mut self, tensor: TensorId) {
        if self.tensors.insert(tensor) {
            self.program.tensors[tensor].loop_domain.iter().for_each(|axis| self.axis(*axis));
        }
    }

    fn axis(&mut self, axis: AxisId) {
        let axis = self.same_axis(axis);
        if self.axes.insert(axis) {
            let it = &self.program.axes[axis];
            let bounds = [it.start, it.stop, Some(it.extent), it.expanded];
            bounds.into_iter().flatten().for_each(|bound| self.scalar(bound));
        }
    }

    /// Returns the first axis that prints as this one does.
    fn same_axis(&mut self, axis: AxisId) -> AxisId {
        let it = &self.program.axes[axis];
        self.axis_spaces.entry(axis).or_insert(self.namespace);
        let alike = self.by_number.entry((self.namespace, it.number)).or_default();
        match alike.iter().find(|other| self.program.axes[**other] == *it) {
            Some(first) => *first,
            None => {
                alike.push(axis);
                axis
            }
        }
    }

    fn binder(&mut self, symbol: SymbolId) {
        self.symbols.entry(symbol).or_insert(self.namespace);
        self.defined.insert(symbol);
    }

    pub fn scalar(&mut self, expr: ExprId) {
        for symbol in self.mention(expr) {
            if self.known.get(&symbol).is_none_or(|it| *it == 0) {
                self.free.insert(symbol);
            }
        }
    }

    /// Collects the scalars of an expression that is evaluated elsewhere.
    fn mention(&mut self, expr: ExprId) -> Vec<SymbolId> {
        let mut symbols = Vec::new();
        self.program.collect_symbols(expr, &mut symbols);
        for symbol in &symbols {
            self.symbols.entry(*symbol).or_insert(self.namespace);
        }
        symbols
    }

    /// Records that renumbering must preserve the relative order of the axis numbers of a permuted result.
    fn keep_order(&mut self, tensor: TensorId) {
        let program = self.program;
        let mut axes: Vec<AxisId> = program.dimensions(tensor).collect();
        axes.sort_by_key(|axis| program.axes[*axis].number);
        for pair in axes.windows(2) {
            let (before, after) = (self.same_axis(pair[0]), self.same_axis(pair[1]));
            if program.axes[before].number < program.axes[after].number {
                self.smaller.entry(after).or_default().push(before);
            }
        }
    }

    /// Collects the definitions in the order in which statements, and then other definitions, use them. A
    /// definition comes after the definitions that it uses.
    pub fn definitions(&mut self) {
        let program = self.program;
        let used: Vec<SymbolId> = self.symbols.keys().chain(program.definitions.keys()).copied().collect();
        for symbol in used {
            // Definitions may nest deeply, so this traversal keeps an explicit stack.
            let mut stack = vec![symbol];
            while let Some(top) = stack.last().copied() {
                let Some(value) = program.definitions.get(&top) else {
                    stack.pop();
                    continue;
                };
                let mut needs = Vec::new();
                program.collect_symbols(*value, &mut needs);
                let open =
                    |it: &SymbolId| program.definitions.contains_key(it) && !self.definitions.contains(it);
                match needs.into_iter().find(|it| open(it) && !stack.contains(it)) {
                    Some(need) if !self.definitions.contains(&top) => stack.push(need),
                    _ => {
                        self.definitions.insert(top);
                        stack.pop();
                    }
                }
            }
        }
        for symbol in self.definitions.clone() {
            self.symbols.entry(symbol).or_insert(None);
            program.definitions.get(&symbol).into_iter().for_each(|value| _ = self.mention(*value));
        }
    }

    /// Collects what only the `Domains:` section mentions.
    pub fn domains(&mut self) {
        let program = self.program;
        for tensor in self.tensors.clone() {
            self.namespace = program.tensors[tensor].unit;
            let domains = &program.tensors[tensor].domains;
            domains.logical.iter().for_each(|axis| self.axis(*axis));
            for transform in &domains.transforms {
                match transform {
                    Transform::Split { input, factor, outer, inner, .. } => {
                        self.axis(*input);
                        self.mention(*factor);
                        [outer, inner].into_iter().for_each(|axis| self.axis(*axis));
                    }
                    Transform::Merge { .. } | Transform::Swizzle1D { .. } => {
                        let (inputs, outputs) = transform.axes();
                        inputs.into_iter().chain(outputs).for_each(|axis| self.axis(axis));
                    }
                }
            }
            domains.allocation.iter().flatten().for_each(|axis| self.axis(*axis));
        }
        self.namespace = None;
    }
}
