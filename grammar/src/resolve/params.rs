//! Matches the arguments of a call with the operands and attributes of an operator's definition.

use super::{Resolver, argument_errors::expected_kind_text};
use crate::{
    ast,
    attr::{AttrName, OperandKind},
    codes::Code,
    constant_bytes::bytes_of,
    diagnostic::Diagnostic,
    dtype::DType,
    ir::{Attr, ExprId, OpStmt, Operand, PartRole, Stmt, StmtId},
    ops::{Arity, Op, OpDef, OperandDef},
    span::Span,
    suggest::{count_text, list_text},
};

/// Returns whether the definition has an attribute for each key, and each required attribute is present.
pub(super) fn do_keys_match(row: &OpDef, args: &[ast::Arg<'_>]) -> bool {
    let known = |key: &ast::Name<'_>| row.attrs.iter().any(|attr| is_same_key(attr.name, key.text));
    let given = |attr: &OperandDef| {
        args.iter().any(|arg| arg.key.is_some_and(|key| is_same_key(attr.name, key.text)))
    };
    let mut positional = args.iter().filter(|arg| arg.key.is_none());
    let fits = |param: &OperandDef| match (param.kind, positional.next().map(|it| &it.value.kind)) {
        (OperandKind::Word(words), Some(ast::ExprKind::Word(text))) => {
            words.iter().any(|it| it.text() == *text)
        }
        (OperandKind::Word(_), _) => false,
        _ => true,
    };
    row.args.iter().all(fits)
        && args.iter().all(|arg| arg.key.as_ref().is_none_or(known))
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

/// Maximum number of errors of a statement that are reported one by one.
const MAX_ERRORS: usize = 3;

/// Words of other libraries, and the words of attributes that mean the same.
pub(super) const SYNONYMS: [(&str, &str); 9] = [
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

/// The names of the work that a Wait waits for. nvFuser prints the first one for all work.
pub(super) const WORK_NAMES: [&str; 2] = ["Communication", "P2PCommunication"];

/// Keys that nvFuser renamed: the current name and the old name.
const RENAMED_KEYS: [(&str, &str); 1] = [("Group ID", "Index")];

/// Returns whether `key` denotes the attribute `name`. Older dialects capitalize some keys, and print
/// `.alias=` on a separate line.
pub(super) fn is_same_key(name: &str, key: &str) -> bool {
    name == key
        || name.eq_ignore_ascii_case(key.trim_start_matches('.'))
        || RENAMED_KEYS.contains(&(name, key))
}

impl<'s> Resolver<'s> {
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
        let (known, unknown): (Vec<_>, Vec<_>) = args
            .iter()
            .filter_map(|arg| Some((arg.key?, &arg.value)))
            .partition(|(key, _)| row.attrs.iter().any(|attr| is_same_key(attr.name, key.text)));
        // The keys of another operator: its operands are not those of this one.
        let is_other = row.attrs.is_empty() && !unknown.is_empty();
        let mut positional = args.iter().filter(|arg| arg.key.is_none()).peekable();
        for (index, param) in row.args.iter().enumerate() {
            let number = index as u8;
            if param.kind == OperandKind::Stmts {
                let ids =
                    positional.by_ref().filter_map(|arg| self.resolve_nested_stmt(&arg.value)).collect();
                stmt.attrs.push((param.key(), Attr::Stmts(ids)));
                continue;
            }
            loop {
                match positional.next() {
                    Some(arg) => self.bind_positional(&mut stmt, param, number, &arg.value),
                    None if param.arity == Arity::One && self.diagnostics.len() == errors && !is_other => {
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
        for (key, value) in known {
            self.bind_keyed(&mut stmt, args, key, value);
        }
        self.unknown_attrs(row, args, &unknown.iter().map(|(key, _)| *key).collect::<Vec<_>>());
        let is_complete = self.report_missing_attrs(&stmt, args, span);
        let outs_fit = match row.outs {
            [] => outs.is_empty(),
            [.., last] if last.arity == Arity::Many => !outs.is_empty(),
            all => outs.len() == all.len(),
        };
        if !outs_fit {
            self.wrong_results(row, outs.len(), span);
        }
        order_attrs(&mut stmt);
        self.summarise_statement(errors);
        (is_complete && self.diagnostics[errors..].iter().all(|it| !it.is_error())).then_some(stmt)
    }

    /// Of many errors of a statement, which begin at an index, keeps the first one: the operator is probably another
    /// one than the text means.
    fn summarise_statement(&mut self, first: usize) {
        let count = self.diagnostics.len() - first;
        if count > MAX_ERRORS {
            self.diagnostics.truncate(first + 1);
            let others = count_text(count - 1, "more error");
            if let Some(it) = self.diagnostics.last_mut() {
                it.notes.push(format!("{others} in this statement"));
            }
        }
    }

    /// Binds `key=value`, one of `args`, to an attribute.
    pub(super) fn bind_keyed(
        &mut self,
        stmt: &mut OpStmt,
        args: &[ast::Arg<'s>],
        key: ast::Name<'s>,
        value: &ast::Expr<'s>,
    ) {
        let row = stmt.op.def();
        let Some(index) = row.attrs.iter().position(|attr| is_same_key(attr.name, key.text)) else {
            return self.unknown_attrs(row, args, &[key]);
        };
        let (param, number) = (&row.attrs[index], (row.args.len() + index) as u8);
        let mut keys = args.iter().filter_map(|it| it.key);
        let first = keys.find(|it| is_same_key(param.name, it.text));
        if let Some(first) = first.filter(|it| it.span != key.span) {
            let message = format!("`{}=` is given twice", key.text);
            let it = Diagnostic::new(Code::BadAttribute, key.span, message, "given again here");
            self.diagnostics.push(it.label(first.span, "first given here"));
        } else {
            self.bind_attr(stmt, param, key.span.join(value.span), number, value);
        }
    }

    /// Binds an attribute that is stated at `span`. `number` is that of `OpDef::attr_number`.
    pub(super) fn bind_attr(
        &mut self,
        stmt: &mut OpStmt,
        param: &OperandDef,
        span: Span,
        number: u8,
        value: &ast::Expr<'s>,
    ) {
        let Some(attr) = self.attr(param, value) else { return };
        // Of `Communication 7`, the number is the attribute.
        let digits = span.text(self.source).bytes().rev().take_while(u8::is_ascii_digit).count() as u32;
        let start = if matches!(attr, Attr::Work(_)) { span.end - digits } else { span.start };
        self.add_part(Span { start, ..span }, PartRole::Attr(number));
        match (&attr, &value.kind) {
            (Attr::Tensor(_), _) => self.add_part(value.span, PartRole::Element(number, 0)),
            (Attr::Values(_), ast::ExprKind::Braces(items)) => {
                for (at, item) in (0..=u16::MAX).zip(items) {
                    self.add_part(item.span, PartRole::Element(number, at));
                }
            }
            _ => (),
        }
        stmt.attrs.push((param.key(), attr));
    }

    /// Reports the required attributes that a statement lacks. An attribute with an invalid value is reported
    /// already. Returns whether the statement has all of them.
    pub(super) fn report_missing_attrs(&mut self, stmt: &OpStmt, args: &[ast::Arg<'s>], span: Span) -> bool {
        let required = stmt.op.def().attrs.iter().filter(|param| param.arity == Arity::One);
        let lacking: Vec<_> = required.filter(|param| stmt.attr(param.key()).is_none()).collect();
        let mut is_reported = self
            .diagnostics
            .iter()
            .rev()
            .take(8)
            .any(|it| it.is_error() && it.span().start >= span.start && it.span().end <= span.end);
        for param in &lacking {
            let is_given = args.iter().any(|it| it.key.is_some_and(|key| is_same_key(param.name, key.text)));
            if !is_given && !is_reported {
                is_reported = true;
                self.error(
                    Code::BadAttribute,
                    span,
                    format!("`{}` lacks `{}`", stmt.op.name(), param.name),
                    format!("expected `{}=` with {}", param.name, expected_kind_text(param.kind)),
                );
            }
        }
        lacking.is_empty()
    }

    fn bind_positional(&mut self, stmt: &mut OpStmt, param: &OperandDef, number: u8, value: &ast::Expr<'s>) {
        if !param.kind.is_operand() {
            return self.bind_attr(stmt, param, value.span, number, value);
        }
        if let Some(operand) = self.stated_value(value, stmt.args.len(), PartRole::Operand) {
            let fits = match (param.kind, operand) {
                (OperandKind::Tensor, it) => matches!(it, Operand::Tensor(_)),
                (OperandKind::Scalar, it) => matches!(it, Operand::Scalar(_)),
                (OperandKind::Stream, it) => matches!(it, Operand::Stream(_)),
                (_, it) => !matches!(it, Operand::Stream(_)),
            };
            if fits { stmt.args.push(operand) } else { self.report_wrong_kind(param, value) }
        }
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
            (OperandKind::Bytes, ast::ExprKind::Word(digits)) => bytes_of(digits).map(Attr::Bytes),
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
            (OperandKind::Work, _) => {
                work_number(value).and_then(|it| u32::try_from(it).ok()).map(Attr::Work)
            }
            (
                OperandKind::Tensor
                | OperandKind::Axis
                | OperandKind::Word(_)
                | OperandKind::Name
                | OperandKind::DType
                | OperandKind::Bool
                | OperandKind::Bytes
                | OperandKind::Team
                | OperandKind::Flags
                | OperandKind::Scalars
                | OperandKind::Ranges
                | OperandKind::Values
                | OperandKind::Unit
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
        let parts = self.parts.len();
        let stmt = self.resolve_call(&[], value, value.span);
        let id = stmt.map(|it| self.add_stmt(Stmt::Op(it), value.span, parts));
        self.parts.truncate(parts);
        id
    }
}

/// Returns the number in `Communication 3`, the operand of a Wait.
pub(super) fn work_number(value: &ast::Expr<'_>) -> Option<i64> {
    match &value.kind {
        ast::ExprKind::Call { name, number, args } if args.is_empty() && WORK_NAMES.contains(&name.text) => {
            *number
        }
        _ => None,
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
