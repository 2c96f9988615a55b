//! Computes coordinates of ranks in a mesh as scalar expressions of `rank`.

use grammar::{DeviceDim, Expr, ExprId, Function, InfixOp, Mesh, Op, Program};
use hir_ir::build::{infix, rank};

/// Returns the rank's coordinate along a dimension of the mesh. The value is meaningless on ranks outside the
/// mesh.
pub fn coordinate(program: &mut Program, mesh: &Mesh, device: DeviceDim) -> ExprId {
    let me = rank(program);
    let known: Vec<(usize, usize)> =
        mesh.devices.iter().filter_map(|it| Some((*it, mesh.coordinate(*it, device)?))).collect();
    let first = mesh.devices.first().copied().unwrap_or(0);
    let extent = mesh.extent(device);
    if known.iter().all(|(rank, at)| rank - first.min(*rank) == *at && *rank >= first) {
        return offset(program, me, InfixOp::Sub, first);
    }
    let inner: usize = mesh.shape.iter().rev().take(device as usize).product();
    let fits = |(rank, at): &(usize, usize)| *rank >= first && (rank - first) / inner % extent == *at;
    if known.iter().all(fits) {
        let mut it = offset(program, me, InfixOp::Sub, first);
        if inner > 1 {
            let inner = program.intern_int(inner as i64);
            it = infix(program, InfixOp::Div, it, inner);
        }
        let extent = program.intern_int(extent as i64);
        return infix(program, InfixOp::Rem, it, extent);
    }
    let values: Vec<(ExprId, ExprId)> = known
        .iter()
        .map(|(rank, at)| (program.intern_int(*rank as i64), program.intern_int(*at as i64)))
        .collect();
    select_by_key(program, me, &values)
}

/// Returns the rank that has this coordinate along a dimension and the executing rank's coordinates along all
/// others.
pub fn rank_at(program: &mut Program, mesh: &Mesh, device: DeviceDim, at: ExprId) -> ExprId {
    let first = mesh.devices.first().copied().unwrap_or(0);
    let is_run = mesh.devices.iter().enumerate().all(|(at, rank)| *rank == first + at);
    if is_run && mesh.extent(device) == mesh.devices.len() {
        return offset(program, at, InfixOp::Add, first);
    }
    if is_run {
        // Moves from the executing rank along the dimension.
        let mine = coordinate(program, mesh, device);
        let inner: usize = mesh.shape.iter().rev().take(device as usize).product();
        let mut step = infix(program, InfixOp::Sub, at, mine);
        if inner > 1 {
            let inner = program.intern_int(inner as i64);
            step = infix(program, InfixOp::Mul, step, inner);
        }
        let me = rank(program);
        return infix(program, InfixOp::Add, me, step);
    }
    let row = |program: &mut Program, team: &[usize]| {
        let values: Vec<(ExprId, ExprId)> = team
            .iter()
            .enumerate()
            .map(|(at, rank)| (program.intern_int(at as i64), program.intern_int(*rank as i64)))
            .collect();
        select_by_key(program, at, &values)
    };
    let rows = teams_along(mesh, &[device]);
    if let [only] = &rows[..] {
        return row(program, only);
    }
    let me = rank(program);
    let mut values = Vec::new();
    for team in &rows {
        let value = row(program, team);
        values.extend(team.iter().map(|rank| (program.intern_int(*rank as i64), value)));
    }
    select_by_key(program, me, &values)
}

/// Returns the teams of ranks that differ only along these dimensions of a mesh.
pub fn teams_along(mesh: &Mesh, devices: &[DeviceDim]) -> Vec<Vec<usize>> {
    let mut teams: Vec<Vec<usize>> = Vec::new();
    let mut rows: Vec<Vec<Option<usize>>> = Vec::new();
    for rank in &mesh.devices {
        let others =
            [DeviceDim::X, DeviceDim::Y, DeviceDim::Z].into_iter().filter(|dim| !devices.contains(dim));
        let row: Vec<Option<usize>> = others.map(|dim| mesh.coordinate(*rank, dim)).collect();
        match rows.iter().position(|it| *it == row) {
            Some(at) => teams[at].push(*rank),
            None => {
                rows.push(row);
                teams.push(vec![*rank]);
            }
        }
    }
    teams
}

/// Returns `expr op by`, or `expr` if `by` is 0.
fn offset(program: &mut Program, expr: ExprId, op: InfixOp, by: usize) -> ExprId {
    if by == 0 {
        return expr;
    }
    let by = program.intern_int(by as i64);
    infix(program, op, expr, by)
}

/// Returns `where(expr == key, value, where(…))`, with the last value if no key matches.
fn select_by_key(program: &mut Program, expr: ExprId, values: &[(ExprId, ExprId)]) -> ExprId {
    let Some(((_, last), rest)) = values.split_last() else { return expr };
    rest.iter().rev().fold(*last, |other, (key, value)| {
        let is_key = infix(program, InfixOp::Eq, expr, *key);
        program.intern_expr(Expr::Call(Function::Op(Op::Where), vec![is_key, *value, other]))
    })
}
