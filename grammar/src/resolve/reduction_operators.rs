//! The operators of reducing communications, which nvFuser does not print: from the fusion of the log, or a sum.

use super::{Resolver, params};
use crate::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    fusion_dump::{FusionDump, Value},
    ir::{OpStmt, Stmt, StmtId},
    span::Span,
    words::{CommunicationType, RedOp},
};

/// The operators of reductions in fusions, with those of communications that compute the same.
const OPERATORS: [(&str, RedOp); 7] = [
    ("add", RedOp::Sum),
    ("mul", RedOp::Product),
    ("min", RedOp::Min),
    ("max", RedOp::Max),
    ("bitwise_and", RedOp::BitAnd),
    ("bitwise_or", RedOp::BitOr),
    ("bitwise_xor", RedOp::BitXor),
];

impl Resolver<'_> {
    /// Adds a sum to the statement at `span` if it is a reducing collective that states no operator.
    pub(super) fn add_implied_red_op(&mut self, stmt: &mut OpStmt, span: Span) {
        let reduces = stmt.get(attr::TYPE).is_some_and(CommunicationType::is_reduction);
        if reduces && stmt.get(attr::RED_OP).is_none() {
            stmt.attrs.reserve_exact(1);
            stmt.attrs.push(attr::RED_OP.with(RedOp::Sum));
            params::order_attrs(stmt);
            self.implied_red_ops.insert(span);
        }
    }

    /// Returns the reducing collectives that state no operator, with the names of their outputs.
    fn without_red_op(&self) -> Vec<(StmtId, Option<String>)> {
        let program = &self.program;
        let found = program.stmts.iter().filter_map(|(id, stmt)| {
            let Stmt::Op(it) = stmt else { return None };
            let is_implied =
                it.get(attr::RED_OP).is_some() && self.implied_red_ops.contains(&program.stmt_span(id));
            is_implied.then(|| (id, it.get(attr::OUTPUT).map(|it| program.tensor_name(it))))
        });
        found.collect()
    }

    /// Returns whether two fusions give the reductions of the container the same operators.
    pub(super) fn has_same_red_ops(&self, a: &FusionDump<'_>, b: &FusionDump<'_>) -> bool {
        let outputs = self.without_red_op().into_iter().filter_map(|it| it.1);
        outputs.into_iter().all(|it| operator_of(a, &it) == operator_of(b, &it))
    }

    /// Takes the operators that the statements do not state from the fusion of the container, and warns about the sums that
    /// remain.
    pub(super) fn resolve_red_ops(&mut self, dump: Option<&FusionDump<'_>>) {
        if self.implied_red_ops.is_empty() {
            return;
        }
        let mut assumed: Vec<Span> = Vec::new();
        for (id, output) in self.without_red_op() {
            match dump.zip(output).and_then(|(dump, output)| operator_of(dump, &output)) {
                Some(op) => {
                    if let Stmt::Op(it) = &mut self.program.stmts[id] {
                        it.attrs.retain(|(key, _)| *key != attr::RED_OP);
                        it.attrs.push(attr::RED_OP.with(op));
                        params::order_attrs(it);
                    }
                }
                None => assumed.push(self.program.stmt_span(id)),
            }
        }
        let Some(first) = assumed.first() else { return };
        let message = match assumed.len() {
            1 => "the text does not state the operator of this reduction".to_owned(),
            count => format!("the text does not state the operators of {count} reducing communications"),
        };
        let mut it = Diagnostic::new(Code::LossyRedOp, *first, message, "assumed: red_op=SUM");
        for span in &assumed {
            // Other spellings have no place for it: the fix is the canonical text.
            let text = span.text(self.source);
            match text.find(", input=") {
                Some(at) => {
                    let place = span.start + at as u32;
                    it = it.fix(Span { start: place, end: place }, ", red_op=SUM");
                }
                None => self.needs_canonical_fix = true,
            }
        }
        self.diagnostics
            .push(it.help("write `red_op=SUM`, `MAX`, `MIN`, `PRODUCT` or `AVG` behind the team"));
    }
}

/// Returns the operator of the reduction that computes a tensor in a fusion.
fn operator_of(dump: &FusionDump<'_>, tensor: &str) -> Option<RedOp> {
    let is_result = |it: &Value<'_>| it.name() == tensor;
    let mut groups = dump.groups.iter().filter(|it| it.lists.outputs.iter().any(is_result));
    groups.find_map(|group| {
        // The statement that begins with the tensor.
        let start = group.body.text.match_indices(tensor).map(|(at, _)| at).find(|at| {
            let before = group.body.text.get(..*at).unwrap_or("");
            let behind = group.body.text.get(at + tensor.len()..).unwrap_or("");
            before.rsplit('\n').next().is_some_and(|it| it.trim().is_empty())
                && behind.starts_with(['_', '['])
        })?;
        let statement = group.body.text.get(start..)?;
        let (_, value) = statement.split_once("= ")?;
        let rest = value.strip_prefix("reduction(")?.split_once("op = ")?.1;
        let word = rest.split(|it: char| !it.is_ascii_alphanumeric()).next()?;
        OPERATORS.iter().find(|(name, _)| *name == word).map(|(_, op)| *op)
    })
}
