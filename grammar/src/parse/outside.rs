//! Reports text outside of containers that belongs to a program: a misplaced closing brace, a lost heading or
//! a misspelled first line would otherwise shorten the program silently. Lines of logs are skipped.

use std::ops::Range;

use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    fusion_dump::FusionLog,
    ops::{AsmFormat, OPS},
    raw_bytes::raw_byte,
    span::Span,
    suggest::nearest,
};

/// The word that begins a container.
const MARKER: &str = "%HostIrContainer";

/// The line that ends a container.
const END: &str = "} // %HostIrContainer";

/// Returns the error about a text without containers.
pub(super) fn no_container(source: &str, log: &FusionLog<'_>) -> Diagnostic {
    misspelled_container(source, 0).unwrap_or_else(|| {
        // Blank lines before the text are those of other parts of the file (`--split-input-file`). If the text is blank,
        // the error is at its last line.
        let last = source.strip_suffix('\n').unwrap_or(source).len();
        let start = source.find(|it: char| !it.is_whitespace()).unwrap_or(last);
        let end = source[start..].find('\n').map_or(source.len(), |it| start + it);
        let message = "no `%HostIrContainer` in this text";
        let label = "expected `%HostIrContainer { (inputs) -> (outputs) :`";
        let it = Diagnostic::new(Code::NoContainer, Span::new(start, end), message, label);
        match (log.first(), utf_16(source)) {
            (Some(fusion), _) => it.label(fusion, "a fusion, which is not a program by itself").help(
                "nvFuser prints the program that executes a fusion with `NVFUSER_ENABLE=host_ir_lowering` and `NVFUSER_DUMP=host_ir,segmented_fusion`",
            ),
            (None, Some(encoding)) => {
                it.help(format!("the text is UTF-16: convert it with `iconv -f {encoding} -t utf-8`"))
            }
            (None, None) => it.help(other_tool(source).unwrap_or("nvFuser prints one with `NVFUSER_DUMP=host_ir`")),
        }
    })
}

/// Returns what to do with a text that hir reads elsewhere, or in another form.
fn other_tool(source: &str) -> Option<&'static str> {
    let text = source.trim_start();
    if source.contains(END) {
        return Some(
            "the begin of the program is missing: copy all of it, from `%HostIrContainer { (inputs) -> (outputs) :` on",
        );
    }
    let first: String = source.chars().take(4).map(|it| raw_byte(it).map_or(it, char::from)).collect();
    if ["BZh", "\u{fd}7zX", "(\u{b5}/\u{fd}"].iter().any(|it| first.starts_with(it)) {
        return Some("the text is compressed: decompress it with `bzip2 -d`, `xz -d` or `zstd -d`");
    }
    if text.starts_with("HloModule") {
        return Some("this is HLO: hir reads StableHLO, which `jax.jit(f).lower(*args).as_text()` writes");
    }
    // PyTorch's dumps are pickles, which begin with the byte 0x80, or JSON.
    let is_pickle = text.chars().next().is_some_and(|it| raw_byte(it) == Some(0x80));
    let is_dump = (is_pickle || text.starts_with('{')) && text.contains("pg_config");
    is_dump.then_some(
        "this is a dump of PyTorch's flight recorder: `hir hang FOLDER` explains the dumps of all ranks",
    )
}

/// Returns the name of the encoding, if a text has a container in UTF-16, as PowerShell redirects output. Its byte order is in the name
/// unless the text begins with a mark that states it, which is not UTF-8.
fn utf_16(source: &str) -> Option<&'static str> {
    let wide: String = MARKER.chars().flat_map(|it| [it, '\0']).collect();
    source.contains(wide.trim_end_matches('\0')).then(|| match source.chars().next() {
        Some(mark) if raw_byte(mark).is_some() => "utf-16",
        Some('\0') => "utf-16be",
        _ => "utf-16le",
    })
}

