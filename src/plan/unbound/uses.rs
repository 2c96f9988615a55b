//! Collects what a program uses its scalars for.

use std::collections::HashSet;

use grammar::{
    Attr, AxisId, BlockId, Expr, ExprId, For, Function, InfixOp, Op, OpStmt, Operand, P2pType, Program, Stmt,
    Stream, SymbolId, TensorId,
    attr::{self, AttrName},
};
use indexmap::IndexMap;

use super::{UnboundScalar, peers};
use crate::scalar::Scalars;

/// One use of a scalar.
#[derive(Clone, Debug)]
pub(super) struct ScalarUse {
    /// A description: `an extent of T0`.
    pub(super) what: String,
    pub(super) role: ScalarRole,
    /// The innermost enclosing loop.
    pub(super) around: Option<Loop>,
}

/// A loop, as far as the values inside depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Loop {
    pub(super) index: SymbolId,
    pub(super) stop: ExprId,
}

/// The role of a scalar in the statement that uses it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ScalarRole {
    /// The peer of a transfer. `send` is true for a send, `partner` is the peer of the other side if it is
    /// known, and `whole` is true if the scalar is the complete expression.
    Peer { send: bool, partner: Option<ExprId>, whole: bool },
    /// An index of an axis of a tensor.
    Index { tensor: TensorId, extent: ExprId },
    /// The root of a collective, in a team of `team` ranks.
    Root { team: usize },
    /// The number of a stream.
    Stream,
    /// A part of a slice's range. `end` is true for the end, and false for the start and the step.
    Range { end: bool },
    /// The extent of an axis. `divisors` are the constants that expressions divide it by.
    Extent { divisors: Vec<i64>, is_input: bool },
    /// The start or the end of a loop.
    LoopBound,
    /// A predicate.
    Condition,
    /// Any other operand.
    Operand,
}

impl ScalarRole {
    /// Returns the priority of the role. If a scalar has several roles, the one with the smallest number
    /// determines its value.
    pub(super) fn priority(&self) -> usize {
        match self {
            Self::Peer { whole: true, .. } => 0,
            Self::Index { .. } => 1,
            Self::Extent { .. } => 2,
            Self::Root { .. } => 3,
            Self::Stream => 4,
            Self::Range { .. } => 5,
            Self::LoopBound => 6,
            Self::Peer { whole: false, .. } => 7,
            Self::Condition => 8,
            Self::Operand => 9,
        }
    }
}

/// Returns the scalars of a rank's program that have no value, with all their uses, in text order.
pub(super) fn uses(program: &Program, rank: usize) -> Vec<UnboundScalar> {
    let mut walk =
        Walk { program, bound: HashSet::new(), used: Vec::new(), loops: Vec::new(), tensors: Vec::new() };
    let inputs: Vec<TensorId> = Program::tensors_of(&program.inputs).collect();
    walk.tensors.extend(inputs.iter().copied().chain(Program::tensors_of(&program.outputs)));
    program.body.iter().for_each(|body| walk.block(*body));
    walk.extents(&inputs);
    let Walk { bound, used, .. } = walk;
    let scalars = Scalars::new(program, rank);
    let mut found: IndexMap<SymbolId, Vec<ScalarUse>> = IndexMap::new();
    let mut expanded = HashSet::new();
    let mut pending = used;
    pending.reverse();
    while let Some((expr, mut using)) = pending.pop() {
        let mut symbols = Vec::new();
        program.collect_symbols(expr, &mut symbols);
        if let ScalarRole::Peer { whole, .. } = &mut using.role {
            *whole = matches!(program.exprs[expr], Expr::Symbol(_));
        }
        for symbol in symbols {
            if bound.contains(&symbol) {
                continue;
            }
            if let Some(definition) = program.definitions.get(&symbol) {
                if expanded.insert(symbol) {
                    let what = format!("the definition of {}", program.symbols[symbol]);
                    pending.push((
                        *definition,
                        ScalarUse { what, role: ScalarRole::Operand, around: using.around },
                    ));
                }
            } else if !scalars.is_known(symbol) {
                found.entry(symbol).or_default().push(using.clone());
            }
        }
    }
    let mut missing: Vec<UnboundScalar> = found
        .into_iter()
        .map(|(symbol, uses)| UnboundScalar { rank, symbol, name: program.symbols[symbol].clone(), uses })
        .collect();
    let unknown: HashSet<SymbolId> = missing.iter().map(|it| it.symbol).collect();
    let partners = peers::partners(program, &unknown);
    for it in &mut missing {
        for using in &mut it.uses {
            if let ScalarRole::Peer { partner, .. } = &mut using.role {
                *partner = partners.get(&it.symbol).copied();
            }
        }
    }
    missing.sort_by_key(|it| program.symbol_span(it.symbol));
    missing
}

