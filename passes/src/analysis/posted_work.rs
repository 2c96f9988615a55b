//! Finds the communications that are posted under each work number.

use grammar::{
    ir::{OpStmt, Program, Stmt, StmtId},
    ops::{Op, OpClass},
};

/// Calls `visit` with the number of each posted work and each communication that belongs to it: the numbered
/// statement itself, or the statements of the coalesced group whose end has the number.
pub fn for_each_posted_communication(program: &Program, visit: &mut dyn FnMut(u32, &OpStmt)) {
    let Some(body) = program.body else { return };
    let mut group: Option<Vec<StmtId>> = None;
    program.walk(body, &mut |stmt| {
        let Stmt::Op(it) = &program.stmts[stmt] else { return };
        if it.op.def().class == OpClass::Communicate {
            group.iter_mut().for_each(|members| members.push(stmt));
            it.number.into_iter().for_each(|number| visit(number, it));
        } else if it.op == Op::StartCoalescing {
            group = Some(Vec::new());
        } else if it.op.def().class == OpClass::Coalescing {
            let members = group.take().unwrap_or_default();
            for (number, member) in
                it.number.into_iter().flat_map(|it| members.iter().map(move |at| (it, at)))
            {
                if let Stmt::Op(member) = &program.stmts[*member] {
                    visit(number, member);
                }
            }
        }
    });
}
