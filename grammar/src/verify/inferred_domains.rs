//! Notes that show which logical domains were inferred for the tensors of a statement.

use crate::{
    ir::{AxisId, OpStmt, Program, TensorId, Transform},
    text::{axis_text, domain_clauses},
};

/// Returns a note for each tensor of a statement whose logical domain is inferred from other axes than those
/// of the text, with the line that states it.
pub(super) fn inferred_domain_notes(program: &Program, stmt: &OpStmt) -> Vec<String> {
    let mut tensors: Vec<TensorId> = Program::tensors_of(&stmt.outs).chain(stmt.tensor_operands()).collect();
    tensors.sort_unstable();
    tensors.dedup();
    let axes = |axes: &[AxisId]| axes.iter().map(|it| axis_text(program, *it)).collect::<Vec<_>>().join(", ");
    let note = |tensor: TensorId| {
        let domains = &program.tensors[tensor].domains;
        let merged: Vec<String> = domains
            .transforms
            .iter()
            .filter_map(|it| match it {
                Transform::Split { outer, inner, .. } => {
                    Some(format!("`{}` with `{}`", axis_text(program, *outer), axis_text(program, *inner)))
                }
                Transform::Merge { .. } | Transform::Swizzle1D { .. } => None,
            })
            .collect();
        let name = program.qualified_name(tensor);
        (!merged.is_empty()).then(|| {
            format!(
                "the logical domain of `{name}` was taken as ({}), by merging {}; to state another one, add a section \
                 `Domains:` with a line like `{name}: {}`",
                axes(&domains.logical),
                merged.join(" and "),
                domain_clauses(program, tensor)
            )
        })
    };
    tensors.into_iter().filter_map(note).collect()
}
