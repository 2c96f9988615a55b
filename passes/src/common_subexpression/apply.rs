//! Statements that others stand for, out of the program.

use grammar::ir::{Attr, BlockId, Operand, Program, Stmt, TensorId};

use super::Merges;
use crate::blocks::{Edit, rewrite};

/// Drops statements and renames what they gave.
pub(super) fn apply(program: &mut Program, body: BlockId, merges: &Merges) {
    rewrite(program, body, &mut |_, stmt| match merges.dropped.contains(&stmt) {
        true => Edit::Remove,
        false => Edit::Keep,
    });
    for id in program.stmts.ids() {
        let Stmt::Op(it) = &mut program.stmts[id] else { continue };
        let first = Program::tensors_of(&it.args).next();
        let rename = |tensor: &mut TensorId| *tensor = merges.tensors.get(tensor).copied().unwrap_or(*tensor);
        let operand = |it: &mut Operand| {
            if let Operand::Tensor(tensor) = it {
                rename(tensor);
            }
        };
        it.outs.iter_mut().chain(&mut it.args).for_each(operand);
        for (_, attr) in &mut it.attrs {
            match attr {
                Attr::Tensor(tensor) => rename(tensor),
                Attr::Values(values) => values.iter_mut().for_each(operand),
                Attr::Axis(axis) => {
                    let new = first.and_then(|first| merges.axes.get(&(first, *axis)));
                    *axis = new.copied().unwrap_or(*axis);
                }
                Attr::Scalar(_)
                | Attr::Word(_)
                | Attr::Name(_)
                | Attr::DType(_)
                | Attr::Bool(_)
                | Attr::Team(_)
                | Attr::Flags(_)
                | Attr::Scalars(_)
                | Attr::Ranges(_)
                | Attr::Unit(_)
                | Attr::Work(_)
                | Attr::Stmts(_) => (),
            }
        }
    }
}
