//! Matches the arguments of a call with the operands and attributes of an operator's definition.

use super::Resolver;
use crate::{
    ast,
    attr::{AttrName, OperandKind},
    codes::Code,
    diagnostic::Diagnostic,
    dtype::DType,
    ir::{Attr, ExprId, OpStmt, Operand, Stmt, StmtId},
    ops::{Arity, Op, OpDef, OperandDef},
    span::Span,
    suggest::nearest,
};

/// Returns whether `name` is a conversion, such as `__bfloat2float(x)` or `__to_index(x)`: nvFuser names a
/// conversion by the types that it converts between.
pub(super) fn is_cast(name: &str) -> bool {
    let types = name.strip_prefix("__");
    types.is_some_and(|it| it.starts_with("to_") || it.contains('2') && !it.starts_with("e2m1"))
        || DType::from_name(name).is_some()
}

/// Returns whether the definition has an attribute for each key, and each required attribute is present.
pub(super) fn do_keys_match(row: &OpDef, args: &[ast::Arg<'_>]) -> bool {
    let known = |key: &ast::Name<'_>| row.attrs.iter().any(|attr| is_same_key(attr.name, key.text));
    let given = |attr: &OperandDef| {
        args.iter().any(|arg| arg.key.is_some_and(|key| is_same_key(attr.name, key.text)))
    };
    args.iter().all(|arg| arg.key.as_ref().is_none_or(known))
        && row.attrs.iter().all(|attr| attr.arity != Arity::One || given(attr))
}

/// Sorts the attributes into the order of the definition.
pub(super) fn order_attrs(stmt: &mut OpStmt) {
    let row = stmt.op.def();
    let place = |name: AttrName| row.attrs.iter().position(|attr| attr.key() == name);
    stmt.attrs.sort_by_key(|(name, _)| place(*name));
}

/// Keys that nvFuser renamed: the current name and the old name.
const RENAMED_KEYS: [(&str, &str); 1] = [("Group ID", "Index")];

/// Returns whether `key` denotes the attribute `name`. Older dialects capitalize some keys, and print
/// `.alias=` on a separate line.
fn is_same_key(name: &str, key: &str) -> bool {
    name == key
        || name.eq_ignore_ascii_case(key.trim_start_matches('.'))
        || RENAMED_KEYS.contains(&(name, key))
}

impl<'s> Resolver<'s, '_> {
    /// Builds the statement of `op` from the arguments of a call.
    pub(super) fn bind_args(
        &mut self,
        op: Op,
        outs: &[Operand],
        args: &[ast::Arg<'s>],
        span: Span,
    ) -> Option<OpStmt> {
        let row = op.def();
        let keyed = args.iter().filter(|arg| arg.key.is_some()).count();
        let named = row.args.iter().filter(|param| !param.kind.is_operand()).count();
        // A long program has as many of these vectors as statements, so they get no spare capacity.
        let attrs = Vec::with_capacity(keyed + named);
        let operands = Vec::with_capacity((args.len() - keyed).saturating_sub(named));
        let mut stmt = OpStmt { op, number: None, outs: outs.to_vec(), args: operands, attrs };
        let errors = self.diagnostics.len();
        let mut positional = args.iter().filter(|arg| arg.key.is_none()).peekable();
        for param in row.args {
            if param.kind == OperandKind::Stmts {
                let ids =
                    positional.by_ref().filter_map(|arg| self.resolve_nested_stmt(&arg.value)).collect();
                stmt.attrs.push((param.key(), Attr::Stmts(ids)));
                continue;
            }
            loop {
                match positional.next() {
                    Some(arg) => self.bind_positional(&mut stmt, param, &arg.value),
                    None if param.arity == Arity::One => {
                        self.error(
                            Code::BadOperands,
                            span,
                            format!("`{}` lacks its operand `{}`", row.mnemonic, param.name),
                            format!("expected {}", expected_kind_text(param.kind)),
                        );
                    }
                    None => (),
                }
                if param.arity != Arity::Many || positional.peek().is_none() {
                    break;
                }
            }
        }
        if let Some(extra) = positional.next() {
            let count = row.args.len();
            self.error(
                Code::BadOperands,
                extra.value.span,
                format!("`{}` takes {count} operand{}", row.mnemonic, if count == 1 { "" } else { "s" }),
                "one too many",
            );
        }
        for arg in args {
            let Some(key) = arg.key else { continue };
            match row.attrs.iter().find(|attr| is_same_key(attr.name, key.text)) {
                Some(param) => {
                    if let Some(attr) = self.attr(param, &arg.value) {
                        stmt.attrs.push((param.key(), attr));
                    }
                }
                None => {
                    let names: Vec<_> = row.attrs.iter().map(|attr| format!("`{}`", attr.name)).collect();
                    let label = match names.is_empty() {
                        true => "it has no attributes".to_owned(),
                        false => format!("expected one of {}", names.join(", ")),
                    };
                    let message = format!("`{}` has no attribute `{}`", row.mnemonic, key.text);
                    self.error(Code::BadAttribute, key.span, message, label);
                }
            }
        }
        self.report_missing_attrs(&stmt, span);
        let outs_fit = match row.outs {
            [] => outs.is_empty(),
            [.., last] if last.arity == Arity::Many => !outs.is_empty(),
            all => outs.len() == all.len(),
        };
        if !outs_fit {
            let count = row.outs.len();
            let plural = if count == 1 { "" } else { "s" };
            let message = format!("`{}` has {count} result{plural}, not {}", row.mnemonic, outs.len());
            self.error(Code::BadOperands, span, message, "left of `=`");
        }
        order_attrs(&mut stmt);
        (self.diagnostics[errors..].iter().all(|it| !is_error(it))).then_some(stmt)
    }

    /// Reports the required attributes that a statement lacks.
    pub(super) fn report_missing_attrs(&mut self, stmt: &OpStmt, span: Span) {
        let required = stmt.op.def().attrs.iter().filter(|param| param.arity == Arity::One);
        for param in required.filter(|param| stmt.attr(param.key()).is_none()) {
            // An attribute with an invalid value was already reported.
            let faulty = self
                .diagnostics
                .iter()
                .rev()
                .take(8)
                .any(|it| is_error(it) && it.span().start >= span.start && it.span().end <= span.end);
            if !faulty {
                self.error(
                    Code::BadAttribute,
                    span,
                    format!("`{}` lacks `{}`", stmt.op.name(), param.name),
                    format!("expected `{}=` with {}", param.name, expected_kind_text(param.kind)),
                );
            }
        }
    }

    fn bind_positional(&mut self, stmt: &mut OpStmt, param: &OperandDef, value: &ast::Expr<'s>) {
        if !param.kind.is_operand() {
            if let Some(attr) = self.attr(param, value) {
                stmt.attrs.push((param.key(), attr));
            }
            return;
        }
        if let Some(operand) = self.value(value) {
            let fits = match (param.kind, operand) {
                (OperandKind::Tensor, it) => matches!(it, Operand::Tensor(_)),
                (OperandKind::Scalar, it) => matches!(it, Operand::Scalar(_)),
                (OperandKind::Stream, it) => matches!(it, Operand::Stream(_)),
                (_, it) => !matches!(it, Operand::Stream(_)),
            };
            match fits {
                true => stmt.args.push(operand),
                false => self.report_wrong_kind(param, value.span),
            }
        }
    }

    fn report_wrong_kind(&mut self, param: &OperandDef, span: Span) {
        let message = format!("`{}` must be {}", param.name, expected_kind_text(param.kind));
        self.error(Code::BadOperands, span, message, "this value has another kind");
    }

    /// Reports that a word is not one of the valid values of an attribute or option.
    pub(super) fn report_unknown_word(&mut self, name: &str, text: &str, span: Span, words: &[&'static str]) {
        let message = format!("`{text}` is not a value of `{name}`");
        let label = format!("expected one of {}", words.join(", "));
        let mut it = Diagnostic::new(Code::BadAttribute, span, message, label);
        if let Some(near) = nearest(text, words.iter().copied()) {
            it = it.help(format!("did you mean `{near}`?"));
        }
        self.diagnostics.push(it);
    }

    /// Resolves `value` as the attribute `param`.
    pub(super) fn attr(&mut self, param: &OperandDef, value: &ast::Expr<'s>) -> Option<Attr> {
        let attr = match (param.kind, &value.kind) {
            (OperandKind::Tensor, ast::ExprKind::Tensor(_)) => self.value(value)?.tensor().map(Attr::Tensor),
            (OperandKind::Value, _) => match self.value(value)? {
                Operand::Tensor(tensor) => Some(Attr::Tensor(tensor)),
                Operand::Scalar(scalar) => Some(Attr::Scalar(scalar)),
                Operand::Stream(_) => None,
            },
            (OperandKind::Scalar, _) => Some(Attr::Scalar(self.scalar(value)?)),
            (OperandKind::Axis, ast::ExprKind::Axis(_)) => Some(Attr::Axis(self.axis(value)?)),
            (OperandKind::Word(words), ast::ExprKind::Word(_) | ast::ExprKind::Infix("-", ..)) => {
                let text = hyphenated_word(value);
                let fits = |text: &String| words.iter().find(|it| it.text().eq_ignore_ascii_case(text));
                match (text.as_ref().and_then(fits), &text) {
                    (None, Some(text)) => {
                        let words: Vec<_> = words.iter().map(|it| it.text()).collect();
                        self.report_unknown_word(param.name, text, value.span, &words);
                        return None;
                    }
                    (found, _) => found.map(|it| Attr::Word(*it)),
                }
            }
            (OperandKind::Name, ast::ExprKind::Word(_) | ast::ExprKind::Infix("-", ..)) => {
                hyphenated_word(value).map(Attr::Name)
            }
            (OperandKind::DType, ast::ExprKind::Word(word)) => DType::from_name(word).map(Attr::DType),
            (OperandKind::Bool, ast::ExprKind::Word("true")) => Some(Attr::Bool(true)),
            (OperandKind::Bool, ast::ExprKind::Word("false")) => Some(Attr::Bool(false)),
            (OperandKind::Team, ast::ExprKind::Team(ranks)) => {
                ranks.iter().map(|rank| usize::try_from(*rank).ok()).collect::<Option<_>>().map(Attr::Team)
            }
            (OperandKind::Team, ast::ExprKind::Paren(only)) => match only.kind {
                ast::ExprKind::Int(rank) => usize::try_from(rank).ok().map(|rank| Attr::Team(vec![rank])),
                _ => None,
            },
            (OperandKind::Flags, ast::ExprKind::Braces(items)) => {
                let flag = |item: &ast::Expr<'_>| match item.kind {
                    ast::ExprKind::Word("true") => Some(true),
                    ast::ExprKind::Word("false") => Some(false),
                    _ => None,
                };
                items.iter().map(flag).collect::<Option<_>>().map(Attr::Flags)
            }
            (OperandKind::Scalars, ast::ExprKind::Braces(items)) => Some(Attr::Scalars(self.scalars(items)?)),
            (OperandKind::Ranges, ast::ExprKind::Braces(items)) => {
                let mut ranges = Vec::with_capacity(items.len());
                for item in items {
                    let ast::ExprKind::Braces(parts) = &item.kind else {
                        self.report_wrong_kind(param, item.span);
                        return None;
                    };
                    let Ok(range) = <[ExprId; 3]>::try_from(self.scalars(parts)?) else {
                        self.report_wrong_kind(param, item.span);
                        return None;
                    };
                    ranges.push(range);
                }
                Some(Attr::Ranges(ranges))
            }
            (OperandKind::Values, ast::ExprKind::Braces(items)) => Some(Attr::Values(self.values(items))),
            (OperandKind::Unit, ast::ExprKind::Word(name)) => {
                let number: Option<u32> =
                    name.strip_prefix("HostUnit").and_then(|digits| digits.parse().ok());
                let unit = number.and_then(|number| self.units_by_number.get(&number).copied());
                if unit.is_none() {
                    let message = format!("no section defines `{name}`");
                    self.error(
                        Code::UnknownUnit,
                        value.span,
                        message,
                        "expected a HostUnit of this container",
                    );
                    return None;
                }
                unit.map(Attr::Unit)
            }
            (OperandKind::Work, ast::ExprKind::Call { number: Some(number), .. }) => {
                u32::try_from(*number).ok().map(Attr::Work)
            }
            (
                OperandKind::Tensor
                | OperandKind::Axis
                | OperandKind::Word(_)
                | OperandKind::Name
                | OperandKind::DType
                | OperandKind::Bool
                | OperandKind::Team
                | OperandKind::Flags
                | OperandKind::Scalars
                | OperandKind::Ranges
                | OperandKind::Values
                | OperandKind::Unit
                | OperandKind::Work
                | OperandKind::Stmts
                | OperandKind::Stream,
                _,
            ) => None,
        };
        if attr.is_none() {
            self.report_wrong_kind(param, value.span);
        }
        attr
    }

    fn scalars(&mut self, items: &[ast::Expr<'s>]) -> Option<Vec<ExprId>> {
        items.iter().map(|item| self.scalar(item)).collect()
    }

    /// Resolves a statement that is written as an argument of another one.
    fn resolve_nested_stmt(&mut self, value: &ast::Expr<'s>) -> Option<StmtId> {
        let stmt = self.resolve_call(&[], value, value.span)?;
        Some(self.program.add_stmt(Stmt::Op(stmt), value.span))
    }
}

/// Returns the text of a word with hyphens, such as `one-shot`, which the parser reads as a subtraction.
fn hyphenated_word(value: &ast::Expr<'_>) -> Option<String> {
    match &value.kind {
        ast::ExprKind::Word(word) => Some((*word).to_owned()),
        ast::ExprKind::Infix("-", lhs, rhs) => Some(hyphenated_word(lhs)? + "-" + &hyphenated_word(rhs)?),
        _ => None,
    }
}

fn is_error(diagnostic: &Diagnostic) -> bool {
    diagnostic.severity() == crate::codes::Severity::Error
}

/// Returns the description of an operand kind for messages.
fn expected_kind_text(kind: OperandKind) -> &'static str {
    match kind {
        OperandKind::Tensor => "a tensor",
        OperandKind::Value => "a tensor or a scalar",
        OperandKind::Scalar => "a scalar",
        OperandKind::Stream => "`Stream` and its name or index",
        OperandKind::Axis => "an iteration domain such as `iS0{i0}`",
        OperandKind::Word(_) | OperandKind::Name => "a word",
        OperandKind::DType => "an element type",
        OperandKind::Bool => "`true` or `false`",
        OperandKind::Team => "ranks in parentheses, `(0 1)`",
        OperandKind::Flags => "`true` and `false` in braces",
        OperandKind::Scalars => "scalars in braces",
        OperandKind::Ranges => "one `{start, stop, step}` per axis, in braces",
        OperandKind::Values => "tensors in braces",
        OperandKind::Unit => "`HostUnit` and its number",
        OperandKind::Work => "`Communication` and its number",
        OperandKind::Stmts => "P2PCommunications",
    }
}
