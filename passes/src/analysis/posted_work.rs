//! Finds the communications that are posted under each work number.

use grammar::{Op, OpClass, OpStmt, Program};

/// Calls `visit` with the number of each posted work and each communication that belongs to it: the numbered
/// statement itself, or the statements of the coalesced group whose end has the number.
pub fn for_each_posted_communication(program: &Program, visit: &mut dyn FnMut(u32, &OpStmt)) {
    let mut group: Option<Vec<&OpStmt>> = None;
    for (_, it) in program.ops() {
        if it.op.def().class == OpClass::Communicate {
            group.iter_mut().for_each(|members| members.push(it));
            it.number.into_iter().for_each(|number| visit(number, it));
        } else if it.op == Op::StartCoalescing {
            group = Some(Vec::new());
        } else if it.op.def().class == OpClass::Coalescing {
            let members = group.take().unwrap_or_default();
            it.number.iter().for_each(|number| members.iter().for_each(|it| visit(*number, it)));
        }
    }
}
