//! Determines which statements belong to which loop or branch: by column, or, if indentation is lost, by the
//! patterns of stream statements that determine the nesting with certainty.

use super::{MAX_NESTING, StmtTokens, TokenStreamBuilder};
use crate::{
    codes::Code,
    diagnostic::{Diagnostic, Fix},
    span::Span,
    token::{Lexeme, TokenKind},
};

/// Inserts the block tokens of `lines`. `container_column` is the column of the container's first line;
/// `None` means that a flat text has not lost its indentation (a HostUnit).
pub(super) fn insert_block_tokens(
    builder: &mut TokenStreamBuilder<'_, '_>,
    lines: &[StmtTokens],
    container_column: Option<u16>,
) {
    let mut columns = lines.iter().filter_map(|it| it.column);
    let first = columns.next();
    let flat = first <= container_column && columns.all(|column| Some(column) == first);
    let headers = lines.iter().any(|it| it.kind != TokenKind::End);
    if headers && flat && container_column.is_some() {
        nest_by_stream_pattern(builder, lines)
    } else {
        nest_by_column(builder, lines)
    }
}

/// A loop or branch whose block is open.
struct OpenHeader {
    column: u16,
    span: Span,
    /// The column of the first statement of the block.
    body_column: Option<u16>,
}

fn nest_by_column(builder: &mut TokenStreamBuilder<'_, '_>, lines: &[StmtTokens]) {
    let mut headers: Vec<OpenHeader> = Vec::new();
    // The column of the first statement outside all loops and branches.
    let mut outer_column = None;
    // `pending`: the column of the previous statement if it is a header.
    let (mut pending, mut column, mut reported) = (None, 0, false);
    let has_blocks = lines.iter().any(|it| it.kind != TokenKind::End);
    for line in lines {
        let joined = line.column.is_none();
        match (pending.take(), line.column) {
            (Some(header), None) => column = header + 1,
            (_, None) => (),
            (_, Some(own)) => column = own,
        }
        while headers.last().is_some_and(|header| !joined && column <= header.column) {
            headers.pop();
            builder.blocks.push((line.start, TokenKind::Close));
        }
        if let Some(own) = line.column {
            let expected = headers.last_mut().map_or(&mut outer_column, |it| &mut it.body_column);
            // A line that is indented further than the first line cannot belong to another block.
            if own < *expected.get_or_insert(own) && has_blocks {
                report_column(builder, line, headers.last().map(|it| it.span));
            }
        }
        if line.kind == TokenKind::End {
            continue;
        }
        let span = span(builder, line);
        if headers.len() >= MAX_NESTING {
            if !reported {
                let message = format!("more than {MAX_NESTING} nested loops and branches");
                builder.diagnostics.push(Diagnostic::new(
                    Code::Syntax,
                    span,
                    message,
                    "the nesting exceeds the limit here",
                ));
            }
            reported = true;
            builder.blocks.extend([(line.end, TokenKind::Open), (line.end, TokenKind::Close)]);
            continue;
        }
        headers.push(OpenHeader { column, span, body_column: None });
        builder.blocks.push((line.end, TokenKind::Open));
        pending = Some(column);
    }
    let end = lines.last().map_or(0, |it| it.end);
    builder.blocks.extend(headers.iter().map(|_| (end, TokenKind::Close)));
}

/// Reports a line that is indented less than the first line of its block, that of `header`.
fn report_column(builder: &mut TokenStreamBuilder<'_, '_>, line: &StmtTokens, header: Option<Span>) {
    let span = span(builder, line);
    let message = "the indentation of this line does not show to which block it belongs";
    let it = match header {
        Some(header) => {
            Diagnostic::new(Code::LossyIndent, span, message, "indented less than the lines before it")
                .label(header, "assumed: it belongs to the block of this statement")
        }
        None => {
            Diagnostic::new(Code::LossyIndent, span, message, "assumed: it is outside all loops and branches")
        }
    };
    builder.diagnostics.push(it.help("indent all lines of a block equally"));
}

/// Assigns to each loop of a flat text the statements that certainly belong to it, and reports the headers
/// whose body cannot be determined.
fn nest_by_stream_pattern(builder: &mut TokenStreamBuilder<'_, '_>, lines: &[StmtTokens]) {
    let mut captured: Vec<&str> = Vec::new();
    let mut recovered: Vec<Span> = Vec::new();
    let mut fixes: Vec<Fix> = Vec::new();
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        at += 1;
        if let Some(("GetCurrentStream", stream)) = stream_operand(builder, line) {
            captured.push(stream);
        }
        if line.kind == TokenKind::End {
            continue;
        }
        let length = if line.kind == TokenKind::For {
            body_length(builder, line, lines.get(at..).unwrap_or(&[]), &captured)
        } else {
            None
        };
        let span = span(builder, line);
        match length {
            Some(_) => recovered.push(span),
            None => builder.diagnostics.push(
                Diagnostic::new(
                    Code::LostIndentation,
                    span,
                    "the indentation is lost, and the end of this body cannot be determined",
                    "expected an indented body after this line",
                )
                .help("paste the text with its indentation"),
            ),
        }
        let body = length.unwrap_or(0);
        let (before, rest) = (line, lines.get(at..).unwrap_or(&[]));
        fixes.extend(indentation_fixes(builder, before, rest, body));
        at += body;
        let end = lines.get(at.saturating_sub(1)).map_or(line.end, |it| it.end);
        builder.blocks.extend([(line.end, TokenKind::Open), (end, TokenKind::Close)]);
    }
    let mut recovered = recovered.into_iter();
    if let Some(first) = recovered.next() {
        let warning = Diagnostic::new(
            Code::LossyIndent,
            first,
            "the indentation is lost; the loop bodies were recovered from the stream statements",
            "assumed: the body of this loop ends where its stream is no longer current",
        );
        let warning = recovered.fold(warning, |warning, span| warning.label(span, "this body, too"));
        let mut warning = warning.help("use `hir-opt --fix` to restore the indentation");
        warning.fixes = fixes;
        builder.diagnostics.push(warning);
    }
}

