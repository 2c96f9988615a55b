//! Copies statements with names replaced.

use grammar::{
    Attr, BlockId, Expr, ExprId, For, If, OpStmt, Operand, Program, Stmt, StmtId, Stream, StreamId, SymbolId,
    TensorId,
};
use rustc_hash::FxHashMap;

/// Replacements of names in a copy.
#[derive(Default)]
pub struct Substitution {
    /// Scalars. A definition (`Index definitions:`) that depends on a replaced scalar is expanded where it is
    /// used.
    pub symbols: FxHashMap<SymbolId, ExprId>,
    /// Tensors.
    pub tensors: FxHashMap<TensorId, TensorId>,
    /// Numbers of communications, also in the statements that wait for them.
    pub works: FxHashMap<u32, u32>,
    known: FxHashMap<ExprId, ExprId>,
}

impl Substitution {
    /// Returns a substitution of one scalar.
    pub fn of_symbol(symbol: SymbolId, value: ExprId) -> Self {
        Self { symbols: FxHashMap::from_iter([(symbol, value)]), ..Self::default() }
    }

    /// Returns an expression with its scalars replaced.
    pub fn expr(&mut self, program: &mut Program, expr: ExprId) -> ExprId {
        if let Some(known) = self.known.get(&expr) {
            return *known;
        }
        let new = match program.exprs[expr].clone() {
            Expr::Int(_) | Expr::Bool(_) | Expr::Float(..) => expr,
            Expr::Symbol(symbol) => match (self.symbols.get(&symbol), program.definitions.get(&symbol)) {
                (Some(value), _) => *value,
                (None, Some(definition)) => {
                    let definition = *definition;
                    let written = self.expr(program, definition);
                    if written == definition { expr } else { written }
                }
                (None, None) => expr,
            },
            Expr::Prefix(op, operand) => {
                let operand = self.expr(program, operand);
                program.intern_expr(Expr::Prefix(op, operand))
            }
            Expr::Infix(op, lhs, rhs) => {
                let (lhs, rhs) = (self.expr(program, lhs), self.expr(program, rhs));
                program.intern_expr(Expr::Infix(op, lhs, rhs))
            }
            Expr::Call(name, args) => {
                let args = args.into_iter().map(|arg| self.expr(program, arg)).collect();
                program.intern_expr(Expr::Call(name, args))
            }
        };
        self.known.insert(expr, new);
        new
    }

    /// Returns a stream with the scalars of its index replaced.
    pub fn stream(&mut self, program: &mut Program, stream: StreamId) -> StreamId {
        match program.streams[stream] {
            Stream::Named(_) => stream,
            Stream::Index(index) => match self.expr(program, index) {
                new if new == index => stream,
                new => program.streams.push(Stream::Index(new)),
            },
        }
    }

    /// Returns the replacement of a tensor, or the tensor itself.
    pub fn tensor(&self, tensor: TensorId) -> TensorId {
        self.tensors.get(&tensor).copied().unwrap_or(tensor)
    }

    /// Copies a block and everything nested in it.
    pub fn block(&mut self, program: &mut Program, block: BlockId) -> BlockId {
        let stmts = program.blocks[block].clone();
        let stmts = stmts.into_iter().map(|stmt| self.stmt(program, stmt)).collect();
        program.blocks.push(stmts)
    }

    /// Copies a statement. The copy keeps the source location.
    pub fn stmt(&mut self, program: &mut Program, stmt: StmtId) -> StmtId {
        let span = program.stmt_span(stmt);
        let copy = match program.stmts[stmt].clone() {
            Stmt::Op(it) => Stmt::Op(self.op(program, it)),
            Stmt::Let(symbol, value) => Stmt::Let(symbol, self.expr(program, value)),
            Stmt::For(it) => {
                let (start, stop) = (self.expr(program, it.start), self.expr(program, it.stop));
                // The loop's index shadows the replaced scalar.
                let hidden = self.symbols.remove(&it.index);
                if hidden.is_some() {
                    self.known.clear();
                }
                let body = self.block(program, it.body);
                if let Some(value) = hidden {
                    self.symbols.insert(it.index, value);
                    self.known.clear();
                }
                Stmt::For(For { start, stop, body, ..it })
            }
            Stmt::If(it) => {
                let cond = self.expr(program, it.cond);
                let then = self.block(program, it.then_block);
                let other = it.else_block.map(|other| self.block(program, other));
                Stmt::If(If { cond, then_block: then, else_block: other, ..it })
            }
        };
        program.add_stmt(copy, span)
    }

    fn op(&mut self, program: &mut Program, mut it: OpStmt) -> OpStmt {
        it.number = it.number.map(|number| self.works.get(&number).copied().unwrap_or(number));
        it.scalars_mut(&mut |expr| *expr = self.expr(program, *expr));
        it.tensors_mut(&mut |tensor| *tensor = self.tensor(*tensor));
        for operand in it.outs.iter_mut().chain(&mut it.args) {
            if let Operand::Stream(stream) = operand {
                *stream = self.stream(program, *stream);
            }
        }
        for (_, attr) in &mut it.attrs {
            if let Attr::Work(number) = attr {
                *number = self.works.get(number).copied().unwrap_or(*number);
            } else if let Attr::Stmts(stmts) = attr {
                stmts.iter_mut().for_each(|it| *it = self.stmt(program, *it));
            }
        }
        it
    }
}
