//! Prints the dialect of late 2025: keywords before streams, lists with a trailing comma, and blanks as
//! nvFuser printed them.
//!
//! Invariant: statements of operators that are not handled here are printed in canonical form.

use std::{collections::HashSet, fmt::Write};

use super::{Printer, operator::number};
use crate::{
    attr::{self, AttrName, Key},
    ir::{Attr, HostUnit, OpStmt, Operand, Program, Stream},
    ops::{AsmFormat, Op, OpClass},
};

/// Column of the bias of `linear`, independent of the nesting depth.
const BIAS_COLUMN: usize = 10;

/// Returns the numbers of captured streams: the smallest numbers that are not the index of another stream.
pub(super) fn captured_stream_numbers(program: &Program) -> Vec<i64> {
    let (mut names, mut indices) = (0, HashSet::new());
    for (_, stream) in program.streams.iter() {
        match stream {
            Stream::Named(at) => names = names.max(*at as usize + 1),
            Stream::Index(index) => indices.extend(program.constant(*index)),
        }
    }
    (0..).filter(|it| !indices.contains(it)).take(names).collect()
}

impl Printer<'_> {
    /// Prints one operator statement without its final newline.
    pub(super) fn op_2025(&mut self, stmt: &OpStmt, depth: usize) {
        let row = stmt.op.def();
        let margin = 2 * depth + 3;
        match stmt.op {
            Op::SetCurrentStream => self.print_keyword_form("SetCurrentStream to", stmt),
            Op::GetCurrentStream => {
                self.out.push_str("GetCurrentStream into ");
                self.operands(&stmt.outs);
            }
            Op::Synchronize | Op::Wait => self.print_keyword_form(row.mnemonic, stmt),
            Op::ShareMemHandles => {
                let transfers = self.arguments(stmt, "=").join(", ");
                let _ = write!(self.out, "{}({transfers}, ", row.mnemonic);
            }
            Op::PostOnStream => {
                let unit = self.arguments(&OpStmt { attrs: unit_attrs(stmt), ..stmt.clone() }, "").join("");
                let (inputs, outputs) = (self.list(stmt, attr::INPUTS), self.list(stmt, attr::OUTPUTS));
                let _ = write!(self.out, "{} ({unit}, Inputs:{inputs}, Outputs:{outputs})", row.mnemonic);
            }
            Op::AllocateOnce => {
                let mut bare = stmt.clone();
                bare.attrs.retain(|(key, _)| *key != attr::ALIAS);
                self.canonical_op(&bare, depth);
                if let Some(alias) = stmt.get(attr::ALIAS) {
                    let alias = self.operand(Operand::Tensor(alias));
                    let _ = write!(self.out, "\n{:margin$} .alias={alias}", "");
                }
            }
            Op::ShardByStream => {
                let args = self.arguments(stmt, " = ").join(", ");
                self.operands(&stmt.outs);
                let _ = write!(self.out, " = {}({args})", row.mnemonic);
            }
            Op::Reshape => self.padded_call("view", stmt),
            Op::Expand | Op::Repeat | Op::ArgSort => self.padded_call(row.mnemonic, stmt),
            Op::Linear => self.linear(stmt, depth),
            Op::IndexSelect | Op::TorchGather => {
                let mut args = self.arguments(stmt, " = ");
                args[1..].rotate_right(1);
                self.operands(&stmt.outs);
                let _ = write!(self.out, "\n{:margin$}= {}( {} )", "", row.mnemonic, args.join(", "));
            }
            _ if row.format == AsmFormat::Function
                && row.class == OpClass::Elementwise
                && stmt.args.len() > 1 =>
            {
                let args = self.arguments(stmt, " = ").join(&format!("\n{:margin$}, ", ""));
                self.operands(&stmt.outs);
                let _ = write!(self.out, "\n{:margin$}= {}({args});", "", row.mnemonic);
            }
            _ => self.canonical_op(stmt, depth),
        }
    }

    /// Prints a statement such as `Wait Communication 3`.
    fn print_keyword_form(&mut self, words: &str, stmt: &OpStmt) {
        let args = self.arguments(stmt, "=").join(", ");
        let _ = write!(self.out, "{words}{} {args}", number(stmt));
    }

    /// Prints a statement such as `T1 = view( T0 )`.
    fn padded_call(&mut self, name: &str, stmt: &OpStmt) {
        let args = self.arguments(stmt, " = ").join(", ");
        self.operands(&stmt.outs);
        let _ = write!(self.out, " = {name}( {args} )");
    }

    fn linear(&mut self, stmt: &OpStmt, depth: usize) {
        let (margin, blanks) = (2 * depth + 3, 2 * (depth + 1));
        let args = self.arguments(stmt, "=");
        self.operands(&stmt.outs);
        let _ = write!(self.out, "\n{:margin$}= linear(", "");
        let column = margin + "= linear(".len();
        for (at, arg) in args.iter().enumerate() {
            let _ = match at {
                0 => write!(self.out, "{arg}"),
                1 => write!(self.out, ",\n{:column$}{arg}{:blanks$}", "", ""),
                _ => write!(self.out, ",\n{:BIAS_COLUMN$}{arg}{:blanks$}", "", ""),
            };
        }
        self.out.push(')');
    }

    /// Returns the list of a key, such as `{T0, T1, }`.
    fn list(&mut self, stmt: &OpStmt, key: Key<Vec<Operand>>) -> String {
        stmt.get(key).map_or("{}".to_owned(), |values| self.braced_list(values))
    }

    fn braced_list(&mut self, values: &[Operand]) -> String {
        let values: String = values.iter().map(|it| self.operand(*it) + ", ").collect();
        format!("{{{values}}}")
    }

    /// Prints the inputs and outputs of a HostUnit: first in one line, then with one value per line.
    pub(super) fn unit_lists(&mut self, unit: &HostUnit) {
        let (inputs, outputs) = (self.braced_list(&unit.inputs), self.braced_list(&unit.outputs));
        let _ = writeln!(self.out, "Inputs={inputs} -> Outputs={outputs}Inputs:");
        self.print_one_per_line(&unit.inputs);
        self.out.push_str("Outputs:\n");
        self.print_one_per_line(&unit.outputs);
        self.out.push('\n');
    }

    fn print_one_per_line(&mut self, values: &[Operand]) {
        for value in values {
            let text = self.operand(*value);
            let _ = writeln!(self.out, "  {text}");
        }
    }
}

/// Returns the attribute of `PostOnStream` that names the HostUnit.
fn unit_attrs(stmt: &OpStmt) -> Vec<(AttrName, Attr)> {
    stmt.attrs.iter().filter(|(key, _)| *key == attr::UNIT).cloned().collect()
}
