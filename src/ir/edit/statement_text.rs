//! The texts of statements that edits insert or change, in the spelling of the text.

use grammar::{StmtId, attr, stream_operand_text};

use super::{Edit, NewStatement, NewStream, ProgramText, StreamRef};

impl ProgramText {
    /// Returns the text of a statement that one of `edits` inserts.
    pub fn new_statement(&self, statement: NewStatement, edits: &[Edit]) -> String {
        let is_old = self.is_keyword_style();
        let call = |name: &str, operand: String| {
            if is_old { format!("{name} {operand}") } else { format!("{name}({operand})") }
        };
        let stream = |of| format!("Stream {}", self.stream_name(of, edits));
        match statement {
            NewStatement::Wait(number) => call("Wait", format!("Communication {number}")),
            NewStatement::Synchronize(of) => call("Synchronize", stream(of)),
            NewStatement::SetCurrentStream(of) => {
                call(if is_old { "SetCurrentStream to" } else { "SetCurrentStream" }, stream(of))
            }
            NewStatement::GetCurrentStream(of) => {
                let name = stream(StreamRef::New(of));
                if is_old {
                    format!("GetCurrentStream into {name}")
                } else {
                    format!("{name} = GetCurrentStream()")
                }
            }
            NewStatement::StartCoalescing => "StartCoalescing".to_owned(),
            NewStatement::EndCoalescing(number) => format!("EndCoalescing {number}"),
            NewStatement::CopyOf(stmt) => self.statement(stmt).to_owned(),
        }
    }

    /// Returns how a statement that one of `edits` inserts names a stream. In the dialect of 2025, the name of a captured stream may be a number or a scalar:
    /// an expression that is not a stream object has parentheses then.
    pub fn stream_name(&self, of: StreamRef, edits: &[Edit]) -> String {
        let captured = self.program.captured_stream_names();
        let text = match of {
            StreamRef::Captured(number) => return captured.get(number as usize).cloned().unwrap_or_default(),
            StreamRef::New(NewStream::Entry) => return self.new_stream_names()[0].clone(),
            StreamRef::New(NewStream::Current) => {
                let captures_entry = edits.iter().any(Edit::captures_entry);
                return self.new_stream_names()[usize::from(captures_entry)].clone();
            }
            StreamRef::Index(index) => index.to_string(),
            StreamRef::Same(stream) => stream_operand_text(&self.program, stream),
        };
        if captured.contains(&text) { format!("( {text} )") } else { text }
    }

    /// Returns where a long-form ALLOCATE states the operator and its attributes, in its text, and the short form of these.
    pub fn short_allocate(&self, stmt: StmtId) -> Option<(std::ops::Range<usize>, String)> {
        let memory = self.program.stmts[stmt].op()?.get(attr::MEM_TYPE)?;
        let text = self.statement(stmt);
        let place = text.find("ALLOCATE(")?..text.rfind(')')? + 1;
        Some((place, format!("ALLOCATE(mem_type={memory}, zero_init=false)")))
    }
}
