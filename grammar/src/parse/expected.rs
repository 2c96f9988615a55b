//! Converts grammar errors into diagnostics that state what the grammar expected.

use hir_syntax::GrammarError;
use lalrpop_util::ParseError;

use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    span::Span,
    token::{Token, TokenKind},
};

/// Returns the diagnostic for a grammar error; `None` if the error is already reported.
pub(super) fn diagnose(fault: GrammarError<'_>) -> Option<Diagnostic> {
    match fault {
        ParseError::UnrecognizedToken { token: (start, token, end), expected } => {
            Some(unexpected(Span { start, end }, token, &expected))
        }
        ParseError::ExtraToken { token: (start, token, end) } => {
            Some(unexpected(Span { start, end }, token, &[]))
        }
        ParseError::UnrecognizedEof { location, expected } => Some(Diagnostic::new(
            Code::Syntax,
            Span { start: location, end: location },
            "the text ends too early",
            expected_text(&expected).map_or("the text stops here".to_owned(), |it| format!("expected {it}")),
        )),
        ParseError::InvalidToken { location } => {
            let span = Span { start: location, end: location };
            Some(Diagnostic::new(Code::Syntax, span, "no token here", "expected a token"))
        }
        ParseError::User { .. } => None,
    }
}

fn unexpected(span: Span, token: Token<'_>, expected: &[String]) -> Diagnostic {
    let message = match token.kind {
        TokenKind::Else => {
            let message = "`ELSE` does not follow an `IF`";
            let label = "expected in the column of an `IF`, directly after its body";
            return Diagnostic::new(Code::Syntax, span, message, label);
        }
        TokenKind::End => "the statement ends too early".to_string(),
        TokenKind::Open => "a body begins too early".to_string(),
        TokenKind::Close => "a body ends too early".to_string(),
        TokenKind::Tensor => {
            let name = token.text.split(['[', ' ', '\n']).next().unwrap_or("");
            format!("unexpected tensor `{name}`")
        }
        _ if token.text.is_empty() => "the text does not continue as expected".to_string(),
        _ => format!("unexpected `{}`", token.text),
    };
    let label =
        expected_text(expected).map_or("it cannot stand here".to_owned(), |it| format!("expected {it}"));
    Diagnostic::new(Code::Syntax, span, message, label)
}

/// Terminals that begin a value. If three or more of them are expected, the message says "a value".
const VALUE_TOKENS: &[&str] =
    &["Tensor", "Word", "Int", "Float", "Axis", "Cast", "\"Stream\"", "\"(\"", "\"{\""];

/// Other terminals that messages name, with their texts.
const TOKEN_TEXTS: &[(&str, &str)] = &[
    ("\"=\"", "`=`"),
    ("\",\"", "`,`"),
    ("\")\"", "`)`"),
    ("\"}\"", "`}`"),
    ("\"]\"", "`]`"),
    ("\":\"", "`:`"),
    ("\"->\"", "`->`"),
    ("\"in\"", "`in`"),
    ("\"from\"", "`from`"),
    ("\"to\"", "`to`"),
    ("\"%HostIrContainer\"", "`%HostIrContainer`"),
    ("\"%kernel\"", "`%kernel`"),
    ("End", "the end of the statement"),
    ("Avg", "`Avg`"),
    ("Var", "`Var`"),
    ("Count", "`Count`"),
];

/// Returns the text of what may stand at a place; `None` if the messages have no name for any of it.
fn expected_text(expected: &[String]) -> Option<String> {
    let has = |name: &&str| expected.iter().any(|it| it == name);
    let values = VALUE_TOKENS.iter().filter(|it| has(it)).count();
    let mut res: Vec<&str> = Vec::new();
    if has(&"\"FOR\"") {
        return Some("a statement".to_owned());
    }
    if values > 2 {
        res.push("a value");
    } else if has(&"Tensor") {
        res.push("a tensor");
    } else if has(&"Word") {
        res.push("a name");
    } else if has(&"Int") {
        res.push("a number");
    }
    let operator = has(&"Infix");
    if values <= 2 {
        res.extend((has(&"\"(\"") && !operator).then_some("`(`"));
        res.extend(has(&"\"{\"").then_some("`{`"));
    }
    let inside = values > 2;
    res.extend(
        TOKEN_TEXTS
            .iter()
            .filter(|(name, _)| has(name) && !(inside && matches!(*name, "\"in\"" | "\"from\"" | "\"to\"")))
            .map(|(_, text)| *text),
    );
    if operator {
        res.push("an operator");
    }
    res.truncate(5);
    match res.as_slice() {
        [] => None,
        [one] => Some((*one).to_owned()),
        [first @ .., last] => Some(format!("{} or {last}", first.join(", "))),
    }
}
