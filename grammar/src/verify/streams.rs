//! Checks that GetCurrentStream captures a named stream before it is used.

use super::Verifier;
use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{OpStmt, Operand, Part, StmtId, Stream},
    suggest::list_text,
};

impl Verifier<'_> {
    pub(super) fn check_streams(&mut self, id: StmtId, stmt: &OpStmt) {
        let number = |operand: &Operand| match operand {
            Operand::Stream(id) => match self.program.streams[*id] {
                Stream::Named(number) => Some(number),
                Stream::Index(_) => None,
            },
            Operand::Tensor(_) | Operand::Scalar(_) => None,
        };
        let mut used = stmt.args.iter().enumerate().filter_map(|(at, it)| Some((at, number(it)?)));
        if let Some((at, number)) = used.find(|it| !self.captured.contains(&it.1)) {
            let place = self.program.part_span(id, Part::Operand(at));
            let name = self.stream_name(number);
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
            self.captured_names.push(self.stream_name(number));
        }
        self.captured.extend(stmt.outs.iter().filter_map(number));
    }

    /// Returns the name that the text gives a stream object.
    fn stream_name(&self, number: u32) -> String {
        let stated = self.program.spans.stream_names.get(number as usize);
        stated.cloned().unwrap_or_else(|| format!("s{number}"))
    }
}
