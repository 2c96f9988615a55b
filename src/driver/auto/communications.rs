//! The communications of a program that is not lowered.

use grammar::{Code, CommunicationType, Diagnostic, Op, Program, Span, Stmt, attr};
use passes::{PassCall, PassEvent, Settings, Splittable, Verify};

use super::choices::CHOICES;

/// A communication.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Communication {
    /// The position of its statement.
    pub span: Span,
    /// Its kind; one without choices has only algorithms, or none.
    pub kind: Option<CommunicationType>,
    /// Its name for remarks.
    pub name: String,
    /// The tensor by which passes name it; `None` if they cannot split it.
    pub tensor: Option<String>,
}

/// Returns the communications of a program that is lowered without splitting them.
///
/// # Errors
/// The program cannot be lowered.
pub(super) fn communications(program: &Program) -> Result<Vec<Communication>, Diagnostic> {
    let mut lowered = program.clone();
    rewrite(&mut lowered, "propagate-shardings,decompose-resharding")?;
    let mut tensors = passes::splittable(&lowered);
    rewrite(&mut lowered, "lower-to-communication")?;
    let mut found = Vec::new();
    for id in lowered.stmts.ids() {
        let Stmt::Op(it) = &lowered.stmts[id] else { continue };
        if it.op != Op::Communication {
            continue;
        }
        let Some(word) = it.get(attr::TYPE) else { continue };
        let kind = Some(word).filter(|_| CHOICES.iter().any(|it| it.kind == Some(word)));
        let is_splittable = kind.is_some() || word == CommunicationType::AllToAll;
        let span = lowered.stmt_span(id);
        let is_same = |it: &Splittable| is_splittable && it.span == span && it.kind == word.facts().phrase;
        let tensor = tensors.iter().position(is_same).map(|at| tensors.remove(at).tensor);
        found.push(Communication { span, kind, name: word.text().to_owned(), tensor });
    }
    Ok(found)
}

/// Runs passes, as text, without checks.
///
/// # Errors
/// A pass does not exist, or fails: its first diagnostic.
pub(super) fn rewrite(program: &mut Program, passes: &str) -> Result<(), Diagnostic> {
    run_calls(program, &passes::parse(passes)?, &mut |_| {})
}

/// Runs passes without checks.
///
/// # Errors
/// A pass fails: its first diagnostic.
pub(super) fn run_calls(
    program: &mut Program,
    calls: &[PassCall],
    observe: &mut dyn FnMut(PassEvent<'_>),
) -> Result<(), Diagnostic> {
    let header = program.spans.header;
    let settings = Settings { verify: Verify::Off, roundtrip: false };
    passes::run(program, calls, settings, observe).map_err(|failure| {
        let first = failure.error.diagnostics().first().cloned();
        first.unwrap_or_else(|| {
            Diagnostic::new(Code::NotRewritten, header, failure.to_string(), "this program")
        })
    })
}