/// Reports the text in `gap`, which is before, between or after the containers of `source`, unless it is a fusion of `log`.
pub(super) fn diagnose(
    source: &str,
    gap: Range<usize>,
    log: &FusionLog<'_>,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let Some(text) = source.get(gap.clone()).filter(|it| !it.trim().is_empty()) else { return };
    let (start, is_behind) = (gap.start, gap.start > 0);
    let error = if is_behind {
        stray_closer(source, gap.start, gap.end).or_else(|| misspelled_container(text, start))
    } else {
        misspelled_container(text, start)
    };
    if let Some(error) = error {
        diagnostics.push(error);
        return;
    }
    let mut lines: Vec<(usize, &str)> = Vec::new();
    let mut at = start;
    for line in text.split_inclusive('\n') {
        if !log.contains(at) {
            lines.push((at, line.trim_end()));
        }
        at += line.len();
    }
    if is_behind && !source.get(..start).is_some_and(|it| it.ends_with('\n')) && !lines.is_empty() {
        let (at, line) = lines.remove(0);
        diagnostics.extend(text_behind_closer(line, at));
    }
    diagnostics.extend(program_lines(&lines, is_behind));
}

/// Reports a line that begins like a container but does not begin one, in a text at offset `base`.
fn misspelled_container(text: &str, base: usize) -> Option<Diagnostic> {
    let mut at = base;
    for line in text.split_inclusive('\n') {
        let start = at + line.len() - line.trim_start().len();
        at += line.len();
        let word = line.trim_start().split([' ', '\t', '{', '\n', '\r']).next().unwrap_or("");
        let span = Span::new(start, start + word.len());
        if word == MARKER {
            let place = Span { start: span.end, end: span.end };
            let it =
                Diagnostic::new(Code::NoContainer, place, "the container has no `{`", "expected ` {` here");
            return Some(it.fix(place, " {"));
        }
        if word.starts_with(['%', 'H', 'h']) && nearest(word, std::iter::once(MARKER)).is_some() {
            let it = Diagnostic::new(
                Code::NoContainer,
                span,
                format!("`{word}` does not begin a container"),
                format!("expected `{MARKER}`"),
            );
            return Some(it.fix(span, MARKER));
        }
    }
    None
}

/// Reports a closing brace between containers: the container before it ended too early, and the text between
/// them was skipped.
fn stray_closer(source: &str, from: usize, to: usize) -> Option<Diagnostic> {
    const CLOSER: &str = "} // %HostIrContainer";
    let text = source.get(from..to).filter(|_| from > 0)?;
    let begins_line = |at: &usize| {
        let before = text.get(..*at).unwrap_or("").trim_end_matches([' ', '\t', '}']);
        before.is_empty() || before.ends_with('\n')
    };
    let found = text.match_indices(CLOSER).map(|(at, _)| at).find(begins_line)?;
    let span = Span::new(from + found, from + found + 1);
    let message = "`}` closes a container that has already ended";
    let last = source.get(..from)?.chars().next_back().map_or(0, char::len_utf8);
    let early = Span::new(from - last, from);
    Some(
        Diagnostic::new(Code::Syntax, span, message, "expected no second `}`")
            .label(early, "the container ended here"),
    )
}

/// Reports text on the line of the brace that closes a container. `line` is the text behind the brace.
fn text_behind_closer(line: &str, at: usize) -> Option<Diagnostic> {
    let text = line.trim_start();
    if text.is_empty() || text.starts_with("//") || text.starts_with('#') {
        return None;
    }
    let start = at + line.len() - text.len();
    let span = Span::new(start, start + text.len());
    let message = "text follows the closing brace of the container on its line";
    let it = Diagnostic::new(Code::LossyText, span, message, "not read");
    Some(it.help("if it belongs to the program, move the brace behind it; otherwise remove it"))
}

