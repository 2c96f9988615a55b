//! Reduces to parts what is read in parts.
//!
//! The gradient of a constraint in JAX is the same constraint, so a partial sum may have to be whole before it is sharded:
//! ```text
//! T2[iS4{8}, iS5{4}] = linear(T0[iS0{8}, ideviceIdx.x1{2}, iS2{4}], T1[…])
//! T3[ideviceIdx.x6{2}, iS7{4}, iS8{4}] = Set( T2[iS4{8}, iS5{4}] )
//! ```
//! If all readers of `T2` take the same slices, `T2` gets their sharding: a reduce-scatter instead of an all-reduce.

use grammar::{BlockId, Memory, Operand, Program, Stmt, StmtId, TensorId, TypeRule};
use hir_ir::build::IrBuilder;
use rustc_hash::FxHashMap;

use super::{
    contraction::contracted_device_pieces, is_copy, readers, reduces_over_devices, set_operand,
    slices::mentions_slice,
};
use crate::{
    analysis::{
        dim_map,
        reshard::{self, ReshardStep},
        sharding::Sharding,
    },
    pass::Remarks,
};

/// Shards the sums of which only slices are read. Returns true if anything changed.
pub(super) fn shard(
    program: &mut Program,
    fresh: &mut IrBuilder,
    body: BlockId,
    rewritten: &FxHashMap<TensorId, TensorId>,
    remarks: &mut Remarks,
) -> bool {
    let mut read = readers(program, body);
    // A port is not read by the statements alone.
    Program::tensors_of(&program.inputs)
        .chain(Program::tensors_of(&program.outputs))
        .for_each(|it| drop(read.remove(&it)));
    let stmts: Vec<StmtId> = program.ops_in(body).map(|it| it.0).collect();
    let mut changed = false;
    for stmt in stmts {
        let Some((sum, part)) = sliced_sum(program, &read, rewritten, stmt) else { continue };
        let new = part.resharded_tensor(program, fresh, sum, Memory::Global, None);
        let name = program.tensor_name(sum);
        let message = format!("the sum `{name}` is reduced to the parts that are read");
        remarks.note(program.stmt_span(stmt), message, "a reduce-scatter instead of an all-reduce");
        if let Stmt::Op(it) = &mut program.stmts[stmt] {
            it.outs = vec![Operand::Tensor(new)];
        }
        for reader in &read[&sum] {
            if let Stmt::Op(it) = &mut program.stmts[*reader] {
                set_operand(it, 0, new);
            }
        }
        changed = true;
    }
    changed
}

/// Returns the result of a statement that adds partial sums of devices, if it is whole, and the sharding of the slices that all its
/// readers take. `read` has the readers of the tensors that are no ports.
fn sliced_sum(
    program: &Program,
    read: &FxHashMap<TensorId, Vec<StmtId>>,
    rewritten: &FxHashMap<TensorId, TensorId>,
    stmt: StmtId,
) -> Option<(TensorId, Sharding)> {
    let it = program.op(stmt).filter(|it| it.computes() && it.outs.len() == 1)?;
    let sum = it.out_tensor().filter(|it| !rewritten.contains_key(it))?;
    let readers = read.get(&sum)?;
    let taken = |stmt: &StmtId| {
        let it = program.op(*stmt).filter(|it| is_copy(it))?;
        Sharding::of(program, it.out_tensor()?)
    };
    let goal = Sharding::of(program, sum)?;
    let part = taken(readers.first()?)?;
    if reshard::step(program, &goal, &part) != Some(ReshardStep::Slice)
        || readers.iter().any(|it| taken(it).as_ref() != Some(&part))
        || readers.iter().chain([&stmt]).any(|it| mentions_slice(program, *it))
    {
        return None;
    }
    let args = it.tensor_operands();
    let from: Vec<Sharding> = args.iter().map(|it| Sharding::of(program, *it)).collect::<Option<_>>()?;
    let maps = dim_map::dim_maps(program, it)?;
    let is_sum = match it.op.def().type_rule {
        TypeRule::Reduce => reduces_over_devices(&maps[0], &from[0]),
        _ => !contracted_device_pieces(program, &args, &from, &maps, sum, &goal).is_empty(),
    };
    is_sum.then_some((sum, part))
}
