//! Resolves `GroupedReductionOp( … )`: several reductions that nvFuser runs as one operator. Each becomes a
//! separate statement; a shared group number records that they are printed together.

use super::Resolver;
use crate::{
    ast, attr,
    codes::Code,
    ir::{PartRole, Stmt, StmtId},
    ops::Op,
    span::Span,
};

/// The name that nvFuser prints for the group.
pub(super) const GROUPED_REDUCTION: &str = "GroupedReductionOp";

impl<'s> Resolver<'s> {
    /// Appends the reductions of a group to `ids`.
    pub(super) fn append_grouped_reductions(
        &mut self,
        name: ast::Name<'s>,
        members: &[(ast::Expr<'s>, ast::Expr<'s>)],
        shared: &ast::Arg<'s>,
        ids: &mut Vec<StmtId>,
    ) {
        if name.text != GROUPED_REDUCTION {
            return self.unknown_op(name);
        }
        let Some(param) = Op::Reduction.def().attr_def(attr::ALLREDUCE) else { return };
        if let Some(key) = shared.key.filter(|key| key.text != param.name) {
            let message = format!("`{GROUPED_REDUCTION}` has no attribute `{}`", key.text);
            return self.error(Code::BadAttribute, key.span, message, "expected `allreduce = `");
        }
        let Some(allreduce) = self.attr(param, &shared.value) else { return };
        let number = self.next_group;
        self.next_group += 1;
        let parts = self.parts.len();
        for (out, value) in members {
            self.parts.truncate(parts);
            let result = self.stated_value(out, 0, PartRole::Result);
            let stmt = result.and_then(|it| self.resolve_call(&[it], value, out.span));
            let Some(mut stmt) = stmt else { continue };
            if stmt.op != Op::Reduction {
                self.error(
                    Code::BadOperands,
                    value.span,
                    format!("`{GROUPED_REDUCTION}` may contain only reductions"),
                    "expected `reduction`",
                );
                continue;
            }
            stmt.attrs.retain(|(key, _)| *key != attr::ALLREDUCE && *key != attr::GROUP);
            let group = self.program.intern_int(number);
            stmt.attrs.extend([(param.key(), allreduce.clone()), attr::GROUP.with(group)]);
            let span = Span { start: out.span.start, end: value.span.end };
            ids.push(self.add_stmt(Stmt::Op(stmt), span, parts));
        }
    }
}