/// Reports the lines that read as lines of a program. `is_behind`: a container precedes them.
fn program_lines(lines: &[(usize, &str)], is_behind: bool) -> Option<Diagnostic> {
    let mut found: Vec<Span> = Vec::new();
    // `in_kernel`: in the dump of a fusion, which has statements, too.
    let (mut in_kernel, mut is_directly_behind) = (false, is_behind);
    for (number, (at, line)) in lines.iter().enumerate() {
        let text = line.trim_start();
        if in_kernel || text.starts_with("%kernel") {
            in_kernel = !text.starts_with('}');
            continue;
        }
        let below = lines.get(number + 1).map_or("", |it| it.1.trim_start());
        if is_program_line(text, below) || is_directly_behind && is_definition(text) {
            let start = at + line.len() - text.len();
            found.push(Span::new(start, start + text.len()));
        }
        is_directly_behind &= text.is_empty() || is_definition(text);
    }
    let first = found.first()?;
    let where_ = if is_behind { "behind the closing brace of a container" } else { "before the container" };
    let message = match found.len() {
        1 => format!("a line of a program is {where_}"),
        count => format!("{count} lines of a program are {where_}"),
    };
    let it = Diagnostic::new(Code::LossyText, *first, message, "not read");
    Some(
        it.help(
            "move the text into the container, or below `Index definitions:` or `Domains:`; or remove it",
        ),
    )
}

/// Returns whether a line, without blanks around it, is a statement, a heading or a line of `Domains:`. `below`
/// is the next line.
fn is_program_line(line: &str, below: &str) -> bool {
    let word_end = line.find(|it: char| !it.is_ascii_alphanumeric() && it != '_').unwrap_or(line.len());
    let (word, rest) = line.split_at(word_end);
    let has_number = |prefix: &str| {
        let digits = word.strip_prefix(prefix).unwrap_or("");
        !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit())
    };
    let is_result = rest.contains(" = ") || rest.ends_with(" =") || below.starts_with("= ");
    match word {
        "FOR" => (rest.contains(" in ") || rest.contains(" from ")) && rest.ends_with(':'),
        "IF" => rest.starts_with(" Manual"),
        "ELSE" => rest == ":",
        "Domains" => rest == ":",
        "Index" => rest == " definitions:",
        "Stream" => is_result,
        _ if has_number("HostUnit") => rest.starts_with(": Inputs={") || rest.starts_with(": [...]"),
        _ if has_number("T") => rest.starts_with(" = ") || is_domain(rest),
        _ if word.starts_with('T') && word.contains('_') => rest.starts_with('[') && is_result,
        _ => is_statement(word, rest),
    }
}

/// Returns whether the text behind `T3` is that of a line of `Domains:`.
fn is_domain(rest: &str) -> bool {
    let clause = rest.strip_prefix(':').map(str::trim_start);
    clause.is_some_and(|it| ["logical(", "allocation("].iter().any(|clause| it.contains(clause)))
}

/// Returns whether a line is a statement that begins with the name of an operator.
fn is_statement(word: &str, rest: &str) -> bool {
    let operand = rest.trim_start();
    let named = ["Stream ", "Communication ", "to Stream ", "into Stream "];
    OPS.iter().filter(|it| it.mnemonic == word).any(|it| match it.format {
        AsmFormat::Bare => {
            operand.is_empty() || operand.bytes().all(|it| it.is_ascii_digit()) && rest.len() > operand.len()
        }
        AsmFormat::Statement | AsmFormat::Post | AsmFormat::Launch => {
            operand.starts_with('(') || named.iter().any(|it| operand.starts_with(it))
        }
        AsmFormat::Numbered => operand.starts_with(|it: char| it.is_ascii_digit()) && operand.contains('('),
        AsmFormat::Block => operand.starts_with('{'),
        AsmFormat::Call
        | AsmFormat::Padded
        | AsmFormat::Wrapped
        | AsmFormat::Function
        | AsmFormat::Infix
        | AsmFormat::Prefix => false,
    })
}

/// Returns whether a line is the definition of a scalar, as `Index definitions:` has it. Kernels have such lines,
/// too.
fn is_definition(line: &str) -> bool {
    let name = line.split_once(" = ").map_or("", |(name, _)| name);
    let digits = name.strip_prefix('i').unwrap_or("");
    !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit())
}