/// Returns the edits that indent the first `body` statements of `rest` below their header and move the
/// statement after them to its own line.
fn indentation_fixes(
    builder: &TokenStreamBuilder<'_, '_>,
    header: &StmtTokens,
    rest: &[StmtTokens],
    body: usize,
) -> Vec<Fix> {
    let column = usize::from(header.column.unwrap_or(0));
    let edit = |(at, line): (usize, &StmtTokens)| {
        let start = span(builder, line).start;
        let text = match (line.column, at < body) {
            (Some(own), true) => " ".repeat((column + 2).saturating_sub(usize::from(own))),
            (None, true) => format!("\n{}", " ".repeat(column + 2)),
            (Some(_), false) => return None,
            (None, false) => format!("\n{}", " ".repeat(column)),
        };
        Some(Fix { span: Span { start, end: start }, text })
    };
    rest.iter().take(body + 1).enumerate().filter_map(edit).collect()
}

/// Returns how many statements of `rest` certainly form the body of the loop before them, or `None` if that
/// is not certain.
fn body_length(
    builder: &TokenStreamBuilder<'_, '_>,
    header: &StmtTokens,
    rest: &[StmtTokens],
    captured: &[&str],
) -> Option<usize> {
    let index = tokens(builder, header).get(1).map(|it| builder.text(*it))?;
    let own = |line: &StmtTokens| {
        tokens(builder, line).iter().any(|it| it.kind == TokenKind::Word && builder.text(*it) == index)
    };
    // A joining loop synchronizes with every stream and contains no other statement.
    if rest
        .first()
        .is_some_and(|it| own(it) && matches!(stream_operand(builder, it), Some(("Synchronize", _))))
    {
        return Some(1);
    }
    let mut streams_only = true;
    let mut captured = captured.to_vec();
    for (at, line) in rest.iter().enumerate() {
        if line.kind == TokenKind::For {
            // A loop never rebinds its own index, so a prologue of stream statements ends here.
            let again = tokens(builder, line).get(1).is_some_and(|it| builder.text(*it) == index);
            return (again && streams_only && at > 0).then_some(at);
        }
        if line.kind != TokenKind::End {
            return None;
        }
        match stream_operand(builder, line) {
            Some(("GetCurrentStream", stream)) => captured.push(stream),
            Some(("SetCurrentStream", stream)) if captured.contains(&stream) => {
                // A synchronization with the loop's own stream after this statement can only be inside the
                // loop.
                let joins = rest.get(at + 1).is_some_and(|it| {
                    own(it) && matches!(stream_operand(builder, it), Some(("Synchronize", _)))
                });
                return Some(if joins { at + 2 } else { at });
            }
            Some(_) => (),
            None => streams_only = false,
        }
    }
    None
}

/// Returns the name and the stream operand of a stream statement, in keyword style or call style.
fn stream_operand<'s>(builder: &TokenStreamBuilder<'s, '_>, line: &StmtTokens) -> Option<(&'s str, &'s str)> {
    let tokens = tokens(builder, line);
    let tokens = tokens.strip_suffix(&[]).unwrap_or(tokens);
    let first = tokens.first()?;
    let stream = tokens.iter().position(|it| it.kind == TokenKind::Stream)?;
    if tokens.iter().any(|it| it.kind == TokenKind::Tensor) {
        return None;
    }
    let (name, operand) = if first.kind == TokenKind::Stream {
        let assign = tokens.iter().position(|it| it.kind == TokenKind::Assign)?;
        (tokens.get(assign + 1)?, tokens.get(1..assign)?)
    } else {
        let call = tokens.get(1).is_some_and(|it| it.kind == TokenKind::ParenOpen);
        let end = tokens.iter().rposition(|it| it.kind != TokenKind::End)? + usize::from(!call);
        (first, tokens.get(stream + 1..end)?)
    };
    let text = builder.source.slice(operand.first()?.start, operand.last()?.end);
    Some((builder.text(*name), text))
}

fn tokens<'a>(builder: &'a TokenStreamBuilder<'_, '_>, line: &StmtTokens) -> &'a [Lexeme] {
    builder.output.get(line.start as usize..line.end as usize).unwrap_or(&[])
}

fn span(builder: &TokenStreamBuilder<'_, '_>, line: &StmtTokens) -> Span {
    let tokens = tokens(builder, line);
    let start = tokens.first().map_or(0, |it| it.start);
    Span { start, end: tokens.last().map_or(start, |it| it.end) }
}
