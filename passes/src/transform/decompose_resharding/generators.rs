//! Operators that make a tensor from constant scalars alone: they can run wherever the tensor is needed.

use grammar::{Attr, ExprId, Op, OpStmt, Operand, Program, StmtId, TensorId, TypeRule, attr::AttrName};

/// Returns the statement's result and operator if it makes a tensor from constant scalars alone, so that it
/// has the same result wherever and whenever it runs.
pub(super) fn generator_stmt(program: &Program, stmt: StmtId) -> Option<(TensorId, OpStmt)> {
    let it = program.stmts[stmt].op()?;
    let makes = it.op.def().type_rule == TypeRule::Generate || it.op == Op::TensorConstruct;
    let is_number = |expr: &ExprId| !program.depends_on(*expr, &|_| true);
    let scalars = |operand: &Operand| match operand {
        Operand::Scalar(expr) => is_number(expr),
        Operand::Tensor(_) | Operand::Stream(_) => false,
    };
    let fixed = |(_, attr): &(AttrName, Attr)| match attr {
        Attr::Scalar(expr) => is_number(expr),
        Attr::Scalars(exprs) => exprs.iter().all(is_number),
        it => it.is_same_everywhere(),
    };
    let is_fixed = makes && it.outs.len() == 1 && it.args.iter().all(scalars) && it.attrs.iter().all(fixed);
    Some((it.out_tensor().filter(|_| is_fixed)?, it.clone()))
}
