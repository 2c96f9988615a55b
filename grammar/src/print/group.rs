//! Prints the reductions of one group as nvFuser's GroupedReductionOp.

use std::fmt::Write;

use super::Printer;
use crate::{
    attr::{self, AttrName},
    ir::{Attr, OpStmt, Program, Stmt, StmtId},
    ops::Op,
};

/// Returns the number of leading statements that form one group; 0 if the first statement is not in a group.
pub(super) fn group_len(program: &Program, stmts: &[StmtId]) -> usize {
    let group = |stmt: &StmtId| {
        let it = program.stmts[*stmt].op().filter(|it| it.op == Op::Reduction)?;
        Some((it.get(attr::GROUP)?, it.get(attr::ALLREDUCE) == Some(true)))
    };
    let Some(first) = stmts.first().and_then(group) else { return 0 };
    stmts.iter().take_while(|it| group(it) == Some(first)).count()
}

impl Printer<'_> {
    /// Prints `GroupedReductionOp(`, one line for each reduction, and the attribute that they share.
    pub(super) fn group(&mut self, members: &[StmtId], depth: usize) {
        let pad = 2 * depth + 2;
        self.out.push_str("GroupedReductionOp(\n");
        let mut allreduce = false;
        for member in members {
            let Stmt::Op(it) = &self.program.stmts[*member] else { continue };
            allreduce |= it.get(attr::ALLREDUCE) == Some(true);
            let own = |(key, _): &&(AttrName, Attr)| *key != attr::ALLREDUCE && *key != attr::GROUP;
            let plain = OpStmt { attrs: it.attrs.iter().filter(own).cloned().collect(), ..it.clone() };
            let _ = write!(self.out, "{:pad$}", "");
            self.operands(&plain.outs);
            self.out.push_str(" = reduction( ");
            self.write_arguments(&plain, " = ", ", ");
            self.out.push_str(" )\n");
        }
        let _ = writeln!(self.out, "{:pad$}allreduce = {allreduce} )", "");
    }
}
