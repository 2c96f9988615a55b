//! Checks that GetCurrentStream captures a named stream before it is used.

use super::Verifier;
use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{OpStmt, Operand, Stream},
    span::Span,
    suggest::list_text,
};

impl Verifier<'_> {
    pub(super) fn check_streams(&mut self, stmt: &OpStmt, span: Span) {
        let number = |operand: &Operand| match operand {
            Operand::Stream(id) => match self.program.streams[*id] {
                Stream::Named(number) => Some(number),
                Stream::Index(_) => None,
            },
            Operand::Tensor(_) | Operand::Scalar(_) => None,
        };
        if let Some(number) = stmt.args.iter().filter_map(number).find(|it| !self.captured.contains(it)) {
            let (name, place) = self.stream_name(number, span);
            let message = format!("stream `{name}` is used before GetCurrentStream captures it");
            let label = match self.captured_names.as_slice() {
                [] => format!("expected `Stream {name} = GetCurrentStream()` before this"),
                all => format!(
                    "the streams captured before this: {}",
                    list_text(all.iter().map(String::as_str), 6, "and")
                ),
            };
            let it = Diagnostic::new(Code::UndefinedStream, place, message, label);
            self.diagnostics.push(it.suggest(&name, self.captured_names.iter().map(String::as_str)));
            // Each stream is reported once.
            self.captured.insert(number);
        }
        if let Some(number) = stmt.outs.iter().find_map(number) {
            let (name, _) = self.stream_name(number, span);
            self.captured_names.push(name);
        }
        self.captured.extend(stmt.outs.iter().filter_map(number));
    }

    /// Returns the name of the stream object in a statement and its position. Without the source text, these are
    /// the canonical name and the statement.
    fn stream_name(&self, number: u32, span: Span) -> (String, Span) {
        let canonical = || (format!("s{number}"), span);
        let Some(text) = self.source.map(|it| span.text(it)) else { return canonical() };
        let Some(at) = text.find("Stream ").map(|it| it + "Stream ".len()) else { return canonical() };
        // `SetCurrentStream to Stream s0`, `Synchronize Stream 0x2a`.
        let at = text.get(at..).and_then(|it| it.find("Stream ")).map_or(at, |it| at + it + "Stream ".len());
        let rest = text.get(at..).unwrap_or("");
        let name: String = rest.chars().take_while(|it| it.is_ascii_alphanumeric() || *it == '_').collect();
        if name.is_empty() {
            return canonical();
        }
        let start = span.start + at as u32;
        let place = Span { start, end: start + name.len() as u32 };
        (name, place)
    }
}
