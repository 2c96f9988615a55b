//! Definitions, references and new names.

use grammar::{Code, Diagnostic, Program, Source};
use lsp_types::{DocumentHighlight, DocumentHighlightKind, Location, Range, TextEdit, Uri};

use crate::{
    names::{self, Named, Occurrence, Role},
    refusal::Refusal,
    snapshot::Snapshot,
};

/// Returns the name at an offset, and all names of its program.
fn names_at(snapshot: &Snapshot, offset: u32) -> Option<(&Program, Occurrence, Vec<Occurrence>)> {
    let program = snapshot.program_at(offset)?;
    let mut found = names::occurrences(snapshot, program);
    let named = names::at(&found, offset)?;
    found.retain(|it| it.named == named.named);
    Some((program, named, found))
}

/// Returns where the name at an offset is defined: of several definitions, such as posts with one number, the last ones before the
/// offset count first. Without a definition, the first mention.
pub(crate) fn definition(uri: &Uri, snapshot: &Snapshot, offset: u32) -> Option<Location> {
    let offset = names::behind_keyword(snapshot.text(), offset);
    let (_, _, found) = names_at(snapshot, offset)?;
    let defined: Vec<&Occurrence> = found.iter().filter(|it| it.role == Role::Definition).collect();
    let before = defined.iter().rev().find(|it| it.span.start <= offset);
    let it = before.or(defined.first()).copied().or(found.first())?;
    Some(Location::new(uri.clone(), snapshot.range(it.span)))
}

/// Returns where the text mentions the name at an offset.
pub(crate) fn references(
    uri: &Uri,
    snapshot: &Snapshot,
    offset: u32,
    with_definition: bool,
) -> Option<Vec<Location>> {
    let (_, _, found) = names_at(snapshot, names::behind_keyword(snapshot.text(), offset))?;
    let wanted = found.iter().filter(|it| with_definition || it.role != Role::Definition);
    Some(wanted.map(|it| Location::new(uri.clone(), snapshot.range(it.span))).collect())
}

/// Returns where the text mentions the name at an offset, and whether it writes it there.
pub(crate) fn highlights(snapshot: &Snapshot, offset: u32) -> Option<Vec<DocumentHighlight>> {
    let (_, _, found) = names_at(snapshot, names::behind_keyword(snapshot.text(), offset))?;
    let kind = |it: Role| match it {
        Role::Definition | Role::Write => DocumentHighlightKind::WRITE,
        Role::Read => DocumentHighlightKind::READ,
        Role::Mention => DocumentHighlightKind::TEXT,
    };
    let highlight =
        |it: &Occurrence| DocumentHighlight { range: snapshot.range(it.span), kind: Some(kind(it.role)) };
    Some(found.iter().map(highlight).collect())
}

/// Returns the range of the name at an offset, if it can be renamed.
pub(crate) fn renamed_range(snapshot: &Snapshot, offset: u32) -> Option<Range> {
    let (program, it, _) = names_at(snapshot, offset)?;
    let is_given = match it.named {
        Named::Symbol(symbol) => grammar::ir::predefined_meaning(&program.symbols[symbol]).is_none(),
        Named::Tensor(_) | Named::Stream(_) | Named::Work(_) | Named::Unit(_) => true,
    };
    is_given.then(|| snapshot.range(it.span))
}

/// Returns the edits that give the name at an offset another one.
///
/// # Errors
/// Why it cannot have the new name.
pub(crate) fn rename(snapshot: &Snapshot, offset: u32, new: &str) -> Result<Vec<TextEdit>, Refusal> {
    if snapshot.is_rejected() {
        return Err(Refusal::Rejected);
    }
    if renamed_range(snapshot, offset).is_none() {
        return Err(Refusal::NoName);
    }
    let (program, it, found) = names_at(snapshot, offset).ok_or(Refusal::NoName)?;
    let text = snapshot.text();
    let kind = match it.named {
        Named::Tensor(_) => "a tensor, such as `T3`",
        Named::Symbol(_) => "a scalar of the same type, such as `i84`",
        Named::Stream(_) => "a stream, such as `s0`",
        Named::Work(_) => "a number",
        Named::Unit(_) => "a HostUnit, such as `HostUnit3`",
    };
    let old = it.span.text(text);
    // A name has a prefix that says what it is, and a number.
    let parts = |it: &str| {
        let digits = it.len() - it.trim_end_matches(|it: char| it.is_ascii_digit()).len();
        (it[..it.len() - digits].to_owned(), it[it.len() - digits..].to_owned())
    };
    let (prefix, number) = parts(new);
    if prefix != parts(old).0 || number.is_empty() || number.len() > 9 {
        return Err(Refusal::OtherKind { name: new.to_owned(), kind });
    }
    let all = names::occurrences(snapshot, program);
    if all.iter().any(|it| {
        it.span.text(text) == new
            && std::mem::discriminant(&it.named) == std::mem::discriminant(&found[0].named)
    }) {
        return Err(Refusal::NameTaken(new.to_owned()));
    }
    let mut renamed = String::with_capacity(text.len());
    let mut done = 0;
    for it in &found {
        renamed += text.get(done..it.span.start as usize).unwrap_or("");
        renamed += new;
        done = it.span.end as usize;
    }
    renamed += text.get(done..).unwrap_or("");
    // The name may also stand in a part of a log that belongs to no program, such as the group of a kernel.
    let source = Source::new(String::new(), renamed);
    let (programs, faults) = source.programs();
    let count = |all: &[Diagnostic], code: Code| all.iter().filter(|it| it.code == code).count();
    let fault = faults.iter().rfind(|it| count(&faults, it.code) > count(&snapshot.diagnostics, it.code));
    if let Some(fault) = fault {
        let line = fault.labels.first().map_or(1, |it| source.lines.line(it.0.start));
        return Err(Refusal::NameRejected { name: new.to_owned(), line, fault: Box::new(fault.clone()) });
    }
    if programs.len() != snapshot.programs.len() {
        return Err(Refusal::OtherPrograms(new.to_owned()));
    }
    Ok(found.iter().map(|it| TextEdit::new(snapshot.range(it.span), new.to_owned())).collect())
}