struct Walk<'p> {
    program: &'p Program,
    /// Scalars that statements bind.
    bound: HashSet<SymbolId>,
    used: Vec<(ExprId, ScalarUse)>,
    loops: Vec<Loop>,
    tensors: Vec<TensorId>,
}

impl Walk<'_> {
    fn add(&mut self, expr: ExprId, what: impl Into<String>, role: ScalarRole) {
        self.used.push((expr, ScalarUse { what: what.into(), role, around: self.loops.last().copied() }));
    }

    fn block(&mut self, block: BlockId) {
        for stmt in self.program.block(block) {
            match &self.program.stmts[*stmt] {
                Stmt::For(it) => self.for_loop(it),
                Stmt::Let(symbol, value) => {
                    self.bound.insert(*symbol);
                    self.add(*value, "a definition", ScalarRole::Operand);
                }
                Stmt::If(it) => {
                    self.add(it.cond, "a predicate", ScalarRole::Condition);
                    self.block(it.then_block);
                    it.else_block.iter().for_each(|other| self.block(*other));
                }
                Stmt::Op(it) => self.op(it),
            }
        }
    }

    fn for_loop(&mut self, it: &For) {
        self.bound.insert(it.index);
        for bound in [it.start, it.stop] {
            self.add(bound, "a loop bound", ScalarRole::LoopBound);
        }
        self.loops.push(Loop { index: it.index, stop: it.stop });
        self.block(it.body);
        self.loops.pop();
    }

    fn op(&mut self, stmt: &OpStmt) {
        let program = self.program;
        for operand in stmt.args.iter().chain(&stmt.outs) {
            match operand {
                Operand::Tensor(tensor) => self.tensors.push(*tensor),
                Operand::Scalar(scalar) => {
                    self.add(*scalar, format!("an operand of {}", stmt.op.name()), ScalarRole::Operand);
                }
                Operand::Stream(stream) => {
                    if let Stream::Index(index) = program.streams[*stream] {
                        self.add(index, "a stream's index", ScalarRole::Stream);
                    }
                }
            }
        }
        for (name, attr) in &stmt.attrs {
            match attr {
                // The size of an allocation follows from the shape of its tensor.
                Attr::Scalar(_) if *name == attr::SIZE => (),
                Attr::Scalar(scalar) => {
                    let role = self.role(stmt, *name);
                    self.add(*scalar, format!("`{name}` of {}", stmt.op.name()), role);
                }
                Attr::Ranges(ranges) => {
                    for (at, bound) in ranges.iter().flat_map(|it| it.iter().enumerate()) {
                        self.add(*bound, "a range of slice", ScalarRole::Range { end: at == 1 });
                    }
                }
                Attr::Tensor(tensor) => self.tensors.push(*tensor),
                Attr::Values(values) => {
                    self.tensors.extend(Program::tensors_of(values));
                    for value in values {
                        if let Operand::Scalar(scalar) = value {
                            self.add(
                                *scalar,
                                format!("an operand of {}", stmt.op.name()),
                                ScalarRole::Operand,
                            );
                        }
                    }
                }
                grammar::constant_attrs!() | Attr::Scalars(_) => (),
            }
        }
    }

    /// Returns the role of a scalar attribute of a statement.
    fn role(&self, stmt: &OpStmt, name: AttrName) -> ScalarRole {
        let program = self.program;
        let input = Program::tensors_of(&stmt.args).next();
        let extent = |axis: AxisId| program.axes[axis].extent;
        let peer = |send: bool| ScalarRole::Peer { send, partner: None, whole: true };
        if name == attr::PEER {
            return peer(stmt.get(attr::P2P_TYPE) == Some(P2pType::Send));
        }
        if name == attr::SEND_PEER || name == attr::RECV_PEER {
            return peer(name == attr::SEND_PEER);
        }
        if name == attr::ROOT {
            return ScalarRole::Root { team: stmt.get(attr::TEAM).map_or(1, <[usize]>::len) };
        }
        let Some(tensor) = input else { return ScalarRole::Operand };
        if name == attr::INDEX {
            let axis = stmt.get(attr::AXIS);
            return axis
                .map_or(ScalarRole::Operand, |axis| ScalarRole::Index { tensor, extent: extent(axis) });
        }
        if name == attr::STREAM_INDEX && stmt.op == Op::ShardByStream {
            let stream = |axis: &&AxisId| program.axes[**axis].parallel == grammar::ir::ParallelType::Stream;
            let axis = program.tensors[tensor].loop_domain.iter().find(stream);
            return axis
                .map_or(ScalarRole::Stream, |axis| ScalarRole::Index { tensor, extent: extent(*axis) });
        }
        ScalarRole::Operand
    }

    /// Adds the extents of all tensors of the container.
    fn extents(&mut self, inputs: &[TensorId]) {
        let program = self.program;
        let (mut seen, inputs) = (HashSet::new(), inputs.iter().collect::<HashSet<_>>());
        for tensor in std::mem::take(&mut self.tensors) {
            if program.tensors[tensor].unit.is_some() || !seen.insert(tensor) {
                continue;
            }
            let what = format!("an extent of {}", program.tensor_name(tensor));
            let is_input = inputs.contains(&tensor);
            let loops = program.tensors[tensor].loop_domain.iter().map(|axis| program.axes[*axis].extent);
            let loops: Vec<ExprId> = loops.collect();
            for axis in program.dimensions(tensor) {
                let extent = program.axes[axis].extent;
                let mut symbols = Vec::new();
                program.collect_symbols(extent, &mut symbols);
                if symbols.is_empty() {
                    continue;
                }
                let mut divisors = Vec::new();
                for part in loops.iter().chain([&extent]) {
                    if program.depends_on(*part, &|it| symbols.contains(&it)) {
                        collect_divisors(program, *part, &mut divisors);
                    }
                }
                self.add(extent, what.clone(), ScalarRole::Extent { divisors, is_input });
            }
        }
    }
}

/// Appends the constants that an expression divides by.
fn collect_divisors(program: &Program, expr: ExprId, found: &mut Vec<i64>) {
    let mut divisor = |by: ExprId| {
        if let Some(by) = program.constant(by).filter(|it| *it > 1 && !found.contains(it)) {
            found.push(by);
        }
    };
    match &program.exprs[expr] {
        Expr::Infix(InfixOp::Div | InfixOp::Rem, lhs, rhs) => {
            divisor(*rhs);
            collect_divisors(program, *lhs, found);
        }
        Expr::Infix(_, lhs, rhs) => {
            collect_divisors(program, *lhs, found);
            collect_divisors(program, *rhs, found);
        }
        Expr::Call(function, args) => {
            if let (Function::Op(Op::CeilDiv), [_, by]) = (function, args.as_slice()) {
                divisor(*by);
            }
            args.iter().for_each(|arg| collect_divisors(program, *arg, found));
        }
        Expr::Prefix(_, operand) => collect_divisors(program, *operand, found),
        _ => (),
    }
}
