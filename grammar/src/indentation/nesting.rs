//! Which statements belong to which loop or branch: by column, or, where indentation was lost, by what the pattern
//! of stream statements makes certain.

use super::{MAX_NESTING, StmtTokens, TokenStreamBuilder};
use crate::{
    codes::Code,
    diagnostic::{Diagnostic, Fix},
    span::Span,
    token::{Lexeme, TokenKind},
};

/// Adds the block tokens of `lines`. `home` is the column of the container's first line; `None`: nothing is lost
/// however flat the text (a HostUnit).
pub(super) fn insert_block_tokens(
    layout: &mut TokenStreamBuilder<'_, '_>,
    lines: &[StmtTokens],
    home: Option<u16>,
) {
    let mut columns = lines.iter().filter_map(|it| it.column);
    let first = columns.next();
    let flat = first <= home && columns.all(|column| Some(column) == first);
    let headers = lines.iter().any(|it| it.kind != TokenKind::End);
    if headers && flat && home.is_some() {
        nest_by_stream_pattern(layout, lines)
    } else {
        nest_by_column(layout, lines)
    }
}

fn nest_by_column(layout: &mut TokenStreamBuilder<'_, '_>, lines: &[StmtTokens]) {
    // Columns of the headers whose blocks are open; the statement before was one when `pending`.
    let mut headers: Vec<u16> = Vec::new();
    let (mut pending, mut column, mut reported) = (None, 0, false);
    for line in lines {
        let joined = line.column.is_none();
        match (pending.take(), line.column) {
            (Some(header), None) => column = header + 1,
            (_, None) => (),
            (_, Some(own)) => column = own,
        }
        while headers.last().is_some_and(|header| !joined && column <= *header) {
            headers.pop();
            layout.blocks.push((line.start, TokenKind::Close));
        }
        if line.kind == TokenKind::End {
            continue;
        }
        if headers.len() >= MAX_NESTING {
            if !reported {
                let span = span(layout, line);
                let message = format!("more than {MAX_NESTING} loops and branches inside each other");
                layout.diagnostics.push(Diagnostic::new(Code::Syntax, span, message, "too deep here"));
            }
            reported = true;
            layout.blocks.extend([(line.end, TokenKind::Open), (line.end, TokenKind::Close)]);
            continue;
        }
        headers.push(column);
        layout.blocks.push((line.end, TokenKind::Open));
        pending = Some(column);
    }
    let end = lines.last().map_or(0, |it| it.end);
    layout.blocks.extend(headers.iter().map(|_| (end, TokenKind::Close)));
}

/// Gives each loop of a flat text the statements that are certainly its own.
fn nest_by_stream_pattern(layout: &mut TokenStreamBuilder<'_, '_>, lines: &[StmtTokens]) {
    let mut captured: Vec<&str> = Vec::new();
    let mut recovered: Vec<Span> = Vec::new();
    let mut fixes: Vec<Fix> = Vec::new();
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        at += 1;
        if let Some(("GetCurrentStream", stream)) = stream_operand(layout, line) {
            captured.push(stream);
        }
        if line.kind == TokenKind::End {
            continue;
        }
        let length = if line.kind == TokenKind::For {
            body_length(layout, line, lines.get(at..).unwrap_or(&[]), &captured)
        } else {
            None
        };
        let span = span(layout, line);
        match length {
            Some(_) => recovered.push(span),
            None => layout.diagnostics.push(
                Diagnostic::new(
                    Code::LostIndentation,
                    span,
                    "indentation is lost, and nothing tells how far this body reaches",
                    "expected an indented body after this line",
                )
                .help("paste the text with its indentation"),
            ),
        }
        let body = length.unwrap_or(0);
        let (before, rest) = (line, lines.get(at..).unwrap_or(&[]));
        fixes.extend(indentation_fixes(layout, before, rest, body));
        at += body;
        let end = lines.get(at.saturating_sub(1)).map_or(line.end, |it| it.end);
        layout.blocks.extend([(line.end, TokenKind::Open), (end, TokenKind::Close)]);
    }
    let mut recovered = recovered.into_iter();
    if let Some(first) = recovered.next() {
        let warning = Diagnostic::new(
            Code::LossyIndent,
            first,
            "indentation is lost; the loops' bodies were recovered from the stream statements",
            "this loop's body reaches as far as its stream is current",
        );
        let warning = recovered.fold(warning, |warning, span| warning.label(span, "likewise"));
        let mut warning = warning.help("`hir-opt --fix` writes the text with its indentation");
        warning.fixes = fixes;
        layout.diagnostics.push(warning);
    }
}

/// The edits that set the first `body` of `rest` in below their header, and give the statement behind them a line of its
/// own.
fn indentation_fixes(
    layout: &TokenStreamBuilder<'_, '_>,
    header: &StmtTokens,
    rest: &[StmtTokens],
    body: usize,
) -> Vec<Fix> {
    let column = usize::from(header.column.unwrap_or(0));
    let edit = |(at, line): (usize, &StmtTokens)| {
        let start = span(layout, line).start;
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

/// How many of `rest` are certainly the body of the loop before them; `None` when that is not certain.
fn body_length(
    layout: &TokenStreamBuilder<'_, '_>,
    header: &StmtTokens,
    rest: &[StmtTokens],
    captured: &[&str],
) -> Option<usize> {
    let index = tokens(layout, header).get(1).map(|it| layout.text(*it))?;
    let own = |line: &StmtTokens| {
        tokens(layout, line).iter().any(|it| it.kind == TokenKind::Word && layout.text(*it) == index)
    };
    // The joining loop waits for every stream and does nothing else.
    if rest
        .first()
        .is_some_and(|it| own(it) && matches!(stream_operand(layout, it), Some(("Synchronize", _))))
    {
        return Some(1);
    }
    let mut streams_only = true;
    let mut captured = captured.to_vec();
    for (at, line) in rest.iter().enumerate() {
        if line.kind == TokenKind::For {
            // No loop binds its own index again: a prologue of stream statements ends here.
            let again = tokens(layout, line).get(1).is_some_and(|it| layout.text(*it) == index);
            return (again && streams_only && at > 0).then_some(at);
        }
        if line.kind != TokenKind::End {
            return None;
        }
        match stream_operand(layout, line) {
            Some(("GetCurrentStream", stream)) => captured.push(stream),
            Some(("SetCurrentStream", stream)) if captured.contains(&stream) => {
                // Waiting for the loop's own stream afterwards can only happen inside.
                let joins = rest.get(at + 1).is_some_and(|it| {
                    own(it) && matches!(stream_operand(layout, it), Some(("Synchronize", _)))
                });
                return Some(if joins { at + 2 } else { at });
            }
            Some(_) => (),
            None => streams_only = false,
        }
    }
    None
}

/// The name and the stream of a statement on streams, in either spelling.
fn stream_operand<'s>(layout: &TokenStreamBuilder<'s, '_>, line: &StmtTokens) -> Option<(&'s str, &'s str)> {
    let tokens = tokens(layout, line);
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
    let text = layout.source.slice(operand.first()?.start, operand.last()?.end);
    Some((layout.text(*name), text))
}

fn tokens<'a>(layout: &'a TokenStreamBuilder<'_, '_>, line: &StmtTokens) -> &'a [Lexeme] {
    layout.output.get(line.start as usize..line.end as usize).unwrap_or(&[])
}

fn span(layout: &TokenStreamBuilder<'_, '_>, line: &StmtTokens) -> Span {
    let tokens = tokens(layout, line);
    let start = tokens.first().map_or(0, |it| it.start);
    Span { start, end: tokens.last().map_or(start, |it| it.end) }
}
