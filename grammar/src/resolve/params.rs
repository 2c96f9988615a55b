//! Matches the arguments of a call with the operands and attributes of an operator's definition.

use super::Resolver;
use crate::{
    ast,
    attr::{AttrName, OperandKind},
    codes::Code,
    diagnostic::Diagnostic,
    dtype::DType,
    ir::{Attr, ExprId, OpStmt, Operand, Stmt, StmtId},
    ops::{Arity, AsmFormat, Op, OpDef, OperandDef},
    span::Span,
    suggest::{list_text, nearest},
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

/// Returns how many keys of a call the definition has, less the attributes that it requires and lacks.
pub(super) fn known_keys(row: &OpDef, args: &[ast::Arg<'_>]) -> isize {
    let given = |attr: &&OperandDef| {
        args.iter().any(|arg| arg.key.is_some_and(|key| is_same_key(attr.name, key.text)))
    };
    let known = row.attrs.iter().filter(given).count();
    let missing = row.attrs.iter().filter(|it| it.arity == Arity::One && !given(it)).count();
    known as isize - missing as isize
}

/// Sorts the attributes into the order of the definition.
pub(super) fn order_attrs(stmt: &mut OpStmt) {
    let row = stmt.op.def();
    let place = |name: AttrName| row.attrs.iter().position(|attr| attr.key() == name);
    stmt.attrs.sort_by_key(|(name, _)| place(*name));
}

/// Words of other libraries, and the words of attributes that mean the same.
const SYNONYMS: [(&str, &str); 9] = [
    ("receive", "recv"),
    ("sum", "add"),
    ("add", "SUM"),
    ("prod", "PRODUCT"),
    ("mul", "PRODUCT"),
    ("product", "mul"),
    ("mean", "AVG"),
    ("average", "AVG"),
    ("bcast", "Broadcast"),
];

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
                        // The last byte of a call is its closing parenthesis.
                        let end = Span { start: span.end.saturating_sub(1).max(span.start), end: span.end };
                        let place = if end.text(self.source) == ")" { end } else { span };
                        self.error(
                            Code::BadOperands,
                            place,
                            format!("`{}` has no operand `{}`", row.mnemonic, param.name),
                            format!("expected {} before this", expected_kind_text(param.kind)),
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
            self.extra_operand(row, &extra.value);
        }
        for arg in args {
            let Some(key) = arg.key else { continue };
            match row.attrs.iter().find(|attr| is_same_key(attr.name, key.text)) {
                Some(param) => {
                    let is_key =
                        |it: &ast::Arg<'_>| it.key.is_some_and(|it| is_same_key(param.name, it.text));
                    let first = args.iter().filter(|it| is_key(it)).find_map(|it| it.key);
                    if let Some(first) = first.filter(|it| it.span != key.span) {
                        let message = format!("`{}=` is given twice", key.text);
                        let it = Diagnostic::new(Code::BadAttribute, key.span, message, "given again here");
                        self.diagnostics.push(it.label(first.span, "first given here"));
                    } else if let Some(attr) = self.attr(param, &arg.value) {
                        stmt.attrs.push((param.key(), attr));
                    }
                }
                None => self.unknown_attr(row, args, key),
            }
        }
        self.report_missing_attrs(&stmt, span);
        let outs_fit = match row.outs {
            [] => outs.is_empty(),
            [.., last] if last.arity == Arity::Many => !outs.is_empty(),
            all => outs.len() == all.len(),
        };
        if !outs_fit {
            self.wrong_results(row, outs.len(), span);
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

    /// Reports a key that the operator does not have.
    fn unknown_attr(&mut self, row: &OpDef, args: &[ast::Arg<'s>], key: ast::Name<'s>) {
        let given = |name: &str| args.iter().any(|it| it.key.is_some_and(|it| is_same_key(name, it.text)));
        // A key that the statement already has is not what was meant.
        let free: Vec<&str> = row.attrs.iter().map(|it| it.name).filter(|it| !given(it)).collect();
        let label = match free.as_slice() {
            [] if row.attrs.is_empty() => "it has no attributes".to_owned(),
            [] => "all its attributes are given already".to_owned(),
            free => {
                let names: Vec<_> = free.iter().map(|it| format!("`{it}`")).collect();
                format!("expected {}", list_text(names.iter().map(String::as_str), 9, "or"))
            }
        };
        let message = format!("`{}` has no attribute `{}`", row.mnemonic, key.text);
        let it = Diagnostic::new(Code::BadAttribute, key.span, message, label);
        let mut missing = row.attrs.iter().filter(|it| it.arity == Arity::One && !given(it.name));
        let it = match (nearest(key.text, free.iter().copied()), missing.next(), missing.next()) {
            (Some(near), ..) => it.help(format!("did you mean `{near}`?")),
            (None, Some(only), None) => {
                it.help(format!("the attribute `{}` is missing: did you mean it?", only.name))
            }
            _ => it,
        };
        self.diagnostics.push(it);
    }

    /// Reports an operand that the operator does not have.
    fn extra_operand(&mut self, row: &OpDef, value: &ast::Expr<'s>) {
        let count = row.args.len();
        let takes = match count {
            0 => "takes no operands without a key".to_owned(),
            1 => "takes 1 operand".to_owned(),
            _ => format!("takes {count} operands"),
        };
        let mut it = Diagnostic::new(
            Code::BadOperands,
            value.span,
            format!("`{}` {takes}", row.mnemonic),
            "this one is too many",
        );
        let numbered = row.format == AsmFormat::Numbered;
        match &value.kind {
            // `type==Allgather`.
            ast::ExprKind::Infix("==", lhs, rhs) => {
                if let ast::ExprKind::Word(key) = lhs.kind {
                    let rhs = rhs.span.text(self.source);
                    it = Diagnostic::new(
                        Code::BadOperands,
                        value.span,
                        "use `=` for an attribute; `==` is a comparison",
                        format!("expected `{key}={rhs}`"),
                    );
                }
            }
            ast::ExprKind::Int(number) if numbered => {
                it = it.help(format!(
                    "write the number before the parenthesis: `{} {number} (…)`",
                    row.mnemonic
                ));
            }
            _ => (),
        }
        self.diagnostics.push(it);
    }

    /// Reports a wrong number of results.
    fn wrong_results(&mut self, row: &OpDef, given: usize, span: Span) {
        let count = row.outs.len();
        let results = match count {
            0 => "no result".to_owned(),
            1 => "1 result".to_owned(),
            _ => format!("{count} results"),
        };
        let message = match given {
            0 => format!("`{}` has {results}, and the statement names none", row.mnemonic),
            _ => format!("`{}` has {results}, and the statement names {given}", row.mnemonic),
        };
        let text = span.text(self.source);
        let (place, label) = match (given, text.find('=')) {
            (0, _) => {
                let names: Vec<String> = (1..=count).map(|at| format!("T{at}_…")).collect();
                (span, format!("expected `{} = {}(…)`", names.join(", "), row.mnemonic))
            }
            (_, Some(at)) => {
                let left = text.get(..at).unwrap_or("").trim_end().len();
                (
                    Span { start: span.start, end: span.start + left as u32 },
                    format!("expected {results} left of `=`"),
                )
            }
            (_, None) => (span, format!("expected {results} left of `=`")),
        };
        self.error(Code::BadOperands, place, message, label);
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
                false => self.report_wrong_kind(param, value),
            }
        }
    }

    fn report_wrong_kind(&mut self, param: &OperandDef, value: &ast::Expr<'s>) {
        if let (OperandKind::Work, ast::ExprKind::Call { number: Some(_), .. }) = (param.kind, &value.kind) {
            let message = "the number of the communication is too large";
            return self.error(Code::BadNumber, value.span, message, "expected a number below 2^32");
        }
        let expected = expected_kind_text(param.kind);
        let message = match param.kind {
            OperandKind::Work => format!("expected {expected}"),
            kind if kind.is_operand() => format!("the operand `{}` must be {expected}", param.name),
            _ => format!("`{}` must be {expected}", param.name),
        };
        let it =
            Diagnostic::new(Code::BadOperands, value.span, message, format!("this is {}", found_text(value)));
        let text = value.span.text(self.source);
        let help = match (param.kind, &value.kind) {
            (OperandKind::Team, ast::ExprKind::Braces(_)) => {
                let ranks: Vec<&str> =
                    text.split(|it: char| !it.is_ascii_digit()).filter(|it| !it.is_empty()).collect();
                Some(format!("write `({})`", ranks.join(" ")))
            }
            (
                OperandKind::Stream,
                ast::ExprKind::Int(_) | ast::ExprKind::Word(_) | ast::ExprKind::Paren(_),
            ) => Some(format!("write `Stream {text}`")),
            (OperandKind::Bool, ast::ExprKind::Word(word)) => {
                nearest(word, ["true", "false"].into_iter()).map(|it| format!("write `{it}`"))
            }
            (OperandKind::Bool, ast::ExprKind::Int(number @ 0..=1)) => {
                Some(format!("write `{}`", *number == 1))
            }
            (OperandKind::Work, ast::ExprKind::Int(number)) => {
                Some(format!("write `Communication {number}`"))
            }
            (OperandKind::Ranges, ast::ExprKind::Braces(parts)) if parts.len() == 2 => {
                Some(format!("write `{{{}, 1}}`: a range has a step", text.trim_matches(['{', '}', ' '])))
            }
            (OperandKind::Tensor | OperandKind::Value, ast::ExprKind::Word(word)) => {
                let number = word
                    .strip_prefix('t')
                    .filter(|it| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit()));
                number.map(|number| format!("did you mean `T{number}`?"))
            }
            _ => None,
        };
        self.diagnostics.push(match help {
            Some(help) => it.help(help),
            None => it,
        });
    }

    /// Reports that a word is not one of the valid values of an attribute or option.
    pub(super) fn report_unknown_word(&mut self, name: &str, text: &str, span: Span, words: &[&'static str]) {
        let message = format!("`{text}` is not a value of `{name}`");
        let label = format!("expected {}", list_text(words.iter().copied(), 12, "or"));
        let it = Diagnostic::new(Code::BadAttribute, span, message, label);
        // Other libraries' words.
        let meant = SYNONYMS.iter().find(|(from, to)| from.eq_ignore_ascii_case(text) && words.contains(to));
        self.diagnostics.push(match meant {
            Some((_, to)) => it.help(format!("did you mean `{to}`?")),
            None => it.suggest(text, words.iter().copied()),
        });
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
                        self.report_wrong_kind(param, item);
                        return None;
                    };
                    let Ok(range) = <[ExprId; 3]>::try_from(self.scalars(parts)?) else {
                        self.report_wrong_kind(param, item);
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
                    self.unknown_unit(name, value.span);
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
            self.report_wrong_kind(param, value);
        }
        attr
    }

    /// Reports the name of a HostUnit that no section defines.
    fn unknown_unit(&mut self, name: &str, span: Span) {
        let mut numbers: Vec<u32> = self.units_by_number.keys().copied().collect();
        numbers.sort_unstable();
        let names: Vec<String> = numbers.iter().map(|it| format!("HostUnit{it}")).collect();
        let label = match names.len() {
            0 => format!("expected a section `{name}: Inputs={{…}} -> Outputs={{…}}` behind the body"),
            _ => format!("expected {}", list_text(names.iter().map(String::as_str), 6, "or")),
        };
        let it = Diagnostic::new(Code::UnknownUnit, span, format!("no section defines `{name}`"), label);
        self.diagnostics.push(it.suggest(name, names.iter().map(String::as_str)));
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

/// Returns the description of a value for messages.
pub(super) fn found_text(value: &ast::Expr<'_>) -> &'static str {
    match &value.kind {
        ast::ExprKind::Int(_) => "an integer",
        ast::ExprKind::Float(_) => "a floating-point number",
        ast::ExprKind::Tensor(_) => "a tensor",
        ast::ExprKind::Axis(_) => "an axis",
        ast::ExprKind::Stream(_) => "a stream",
        ast::ExprKind::Word(_) => "a name",
        ast::ExprKind::Team(_) => "a list of numbers in parentheses",
        ast::ExprKind::Braces(_) => "a list in braces",
        ast::ExprKind::Paren(_) | ast::ExprKind::Prefix(..) | ast::ExprKind::Infix(..) => "an expression",
        ast::ExprKind::Call { number: Some(_), .. } => "a numbered name",
        ast::ExprKind::Call { .. } => "a call",
    }
}

/// Returns the description of an operand kind for messages.
fn expected_kind_text(kind: OperandKind) -> &'static str {
    match kind {
        OperandKind::Tensor => "a tensor",
        OperandKind::Value => "a tensor or a scalar",
        OperandKind::Scalar => "a scalar",
        OperandKind::Stream => "`Stream` and its name or index",
        OperandKind::Axis => "an axis, such as `iS0{4}`",
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
