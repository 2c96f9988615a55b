//! Matches the arguments of a call with the parameters of an operator's row.

use super::Resolver;
use crate::{
    ast,
    attr::{AttrName, Kind},
    codes::Code,
    diagnostic::Diagnostic,
    dtype::DType,
    ir::{Attr, ExprId, OpStmt, Operand, Stmt, StmtId},
    ops::{Count, Op, Param, Row},
    span::Span,
    suggest::nearest,
};

/// `__bfloat2float(x)`, `__to_index(x)`: nvFuser spells a conversion by the types that it converts between.
pub(super) fn is_cast(name: &str) -> bool {
    let types = name.strip_prefix("__");
    types.is_some_and(|it| it.starts_with("to_") || it.contains('2') && !it.starts_with("e2m1"))
        || DType::from_name(name).is_some()
}

/// Whether every key is one of the row's and every required attribute is there.
pub(super) fn keys_fit(row: &Row, args: &[ast::Arg<'_>]) -> bool {
    let known = |key: &ast::Name<'_>| row.attrs.iter().any(|attr| same_key(attr.name, key.text));
    let given =
        |attr: &Param| args.iter().any(|arg| arg.key.is_some_and(|key| same_key(attr.name, key.text)));
    args.iter().all(|arg| arg.key.as_ref().is_none_or(known))
        && row.attrs.iter().all(|attr| attr.count != Count::One || given(attr))
}

/// Puts attributes into the order of the row.
pub(super) fn order_attrs(stmt: &mut OpStmt) {
    let row = stmt.op.row();
    let place = |name: AttrName| row.attrs.iter().position(|attr| attr.key() == name);
    stmt.attrs.sort_by_key(|(name, _)| place(*name));
}

/// Keys that were renamed, each with its old name.
const OLD_KEYS: [(&str, &str); 1] = [("Group ID", "Index")];

/// Older dialects capitalise some keys, and print `.alias=` on a line of its own.
fn same_key(name: &str, key: &str) -> bool {
    name == key || name.eq_ignore_ascii_case(key.trim_start_matches('.')) || OLD_KEYS.contains(&(name, key))
}

impl<'s> Resolver<'s, '_> {
    /// The statement of `op` with the arguments of a call.
    pub(super) fn bind(
        &mut self,
        op: Op,
        outs: &[Operand],
        args: &[ast::Arg<'s>],
        span: Span,
    ) -> Option<OpStmt> {
        let row = op.row();
        let keyed = args.iter().filter(|arg| arg.key.is_some()).count();
        let named = row.args.iter().filter(|param| !param.kind.is_operand()).count();
        // A long program has as many as it has statements: no room for more.
        let attrs = Vec::with_capacity(keyed + named);
        let operands = Vec::with_capacity((args.len() - keyed).saturating_sub(named));
        let mut stmt = OpStmt { op, number: None, outs: outs.to_vec(), args: operands, attrs };
        let errors = self.diagnostics.len();
        let mut positional = args.iter().filter(|arg| arg.key.is_none()).peekable();
        for param in row.args {
            if param.kind == Kind::Stmts {
                let ids = positional.by_ref().filter_map(|arg| self.nested(&arg.value)).collect();
                stmt.attrs.push((param.key(), Attr::Stmts(ids)));
                continue;
            }
            loop {
                match positional.next() {
                    Some(arg) => self.positional(&mut stmt, param, &arg.value),
                    None if param.count == Count::One => {
                        self.error(
                            Code::BadOperands,
                            span,
                            format!("`{}` lacks its operand `{}`", row.mnemonic, param.name),
                            format!("expected {}", describe(param.kind)),
                        );
                    }
                    None => (),
                }
                if param.count != Count::Many || positional.peek().is_none() {
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
            match row.attrs.iter().find(|attr| same_key(attr.name, key.text)) {
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
        self.missing(&stmt, span);
        let outs_fit = match row.outs {
            [] => outs.is_empty(),
            [.., last] if last.count == Count::Many => !outs.is_empty(),
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

    /// Reports the attributes that a statement has to have and has not.
    pub(super) fn missing(&mut self, stmt: &OpStmt, span: Span) {
        let required = stmt.op.row().attrs.iter().filter(|param| param.count == Count::One);
        for param in required.filter(|param| stmt.attr(param.key()).is_none()) {
            // Whoever gave it wrongly was told so.
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
                    format!("expected `{}=` with {}", param.name, describe(param.kind)),
                );
            }
        }
    }

    fn positional(&mut self, stmt: &mut OpStmt, param: &Param, value: &ast::Expr<'s>) {
        if !param.kind.is_operand() {
            if let Some(attr) = self.attr(param, value) {
                stmt.attrs.push((param.key(), attr));
            }
            return;
        }
        if let Some(operand) = self.value(value) {
            let fits = match (param.kind, operand) {
                (Kind::Tensor, it) => matches!(it, Operand::Tensor(_)),
                (Kind::Scalar, it) => matches!(it, Operand::Scalar(_)),
                (Kind::Stream, it) => matches!(it, Operand::Stream(_)),
                (_, it) => !matches!(it, Operand::Stream(_)),
            };
            match fits {
                true => stmt.args.push(operand),
                false => self.unfit(param, value.span),
            }
        }
    }

    fn unfit(&mut self, param: &Param, span: Span) {
        let message = format!("`{}` has to be {}", param.name, describe(param.kind));
        self.error(Code::BadOperands, span, message, "this is something else");
    }

    /// Says that a word is none of those that an attribute or option may have.
    pub(super) fn unknown_word(&mut self, name: &str, text: &str, span: Span, words: &[&'static str]) {
        let message = format!("`{text}` is not a value of `{name}`");
        let label = format!("expected one of {}", words.join(", "));
        let mut it = Diagnostic::new(Code::BadAttribute, span, message, label);
        if let Some(near) = nearest(text, words.iter().copied()) {
            it = it.help(format!("did you mean `{near}`?"));
        }
        self.diagnostics.push(it);
    }

    /// The attribute that `value` is for `param`.
    pub(super) fn attr(&mut self, param: &Param, value: &ast::Expr<'s>) -> Option<Attr> {
        let attr = match (param.kind, &value.kind) {
            (Kind::Tensor, ast::ExprKind::Tensor(_)) => self.value(value)?.tensor().map(Attr::Tensor),
            (Kind::Value, _) => match self.value(value)? {
                Operand::Tensor(tensor) => Some(Attr::Tensor(tensor)),
                Operand::Scalar(scalar) => Some(Attr::Scalar(scalar)),
                Operand::Stream(_) => None,
            },
            (Kind::Scalar, _) => Some(Attr::Scalar(self.scalar(value)?)),
            (Kind::Axis, ast::ExprKind::Axis(_)) => Some(Attr::Axis(self.axis(value)?)),
            (Kind::Word(words), ast::ExprKind::Word(_) | ast::ExprKind::Infix("-", ..)) => {
                let text = hyphenated(value);
                let fits = |text: &String| words.iter().find(|it| it.text().eq_ignore_ascii_case(text));
                match (text.as_ref().and_then(fits), &text) {
                    (None, Some(text)) => {
                        let words: Vec<_> = words.iter().map(|it| it.text()).collect();
                        self.unknown_word(param.name, text, value.span, &words);
                        return None;
                    }
                    (found, _) => found.map(|it| Attr::Word(*it)),
                }
            }
            (Kind::Name, ast::ExprKind::Word(_) | ast::ExprKind::Infix("-", ..)) => {
                hyphenated(value).map(Attr::Name)
            }
            (Kind::DType, ast::ExprKind::Word(word)) => DType::from_name(word).map(Attr::DType),
            (Kind::Bool, ast::ExprKind::Word("true")) => Some(Attr::Bool(true)),
            (Kind::Bool, ast::ExprKind::Word("false")) => Some(Attr::Bool(false)),
            (Kind::Team, ast::ExprKind::Team(ranks)) => {
                ranks.iter().map(|rank| usize::try_from(*rank).ok()).collect::<Option<_>>().map(Attr::Team)
            }
            (Kind::Team, ast::ExprKind::Paren(only)) => match only.kind {
                ast::ExprKind::Int(rank) => usize::try_from(rank).ok().map(|rank| Attr::Team(vec![rank])),
                _ => None,
            },
            (Kind::Flags, ast::ExprKind::Braces(items)) => {
                let flag = |item: &ast::Expr<'_>| match item.kind {
                    ast::ExprKind::Word("true") => Some(true),
                    ast::ExprKind::Word("false") => Some(false),
                    _ => None,
                };
                items.iter().map(flag).collect::<Option<_>>().map(Attr::Flags)
            }
            (Kind::Scalars, ast::ExprKind::Braces(items)) => Some(Attr::Scalars(self.scalars(items)?)),
            (Kind::Ranges, ast::ExprKind::Braces(items)) => {
                let mut ranges = Vec::with_capacity(items.len());
                for item in items {
                    let ast::ExprKind::Braces(parts) = &item.kind else {
                        self.unfit(param, item.span);
                        return None;
                    };
                    let Ok(range) = <[ExprId; 3]>::try_from(self.scalars(parts)?) else {
                        self.unfit(param, item.span);
                        return None;
                    };
                    ranges.push(range);
                }
                Some(Attr::Ranges(ranges))
            }
            (Kind::Values, ast::ExprKind::Braces(items)) => Some(Attr::Values(self.values(items))),
            (Kind::Unit, ast::ExprKind::Word(name)) => {
                let number: Option<u32> =
                    name.strip_prefix("HostUnit").and_then(|digits| digits.parse().ok());
                let unit = number.and_then(|number| self.units.get(&number).copied());
                if unit.is_none() {
                    let message = format!("no section describes `{name}`");
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
            (Kind::Work, ast::ExprKind::Call { number: Some(number), .. }) => {
                u32::try_from(*number).ok().map(Attr::Work)
            }
            (
                Kind::Tensor
                | Kind::Axis
                | Kind::Word(_)
                | Kind::Name
                | Kind::DType
                | Kind::Bool
                | Kind::Team
                | Kind::Flags
                | Kind::Scalars
                | Kind::Ranges
                | Kind::Values
                | Kind::Unit
                | Kind::Work
                | Kind::Stmts
                | Kind::Stream,
                _,
            ) => None,
        };
        if attr.is_none() {
            self.unfit(param, value.span);
        }
        attr
    }

    fn scalars(&mut self, items: &[ast::Expr<'s>]) -> Option<Vec<ExprId>> {
        items.iter().map(|item| self.scalar(item)).collect()
    }

    /// A statement written as an argument of another one.
    fn nested(&mut self, value: &ast::Expr<'s>) -> Option<StmtId> {
        let stmt = self.call(&[], value, value.span)?;
        Some(self.program.stmt(Stmt::Op(stmt), value.span))
    }
}

/// `one-shot`, which reads as a difference.
fn hyphenated(value: &ast::Expr<'_>) -> Option<String> {
    match &value.kind {
        ast::ExprKind::Word(word) => Some((*word).to_owned()),
        ast::ExprKind::Infix("-", lhs, rhs) => Some(hyphenated(lhs)? + "-" + &hyphenated(rhs)?),
        _ => None,
    }
}

fn is_error(diagnostic: &Diagnostic) -> bool {
    diagnostic.severity() == crate::codes::Severity::Error
}

/// What a message asks for.
fn describe(kind: Kind) -> &'static str {
    match kind {
        Kind::Tensor => "a tensor",
        Kind::Value => "a tensor or a scalar",
        Kind::Scalar => "a scalar",
        Kind::Stream => "`Stream` and its name or index",
        Kind::Axis => "an iteration domain such as `iS0{i0}`",
        Kind::Word(_) | Kind::Name => "a word",
        Kind::DType => "an element type",
        Kind::Bool => "`true` or `false`",
        Kind::Team => "ranks in parentheses, `(0 1)`",
        Kind::Flags => "`true` and `false` in braces",
        Kind::Scalars => "scalars in braces",
        Kind::Ranges => "`{start, stop, step}` an axis, in braces",
        Kind::Values => "tensors in braces",
        Kind::Unit => "`HostUnit` and its number",
        Kind::Work => "`Communication` and its number",
        Kind::Stmts => "P2PCommunications",
    }
}
