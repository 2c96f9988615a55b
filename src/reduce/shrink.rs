//! Proposes programs with smaller numbers: extents, and with them meshes and teams.
//!
//! Equal numbers usually belong together: a mesh of eight ranks, a device axis of eight, a loop over eight
//! chunks, an index modulo eight. A proposal therefore replaces a number everywhere, and the test decides
//! whether the result makes sense.

use std::sync::Arc;

use grammar::ir::{Attr, Expr, Mesh, Program, Stmt};

use super::Reducer;

/// Shrinks each number, large ones first: to 1, to 2, to a half, alone and together with its multiples.
pub(super) fn shrink_numbers(reducer: &mut Reducer<'_>) -> bool {
    let mut helped = false;
    let mut bound = i64::MAX;
    while let Some(number) = largest(&reducer.best.program, bound) {
        let smaller = [1, 2, number / 2].into_iter().filter(|it| (1..number).contains(it));
        let mut attempts = smaller.flat_map(|to| [(to, false), (to, true)]);
        match attempts
            .any(|(to, products)| reducer.attempt(&|program| replace_number(program, number, to, products)))
        {
            true => helped = true,
            false => bound = number,
        }
    }
    helped
}

/// Returns the largest constant below `bound` that can shrink.
fn largest(program: &Program, bound: i64) -> Option<i64> {
    let written = program.exprs.ids().filter_map(|expr| program.constant(expr));
    written.filter(|it| (2..bound).contains(it)).max()
}

/// Replaces a number by another. With `products`, its multiples shrink by the same ratio. Meshes and teams of
/// `from` devices keep the first `to` of them.
fn replace_number(program: &mut Program, from: i64, to: i64, products: bool) {
    for expr in program.exprs.ids().collect::<Vec<_>>() {
        if let Expr::Int(value) = &mut program.exprs[expr]
            && (*value == from || products && *value > from && *value % from == 0)
        {
            *value = *value / from * to;
        }
    }
    let (Ok(from), Ok(to)) = (usize::try_from(from), usize::try_from(to)) else { return };
    for tensor in program.tensors.ids().collect::<Vec<_>>() {
        let mesh = &mut program.tensors[tensor].mesh;
        if mesh.shape == [from] {
            *mesh = Arc::new(Mesh::new(vec![to], mesh.devices.iter().copied().take(to).collect()));
        }
    }
    for stmt in program.stmts.ids().collect::<Vec<_>>() {
        if let Stmt::Op(it) = &mut program.stmts[stmt] {
            for (_, attr) in &mut it.attrs {
                match attr {
                    Attr::Team(team) if team.len() == from => team.truncate(to),
                    _ => (),
                }
            }
        }
    }
}
