//! Converts operands and attributes to text.

use std::fmt::Write;

use super::{Dialect, Printer};
use crate::{
    constant_bytes::{digits_of, push_digits},
    ir::{Attr, ExprId, Operand, Stmt, Stream, StreamId},
    text::{Inline, axis_text, expr_text, stream_text},
};

impl Printer<'_> {
    pub(super) fn write_attr(&mut self, attr: &Attr) {
        match attr {
            Attr::Tensor(tensor) => self.write_operand(Operand::Tensor(*tensor)),
            Attr::Word(word) => self.out.push_str(word.text()),
            Attr::Bool(value) => self.out.push_str(if *value { "true" } else { "false" }),
            Attr::Scalar(scalar) => {
                let _ = write!(self.out, "{}", Inline(self.program, *scalar));
            }
            Attr::Bytes(bytes) => push_digits(&mut self.out, bytes),
            Attr::Team(team) => {
                for (at, rank) in team.iter().enumerate() {
                    let _ = write!(self.out, "{}{rank}", if at == 0 { "(" } else { " " });
                }
                self.out.push_str(if team.is_empty() { "()" } else { ")" });
            }
            Attr::Axis(_)
            | Attr::Name(_)
            | Attr::DType(_)
            | Attr::Flags(_)
            | Attr::Scalars(_)
            | Attr::Ranges(_)
            | Attr::Values(_)
            | Attr::Unit(_)
            | Attr::Work(_)
            | Attr::Stmts(_) => {
                let text = self.attr(attr);
                self.out.push_str(&text);
            }
        }
    }

    pub(super) fn attr(&mut self, attr: &Attr) -> String {
        let program = self.program;
        let braces = |texts: Vec<String>| format!("{{{}}}", texts.join(", "));
        match attr {
            Attr::Tensor(tensor) => self.operand(Operand::Tensor(*tensor)),
            Attr::Scalar(scalar) => expr_text(program, *scalar),
            Attr::Axis(axis) => axis_text(program, *axis),
            Attr::Word(word) => word.text().to_owned(),
            Attr::Name(name) => name.clone(),
            Attr::DType(dtype) => dtype.to_string(),
            Attr::Bool(value) => value.to_string(),
            Attr::Bytes(bytes) => digits_of(bytes),
            Attr::Team(team) => {
                let ranks: Vec<String> = team.iter().map(usize::to_string).collect();
                format!("({})", ranks.join(" "))
            }
            Attr::Flags(flags) => braces(flags.iter().map(bool::to_string).collect()),
            Attr::Scalars(scalars) => braces(scalars.iter().map(|it| expr_text(program, *it)).collect()),
            Attr::Ranges(ranges) => {
                let range = |it: &[ExprId; 3]| braces(it.iter().map(|it| expr_text(program, *it)).collect());
                let ranges: Vec<String> = ranges.iter().map(range).collect();
                format!("{{ {} }}", ranges.join(" "))
            }
            Attr::Values(values) => braces(values.iter().map(|it| self.operand(*it)).collect()),
            Attr::Unit(unit) => format!("HostUnit{}", program.units[*unit].number),
            Attr::Work(number) => format!("Communication {number}"),
            Attr::Stmts(stmts) => {
                let mut texts = Vec::with_capacity(stmts.len());
                for stmt in stmts {
                    if let Stmt::Op(it) = &program.stmts[*stmt] {
                        let outer = std::mem::take(&mut self.out);
                        self.op(it, 0);
                        texts.push(std::mem::replace(&mut self.out, outer));
                    }
                }
                texts.join(", ")
            }
        }
    }

    pub(super) fn operands(&mut self, operands: &[Operand]) {
        for (at, operand) in operands.iter().enumerate() {
            if at > 0 {
                self.out.push_str(", ");
            }
            self.write_operand(*operand);
        }
    }

    pub(super) fn write_operand(&mut self, operand: Operand) {
        match operand {
            Operand::Tensor(tensor) if self.dialect != Dialect::Short => {
                let (program, spell) = (self.program, self.spell_tensor);
                self.out.push_str(self.tensors.entry(tensor).or_insert_with(|| spell(program, tensor)));
            }
            Operand::Tensor(_) | Operand::Scalar(_) | Operand::Stream(_) => {
                let text = self.operand(operand);
                self.out.push_str(&text);
            }
        }
    }

    pub(super) fn operand(&mut self, operand: Operand) -> String {
        match operand {
            Operand::Tensor(tensor) if self.dialect == Dialect::Short => self.short_tensor(tensor),
            Operand::Tensor(tensor) => {
                let (program, spell) = (self.program, self.spell_tensor);
                self.tensors.entry(tensor).or_insert_with(|| spell(program, tensor)).clone()
            }
            Operand::Scalar(scalar) => expr_text(self.program, scalar),
            Operand::Stream(stream) => self.stream(stream),
        }
    }

    pub(super) fn stream(&self, stream: StreamId) -> String {
        let number = match &self.program.streams[stream] {
            Stream::Named(at) => self.captured.get(*at as usize),
            Stream::Index(_) => None,
        };
        number.map_or_else(|| stream_text(self.program, stream), |it| format!("Stream {it}"))
    }
}
