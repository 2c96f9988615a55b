//! Reports arguments that an operator does not have, and values that an argument cannot have.

use super::{
    Resolver,
    params::{SYNONYMS, is_same_key, work_number},
};
use crate::{
    ast,
    attr::OperandKind,
    codes::Code,
    diagnostic::Diagnostic,
    ops::{Arity, AsmFormat, OpDef, OperandDef},
    span::Span,
    suggest::{list_text, nearest},
};

/// Maximum number of unknown keys of a statement that are reported one by one.
const MAX_KEYS: usize = 2;

impl<'s> Resolver<'s> {
    /// Reports keys that the operator does not have. Of many, the first one: the operator is probably another one
    /// than the text means.
    pub(super) fn unknown_attrs(&mut self, row: &OpDef, args: &[ast::Arg<'s>], keys: &[ast::Name<'s>]) {
        let reported = if keys.len() > MAX_KEYS || row.attrs.is_empty() { 1 } else { keys.len() };
        for key in keys.iter().take(reported) {
            let it = unknown_attr(row, args, *key);
            self.diagnostics.push(match keys.len() - reported {
                0 => it,
                1 => it.note("1 more key of this statement is unknown"),
                count => it.note(format!("{count} more keys of this statement are unknown")),
            });
        }
    }

    /// Reports an operand that the operator does not have.
    pub(super) fn extra_operand(&mut self, row: &OpDef, value: &ast::Expr<'s>) {
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
    pub(super) fn wrong_results(&mut self, row: &OpDef, given: usize, span: Span) {
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

    pub(super) fn report_wrong_kind(&mut self, param: &OperandDef, value: &ast::Expr<'s>) {
        if param.kind == OperandKind::Work && work_number(value).is_some() {
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
            (
                OperandKind::Work,
                ast::ExprKind::Int(number) | ast::ExprKind::Call { number: Some(number), .. },
            ) => Some(format!("write `Communication {number}`")),
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
}

/// Returns the error about a key that the operator does not have.
fn unknown_attr(row: &OpDef, args: &[ast::Arg<'_>], key: ast::Name<'_>) -> Diagnostic {
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
    match (nearest(key.text, free.iter().copied()), missing.next(), missing.next()) {
        (Some(near), ..) => it.help(format!("did you mean `{near}`?")),
        (None, Some(only), None) => {
            it.help(format!("the attribute `{}` is missing: did you mean it?", only.name))
        }
        _ => it,
    }
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
pub(super) fn expected_kind_text(kind: OperandKind) -> &'static str {
    match kind {
        OperandKind::Tensor => "a tensor",
        OperandKind::Value => "a tensor or a scalar",
        OperandKind::Scalar => "a scalar",
        OperandKind::Stream => "`Stream` and its name or index",
        OperandKind::Axis => "an axis, such as `iS0{4}`",
        OperandKind::Word(_) | OperandKind::Name => "a word",
        OperandKind::DType => "an element type",
        OperandKind::Bool => "`true` or `false`",
        OperandKind::Bytes => "two hexadecimal digits for each byte behind `0x`",
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
