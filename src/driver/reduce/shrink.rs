//! Proposes programs with smaller numbers: extents, and with them meshes and teams.
//!
//! Equal numbers usually belong together: a mesh of eight ranks, a device axis of eight, a loop over eight
//! chunks, an index modulo eight. A proposal therefore replaces a number everywhere, and the test decides
//! whether the result makes sense.

use std::{collections::BTreeSet, sync::Arc};

use grammar::{Attr, Expr, Mesh, Program, Stmt};

use super::Reducer;

/// Shrinks each number, large ones first: to 1, to 2, to a half, alone and together with its multiples.
pub(super) fn shrink_numbers(reducer: &mut Reducer<'_>) -> bool {
    let mut helped = shrink_many(reducer);
    let mut bound = i64::MAX;
    while let Some(number) = largest(&reducer.best.program, bound) {
        let smaller = [1, 2, number / 2].into_iter().filter(|it| (1..number).contains(it));
        let mut attempts = smaller.flat_map(|to| [(to, false), (to, true)]);
        if attempts
            .any(|(to, products)| reducer.attempt(&|program| replace_number(program, number, to, products)))
        {
            helped = true
        } else {
            bound = number
        }
    }
    helped
}

/// Replaces many numbers by 1 at once, if there are many: all of them, then halves, quarters and so on. Numbers that do not
/// matter, such as those of scalars that nothing uses, need no test of their own then. Sizes of meshes and teams stay.
fn shrink_many(reducer: &mut Reducer<'_>) -> bool {
    let numbers: Vec<i64> = other_numbers(&reducer.best.program).into_iter().collect();
    reducer.attempt_groups(numbers, 2, &|program, group| {
        for expr in program.exprs.ids().collect::<Vec<_>>() {
            if let Expr::Int(value) = &mut program.exprs[expr]
                && group.binary_search(value).is_ok()
            {
                *value = 1;
            }
        }
    })
}

/// Returns the constants that can shrink and are not the size of a mesh or a team.
fn other_numbers(program: &Program) -> BTreeSet<i64> {
    let mut numbers: BTreeSet<i64> =
        program.exprs.ids().filter_map(|expr| program.constant(expr)).filter(|it| *it > 1).collect();
    let mut keep = |size: usize| _ = i64::try_from(size).map(|size| numbers.remove(&size));
    program.tensors.iter().flat_map(|(_, it)| it.mesh.shape.clone()).for_each(&mut keep);
    for (_, stmt) in program.stmts.iter() {
        let Stmt::Op(it) = stmt else { continue };
        it.get(grammar::attr::TEAM).iter().for_each(|team| keep(team.len()));
    }
    numbers
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
