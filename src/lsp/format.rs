//! Writes the programs of a text in canonical or in short form. Comments, and the lines of a log around the programs, stay.

use grammar::{NO_DOMAINS, Place, Program, Source, StmtId, has_errors};

use crate::snapshot::Snapshot;

/// A form of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Canonical text.
    Canonical,
    /// Canonical text with one line for each tensor and short names after it.
    Short,
}

/// Why a text cannot be rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FormatError {
    /// The text has errors.
    #[error("the text has errors: correct them first")]
    Rejected,
    /// The text has no program.
    #[error("the text has no program")]
    NoProgram,
    /// Lines of one program are between those of another one.
    #[error(
        "the lines of several programs are mixed, as in a log of several ranks: copy one program into a file"
    )]
    Mixed,
    /// A comment would be lost, or a program would change.
    #[error("a comment has no place in the new text: `hir opt` writes the text without comments")]
    Comments,
}

impl Form {
    /// Returns the form of a text, which formatting keeps.
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        let is_declaration = |(place, _)| matches!(place, Place::Declaration(_));
        let is_short = snapshot.programs.iter().any(|it| it.places().any(is_declaration));
        if is_short { Self::Short } else { Self::Canonical }
    }

    fn print(self, program: &Program) -> String {
        match self {
            Self::Canonical => grammar::print(program),
            Self::Short => {
                let mut text = Vec::new();
                // Writing to memory does not fail, and the printer writes valid UTF-8.
                let _ = grammar::write_short(program, &mut text);
                String::from_utf8(text).unwrap_or_default()
            }
        }
    }
}

/// Returns the text with its programs in another form.
///
/// # Errors
/// See [`FormatError`].
pub(crate) fn rewritten(snapshot: &Snapshot, form: Form) -> Result<String, FormatError> {
    if snapshot.is_rejected() {
        return Err(FormatError::Rejected);
    }
    if snapshot.programs.is_empty() {
        return Err(FormatError::NoProgram);
    }
    let text = snapshot.text();
    let mut new = String::with_capacity(text.len());
    let mut done = 0;
    for program in &snapshot.programs {
        let (start, end) = snapshot.extent(program);
        new += text.get(done..start).ok_or(FormatError::Mixed)?;
        new +=
            &with_comments(program, text, (start, end), form.print(program)).ok_or(FormatError::Comments)?;
        done = end;
    }
    new += text.get(done..).unwrap_or("");
    // The rewritten text must have the same programs.
    let (programs, found) = Source::new(String::new(), new.clone()).programs();
    let canonical = |it: &[Program]| it.iter().map(grammar::print).collect::<Vec<_>>();
    if has_errors(&found) || canonical(&programs) != canonical(&snapshot.programs) {
        return Err(FormatError::Comments);
    }
    Ok(new)
}

/// Returns the new text of a program with its comments: one on a line of its own is before the same statement as before, one
/// behind a statement is behind the same one. `None` if that is not possible.
fn with_comments(program: &Program, text: &str, extent: (usize, usize), printed: String) -> Option<String> {
    let inside = |at: u32| (extent.0..extent.1).contains(&(at as usize));
    let comments = program.spans.comments.iter().enumerate();
    let comments: Vec<_> = comments
        .map(|(at, it)| (at, it, it.span.text(text).trim_end()))
        .filter(|(_, it, words)| inside(it.span.start) && !is_end_mark(words) && *words != NO_DOMAINS)
        .collect();
    if comments.is_empty() {
        return Some(printed);
    }
    let (programs, _) = grammar::read(&printed);
    let [new] = &programs[..] else { return None };
    let (old_order, new_order) = (in_text_order(program), in_text_order(new));
    if old_order.len() != new_order.len() {
        return None;
    }
    let mut inserted: Vec<(usize, String)> = Vec::new();
    for (at, comment, words) in comments {
        let before_header = comment.span.start < program.spans.header.start;
        let Some(stmt) = program.commented(at).filter(|_| !before_header) else {
            let place = if before_header { 0 } else { printed.len() };
            inserted.push((place, format!("{words}\n")));
            continue;
        };
        let span = new.stmt_span(new_order[old_order.iter().position(|it| *it == stmt)?]);
        if comment.is_alone {
            let line = printed.get(..span.start as usize)?.rfind('\n').map_or(0, |it| it + 1);
            let indent: String = printed.get(line..)?.chars().take_while(|it| *it == ' ').collect();
            inserted.push((line, format!("{indent}{words}\n")));
        } else {
            let end = span.end as usize;
            let end = end + printed.get(end..)?.find('\n').unwrap_or(printed.len() - end);
            inserted.push((end, format!("  {words}")));
        }
    }
    inserted.sort_by_key(|it| it.0);
    let (mut whole, mut done) = (String::with_capacity(printed.len()), 0);
    for (at, words) in inserted {
        whole += printed.get(done..at)?;
        whole += &words;
        done = at;
    }
    Some(whole + printed.get(done..)?)
}

/// Returns whether a comment is what dumps print behind a closing bracket.
fn is_end_mark(words: &str) -> bool {
    words.trim_start_matches(['/', '#', ' ']).starts_with('%')
}

fn in_text_order(program: &Program) -> Vec<StmtId> {
    let mut all: Vec<StmtId> = program.stmts.ids().collect();
    all.sort_by_key(|it| program.stmt_span(*it));
    all
}
