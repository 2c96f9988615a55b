//! Resolves statements.

use super::{Resolver, group, params};
use crate::{
    advice, ast, attr,
    codes::Code,
    diagnostic::Diagnostic,
    dtype::DType,
    ir::{BlockId, Expr, ExprId, For, If, OpStmt, Operand, PartRole, Stmt, StmtId},
    ops::{AsmFormat, OPS, Op},
    span::Span,
    tensor::shortened,
};

impl<'s> Resolver<'s> {
    pub(super) fn block(&mut self, stmts: &[ast::Stmt<'s>]) -> BlockId {
        let mut ids = Vec::with_capacity(stmts.len());
        stmts.iter().for_each(|stmt| self.append_stmt(stmt, &mut ids));
        self.program.blocks.push(ids)
    }

    /// Appends the IR of one statement of the text: one statement, the members of a group, or a communication
    /// and its implied wait.
    pub(super) fn append_stmt(&mut self, stmt: &ast::Stmt<'s>, ids: &mut Vec<StmtId>) {
        match &stmt.kind {
            ast::StmtKind::Group { name, members, shared } => {
                self.append_grouped_reductions(*name, members, shared, ids)
            }
            ast::StmtKind::Post(_) => {
                let id = self.resolve_stmt(stmt);
                ids.extend(id);
                ids.extend(id.and_then(|id| self.implied_wait(id, stmt.span)));
            }
            ast::StmtKind::For(_)
            | ast::StmtKind::If(_)
            | ast::StmtKind::Assign { .. }
            | ast::StmtKind::Wait(_)
            | ast::StmtKind::Call(_) => ids.extend(self.resolve_stmt(stmt)),
        }
    }

    fn resolve_stmt(&mut self, stmt: &ast::Stmt<'s>) -> Option<StmtId> {
        let parts = self.parts.len();
        let resolved = self.resolve_kind(stmt, parts);
        self.parts.truncate(parts);
        resolved
    }

    /// Resolves a statement, whose parts are recorded from index `parts` on.
    fn resolve_kind(&mut self, stmt: &ast::Stmt<'s>, parts: usize) -> Option<StmtId> {
        let resolved = match &stmt.kind {
            ast::StmtKind::For(it) => {
                let ast::For { index, range, body } = &**it;
                let name = if index.text == "StreamIdx" { "streamIdx" } else { index.text };
                let symbol = self.program.intern_symbol(self.current_unit, name, index.span);
                self.add_part(index.span, PartRole::Result(0));
                let (axis, start, stop) = match range {
                    ast::Range::Axis(axis) if !matches!(axis.kind, ast::ExprKind::Axis(_)) => {
                        self.bad_loop_axis(index.text, axis);
                        return None;
                    }
                    ast::Range::Axis(axis) => {
                        self.add_part(axis.span, PartRole::Operand(0));
                        let axis = self.axis(axis)?;
                        let start = self.program.axes[axis].start;
                        let extent = self.program.axes[axis].extent;
                        (Some(axis), start.unwrap_or_else(|| self.program.intern_int(0)), extent)
                    }
                    ast::Range::Bounds(start, stop) => {
                        self.add_part(start.span, PartRole::Operand(0));
                        self.add_part(stop.span, PartRole::Operand(1));
                        (None, self.scalar(start)?, self.scalar(stop)?)
                    }
                };
                // The id is allocated first, so that statement ids are in program order.
                let placeholder = self.program.blocks.push(Vec::new());
                let it = Stmt::For(For { index: symbol, axis, start, stop, body: placeholder });
                let id = self.add_stmt(it, stmt.span, parts);
                let body = self.block(body);
                if let Stmt::For(it) = &mut self.program.stmts[id] {
                    it.body = body;
                }
                return Some(id);
            }
            ast::StmtKind::If(it) => {
                let ast::If { kind, cond, then, other } = &**it;
                self.add_part(cond.span, PartRole::Operand(0));
                let cond = self.scalar(cond)?;
                let placeholder = self.program.blocks.push(Vec::new());
                let it = Stmt::If(If {
                    kind: kind.text.to_owned(),
                    cond,
                    then_block: placeholder,
                    else_block: None,
                });
                let id = self.add_stmt(it, stmt.span, parts);
                let then = self.block(then);
                let other = (!other.is_empty()).then(|| self.block(other));
                if let Stmt::If(it) = &mut self.program.stmts[id] {
                    (it.then_block, it.else_block) = (then, other);
                }
                return Some(id);
            }
            ast::StmtKind::Assign { outs, value } => self.resolve_assign(outs, value, stmt.span)?,
            ast::StmtKind::Call(value) => Stmt::Op(self.resolve_call(&[], value, stmt.span)?),
            ast::StmtKind::Post(it) => {
                Stmt::Op(self.resolve_post_phrase(&it.inputs, &it.outputs, &it.op, stmt.span)?)
            }
            ast::StmtKind::Wait(op) => Stmt::Op(self.resolve_wait_phrase(op, stmt.span)?),
            ast::StmtKind::Group { name, .. } => {
                self.error(
                    Code::Syntax,
                    name.span,
                    "a group inside a statement",
                    "expected the group in a block",
                );
                return None;
            }
        };
        let id = self.add_stmt(resolved, stmt.span, parts);
        self.resolve_work(id);
        Some(id)
    }

    /// Reports a loop `in` something that is not an axis.
    fn bad_loop_axis(&mut self, index: &str, value: &ast::Expr<'s>) {
        let text = value.span.text(self.source);
        let message = format!("`{text}` is not an axis");
        let it =
            Diagnostic::new(Code::Syntax, value.span, message, "expected an axis such as `istreamIdx0{4}`");
        let count = match &value.kind {
            ast::ExprKind::Call { name, args, .. } if name.text == "range" => match &args[..] {
                [count] => Some(count.value.span.text(self.source)),
                _ => None,
            },
            ast::ExprKind::Int(_) | ast::ExprKind::Word(_) => Some(text),
            _ => None,
        };
        self.diagnostics.push(match count {
            Some(count) => it.help(format!("for {count} iterations, write `FOR {index} from 0 to {count}:`")),
            None => it,
        });
    }

    /// Gives a statement that draws random numbers an offset of its own, so that no two of a program draw the same ones. The
    /// canonical text keeps it, and passes do not change it.
    fn add_random_offset(&mut self, stmt: &mut OpStmt) {
        let is_zero = |expr: ExprId| match &self.program.exprs[expr] {
            Expr::Int(value) => *value == 0,
            Expr::Float(_, text) => text.parse::<f64>() == Ok(0.0),
            _ => false,
        };
        let is_random = match stmt.op {
            Op::RngUniform | Op::RngUniformRange | Op::RngNormal | Op::RngNormalGeneral => true,
            Op::Sdpa => stmt.get(attr::DROPOUT_P).is_some_and(|it| !is_zero(it)),
            _ => false,
        };
        if !is_random {
            return;
        }
        if stmt.get(attr::RNG_OFFSET).is_none() {
            let offset = self.program.intern_int(self.random_statements);
            stmt.attrs.push(attr::RNG_OFFSET.with(offset));
        }
        self.random_statements += 1;
    }

    fn resolve_assign(&mut self, outs: &[ast::Expr<'s>], value: &ast::Expr<'s>, span: Span) -> Option<Stmt> {
        if let [ast::Expr { kind: ast::ExprKind::Word(name), span: name_span }] = outs {
            let symbol = self.program.intern_symbol(self.current_unit, name, *name_span);
            self.add_part(*name_span, PartRole::Result(0));
            self.add_part(value.span, PartRole::Operand(0));
            return Some(Stmt::Let(symbol, self.scalar(value)?));
        }
        let results = self.stated_values(outs, PartRole::Result)?;
        let before = self.diagnostics.len();
        let found = self.resolve_call(&results, value, span);
        if let (None, Some(inner)) = (&found, nested_operation(value)) {
            self.diagnostics.truncate(before);
            self.report_nested(outs, inner, value.span);
        }
        found.map(Stmt::Op)
    }

    /// Reports an operation of tensors that is an operand in the right-hand side `span`, with the two statements to write.
    fn report_nested(&mut self, outs: &[ast::Expr<'s>], inner: &ast::Expr<'s>, span: Span) {
        let numbers = self.source.split('T').skip(1).filter_map(|it| {
            let digits = it.split(|it: char| !it.is_ascii_digit()).next()?;
            digits.parse::<u32>().ok()
        });
        let new = format!("T{}", numbers.max().unwrap_or(0).saturating_add(1));
        let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let operation = match &inner.kind {
            ast::ExprKind::Paren(it) => it.span,
            _ => inner.span,
        };
        let operation = one_line(operation.text(self.source));
        let before = Span { end: inner.span.start, ..span }.text(self.source);
        let behind = Span { start: inner.span.end, ..span }.text(self.source);
        // Of a result, its name: its type stays.
        let names =
            outs.iter().map(|it| it.span.text(self.source).split(['_', '[']).next().unwrap_or_default());
        let names = names.collect::<Vec<_>>().join(", ");
        let outer = one_line(&format!("{names} = {before}{new}{behind}"));
        let message = format!("`{}` is an operation inside another one", shortened(&operation));
        let it = Diagnostic::new(Code::BadOperands, inner.span, message, "expected a tensor or a scalar");
        let help = format!(
            "write one statement for each operation: `{new} = {operation}`, then `{}`",
            shortened(&outer)
        );
        self.diagnostics.push(it.help(help));
    }

    /// Resolves a right-hand side, or a statement without a left-hand side, to an operator statement.
    pub(super) fn resolve_call(
        &mut self,
        outs: &[Operand],
        value: &ast::Expr<'s>,
        span: Span,
    ) -> Option<OpStmt> {
        match &value.kind {
            ast::ExprKind::Call { name, number, args } => {
                let text = self.resolve_extremum(name.text, name.span, false);
                let Some(op) = self.op_of_call(text, args) else {
                    self.unknown_op(*name);
                    return None;
                };
                if number.is_some() && !op.def().format.has_number() {
                    let message = format!("`{text}` takes no number");
                    self.error(Code::BadOperands, name.span, message, "remove the number after this name");
                    return None;
                }
                let mut stmt = self.bind_args(op, outs, args, span)?;
                stmt.number = number.and_then(|it| u32::try_from(it).ok());
                if number.is_some() && stmt.number.is_none() {
                    self.error(
                        Code::BadNumber,
                        name.span,
                        "the number of the statement is too large",
                        "expected a number below 2^32",
                    );
                    return None;
                }
                self.add_implied_red_op(&mut stmt, span);
                self.resolve_root(&mut stmt, span);
                self.add_random_offset(&mut stmt);
                Some(stmt)
            }
            ast::ExprKind::Word(name) => self.resolve_non_call(name, [], AsmFormat::Bare, outs, span),
            ast::ExprKind::Infix("*", _, rhs) if matches!(rhs.kind, ast::ExprKind::Prefix("*", _)) => {
                self.unknown_op(ast::Name { text: "**", span: value.span });
                None
            }
            ast::ExprKind::Infix(sign, lhs, rhs) => {
                self.resolve_non_call(sign, [&**lhs, rhs], AsmFormat::Infix, outs, span)
            }
            ast::ExprKind::Prefix(sign, operand) => {
                self.resolve_non_call(sign, [&**operand], AsmFormat::Prefix, outs, span)
            }
            ast::ExprKind::Int(_)
            | ast::ExprKind::Float(_)
            | ast::ExprKind::Tensor(_)
            | ast::ExprKind::Axis(_)
            | ast::ExprKind::Stream(_)
            | ast::ExprKind::Paren(_)
            | ast::ExprKind::Team(_)
            | ast::ExprKind::Braces(_) => {
                self.error(
                    Code::UnknownOp,
                    value.span,
                    "this is not an operator",
                    "expected an operator and its operands",
                );
                None
            }
        }
    }

    /// Resolves an operator that is not written as a call.
    fn resolve_non_call<'e>(
        &mut self,
        name: &str,
        operands: impl IntoIterator<Item = &'e ast::Expr<'s>>,
        syntax: AsmFormat,
        outs: &[Operand],
        span: Span,
    ) -> Option<OpStmt>
    where
        's: 'e,
    {
        let Some(op) = Op::lookup(name).iter().copied().find(|it| it.def().format == syntax) else {
            self.unknown_op(ast::Name { text: name, span });
            return None;
        };
        let args = self.stated_values(operands, PartRole::Operand)?;
        Some(OpStmt { op, number: None, outs: outs.to_vec(), args, attrs: Vec::new() })
    }

    /// Returns the operator of a call: by name, and if several operators have that name, by the keys of the
    /// arguments.
    fn op_of_call(&self, name: &str, args: &[ast::Arg<'s>]) -> Option<Op> {
        if DType::is_cast_name(name) {
            return Some(Op::Cast);
        }
        let candidates = Op::lookup(name);
        let exact = candidates.iter().copied().find(|op| params::do_keys_match(op.def(), args));
        // With an error in the arguments: the one that knows most of the keys.
        let likely = || candidates.iter().rev().copied().max_by_key(|op| params::known_keys(op.def(), args));
        exact.or_else(likely)
    }

    pub(super) fn unknown_op(&mut self, name: ast::Name<'_>) {
        if name.text == group::GROUPED_REDUCTION {
            let message = format!("`{}` contains no reduction", name.text);
            return self.error(
                Code::BadOperands,
                name.span,
                message,
                "expected `T1 = reduction( … )` on the lines after it",
            );
        }
        let names = OPS.iter().map(|row| row.mnemonic).filter(|it| it.len() > 2);
        let it = Diagnostic::new(
            Code::UnknownOp,
            name.span,
            format!("unknown operator `{}`", shortened(name.text)),
            "`hir-opt --list-ops` lists the operators",
        );
        let (owner, function) = name.text.rsplit_once('.').unwrap_or_default();
        self.diagnostics.push(match advice::of_function(name.text) {
            _ if names.clone().any(|it| it == function) && owner.starts_with('T') => {
                it.help(format!("write `{function}` as a function: `{owner}` is its first operand"))
            }
            _ if names.clone().any(|it| it == function) => {
                it.help(format!("write `{function}` without `{owner}.`"))
            }
            Some(advice) => it.help(advice),
            None => it.suggest(name.text, names),
        });
    }
}

/// Returns the innermost operation of tensors that is an operand of another operation, the first one of several.
fn nested_operation<'e, 's>(value: &'e ast::Expr<'s>) -> Option<&'e ast::Expr<'s>> {
    let own = operands(value);
    own.iter().copied().find_map(nested_operation).or_else(|| {
        own.into_iter().find(|it| operands(it).iter().any(|it| matches!(it.kind, ast::ExprKind::Tensor(_))))
    })
}

/// Returns the operands of an operation, or of one in parentheses.
fn operands<'e, 's>(value: &'e ast::Expr<'s>) -> Vec<&'e ast::Expr<'s>> {
    match &value.kind {
        ast::ExprKind::Prefix(_, operand) => vec![operand],
        ast::ExprKind::Infix(_, lhs, rhs) => vec![lhs, rhs],
        ast::ExprKind::Call { args, .. } => args.iter().map(|it| &it.value).collect(),
        ast::ExprKind::Paren(inner) => operands(inner),
        ast::ExprKind::Int(_)
        | ast::ExprKind::Float(_)
        | ast::ExprKind::Word(_)
        | ast::ExprKind::Tensor(_)
        | ast::ExprKind::Axis(_)
        | ast::ExprKind::Stream(_)
        | ast::ExprKind::Team(_)
        | ast::ExprKind::Braces(_) => Vec::new(),
    }
}
