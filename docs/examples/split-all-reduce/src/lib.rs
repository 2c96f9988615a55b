//! split-all-reduce: replaces an all-reduce by a reduce-scatter and an all-gather.
//!
//! Before:
//! ```text
//! T1 = ALLOCATE(mem_type=global, zero_init=false)
//! Communication 0 (type=Allreduce, team=(0 1), red_op=SUM, input=T0, output=T1, backend=NCCL)
//! Wait(Communication 0)
//! ```
//! After, with a tensor T2 of which each rank holds one part of the first dimension:
//! ```text
//! T1 = ALLOCATE(mem_type=global, zero_init=false)
//! T2 = ALLOCATE(mem_type=global, zero_init=false)
//! Communication 1 (type=ReduceScatter, team=(0 1), red_op=SUM, input=T0, output=T2, backend=NCCL)
//! Wait(Communication 1)
//! Communication 0 (type=Allgather, team=(0 1), input=T2, output=T1, backend=NCCL)
//! Wait(Communication 0)
//! ```
//!
//! The pass leaves an all-reduce as it is, with a remark, if not all ranks execute it, if its algorithm is chosen (`algo=`), if its
//! team is not the mesh of its result, or if the first dimension of the result is sharded or has no extent that the team divides.

pub mod unused;

use grammar::{
    Backend, CommunicationType, DeviceDim, Diagnostic, Memory, Op, OpStmt, ParallelType, Program, Stmt,
    StmtId, TensorId, attr,
};
use hir_ir::{
    blocks::stmts_in_divergent_branches,
    build::{self, IrBuilder},
    edit::expand,
};
use passes::{
    Arguments, Change, Pass, Remarks,
    analysis::sharding::{DimPiece, Sharding},
    pass::Obstacle,
    rewrite::collective::Collective,
};

/// The pass.
pub static PASS: Pass = Pass::new("split-all-reduce", include_str!("lib.rs"), run)
    .about("replace an all-reduce by a reduce-scatter and an all-gather");

fn run(program: &mut Program, _: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let divergent = stmts_in_divergent_branches(program);
    let mut fresh = IrBuilder::of(program);
    // `expand` visits the statements of loops and branches, too.
    let changed = expand(program, body, &mut |program, id| {
        let Stmt::Op(it) = &program.stmts[id] else { return Ok(None) };
        if it.op != Op::Communication || it.get(attr::TYPE) != Some(CommunicationType::Allreduce) {
            return Ok(None);
        }
        let it = it.clone();
        let span = program.stmt_span(id);
        let parts = if divergent.contains(&id) {
            Err("not all ranks execute it".into())
        } else {
            sharding_of_parts(program, &it)
        };
        Ok(match parts {
            Ok(parts) => {
                remarks.note(span, "this all-reduce is a reduce-scatter and an all-gather now", "replaced");
                split(program, &mut fresh, (id, &it), &parts)
            }
            Err(reason) => {
                remarks.note(span, format!("this all-reduce is not split: {reason}"), "stays");
                None
            }
        })
    })?;
    Ok(Change::from_flag(changed))
}

/// Returns the sharding of the sum between the two collectives: that of the result, with the first dimension split over
/// the team. Returns the reason if there is none.
fn sharding_of_parts(program: &mut Program, it: &OpStmt) -> Result<Sharding, Obstacle> {
    if it.get(attr::ALGO).is_some() {
        return Err("`algo=` selects its algorithm".into());
    }
    let (team, output) = it.get(attr::TEAM).zip(it.get(attr::OUTPUT)).ok_or("it is incomplete")?;
    let name = program.tensor_name(output);
    let mut parts =
        Sharding::of(program, output).ok_or_else(|| format!("the axes of `{name}` are merged"))?;
    if parts.mesh.devices != *team || parts.mesh.extent(DeviceDim::X) != team.len() {
        return Err(format!("its team is not the mesh of `{name}`").into());
    }
    let first = parts.dims.first().ok_or_else(|| format!("`{name}` has no dimension"))?;
    let divides = program.constant(first.extent).is_some_and(|extent| extent % team.len() as i64 == 0);
    if !divides || !first.pieces.is_empty() {
        return Err(
            format!("the first dimension of `{name}` cannot be split over {} ranks", team.len()).into()
        );
    }
    let count = program.intern_int(team.len() as i64);
    let piece = DimPiece { parallel: ParallelType::Device(DeviceDim::X), count, swizzled: false };
    parts.dims[0].pieces.push(piece);
    Ok(parts)
}

/// Returns the statements that replace the all-reduce `it`. The all-gather keeps its number, so that the Wait for the all-reduce
/// waits for the all-gather.
fn split(
    program: &mut Program,
    fresh: &mut IrBuilder,
    (id, it): (StmtId, &OpStmt),
    parts: &Sharding,
) -> Option<Vec<StmtId>> {
    let (number, team) = it.number.zip(it.get(attr::TEAM))?;
    let (input, output): (TensorId, TensorId) = it.get(attr::INPUT).zip(it.get(attr::OUTPUT))?;
    let backend = it.get(attr::BACKEND).unwrap_or(Backend::Nccl);
    // A tensor with axes and domains of its own, and the element type of the result.
    let sum = parts.new_tensor(program, fresh, output, Memory::Global);
    let scatter = Collective {
        kind: CommunicationType::ReduceScatter,
        team,
        root: None,
        red_op: it.get(attr::RED_OP),
        input,
        output: sum,
    };
    let gather =
        Collective { kind: CommunicationType::Allgather, team, root: None, red_op: None, input: sum, output };
    let work = fresh.work();
    let new = [
        build::allocate(program, sum),
        scatter.stmt(work, backend, team.len()),
        build::wait(work),
        gather.stmt(number, backend, team.len()),
    ];
    let span = program.stmt_span(id);
    Some(new.into_iter().map(|stmt| build::add(program, stmt, span)).collect())
}

#[cfg(test)]
mod tests;
