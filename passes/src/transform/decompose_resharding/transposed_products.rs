//! Computes the transpose of a product as a product of transposes.
//!
//! Gradients of weights are often written so, by JAX always:
//! ```text
//! T3[iS4{64}, iS5{32}] = matmul(T1[iS0{64}, iS1{16}], T2[iS2{16}, iS3{32}])
//! T4[iS7{32}, iS6{64}] = Set.Permute( T3[iS4{64}, iS5{32}], dims = {1, 0} )
//! ```
//! `linear` transposes its second operand, so the pass writes (T1 T2)ᵀ = T2ᵀ T1ᵀ as
//! ```text
//! T5[iS9{32}, iS8{16}] = Set.Permute( T2[iS2{16}, iS3{32}], dims = {1, 0} )
//! T4[iS7{32}, iS6{64}] = linear(T5[iS9{32}, iS8{16}], T1[iS0{64}, iS1{16}])
//! ```
//! if `T4` is an output. A transposed operand is a view, which a product reads as it is; a transposed output is a copy. If `T1` is a
//! transpose of another tensor, that one is the operand: what has to be resharded is then resharded once for all of its readers.

use grammar::{BlockId, Memory, Op, OpStmt, Operand, Program, StmtId, TensorId, permutation};
use hir_ir::{
    blocks::nested_blocks,
    build::{self, IrBuilder},
};
use rustc_hash::FxHashMap;

use super::{is_copy, readers, slices::mentions_slice};
use crate::{analysis::sharding::Sharding, rewrite::contiguity::permute_op};

/// Rewrites the transposed products of all blocks. Returns true if anything changed.
pub(super) fn fold(
    program: &mut Program,
    fresh: &mut IrBuilder,
    body: BlockId,
    rewritten: &FxHashMap<TensorId, TensorId>,
) -> bool {
    let read = readers(program, body);
    let outputs: Vec<TensorId> = Program::tensors_of(&program.outputs).collect();
    let is_output = |program: &Program, tensor: TensorId| {
        let is_written_to_output = |stmt: &StmtId| {
            let Some(it) = program.op(*stmt).filter(|it| is_copy(it)) else { return false };
            it.out_tensor().is_some_and(|it| outputs.contains(&it))
        };
        outputs.contains(&tensor) || read.get(&tensor).is_some_and(|it| it.iter().all(is_written_to_output))
    };
    let mut changed = false;
    for block in nested_blocks(program, body) {
        // The operands of the products and of the transposes so far, by result.
        let mut products: FxHashMap<TensorId, (StmtId, OpStmt)> = FxHashMap::default();
        let mut transposes: FxHashMap<TensorId, (TensorId, StmtId)> = FxHashMap::default();
        let mut replaced: FxHashMap<StmtId, Vec<StmtId>> = FxHashMap::default();
        for stmt in program.block(block).to_vec() {
            let Some(it) =
                program.op(stmt).filter(|it| matches!(it.op, Op::Matmul | Op::Linear | Op::Permute))
            else {
                continue;
            };
            let Some(out) = it.out_tensor().filter(|it| !rewritten.contains_key(it)) else { continue };
            let args = it.tensor_operands();
            if mentions_slice(program, stmt) || !args.iter().chain([&out]).all(|it| is_matrix(program, *it)) {
                continue;
            }
            let it = it.clone();
            match (it.op, &args[..]) {
                (Op::Matmul | Op::Linear, [a, b]) if [a, b].iter().all(|it| !rewritten.contains_key(*it)) => {
                    products.insert(out, (stmt, it));
                }
                (Op::Permute, [from]) if permutation(program, &it) == [1, 0] => {
                    let is_alone = read.get(from).is_some_and(|it| it.len() == 1) && !outputs.contains(from);
                    match products.get(from).filter(|_| is_alone && is_output(program, out)) {
                        Some((product, of)) => {
                            let new = transposed(program, fresh, (*product, of), out, &transposes);
                            replaced.insert(*product, new);
                            let is_unused = |view: &TensorId| {
                                read.get(view).is_some_and(|it| it.len() == 1) && !outputs.contains(view)
                            };
                            // The operands that are views of what the new product reads.
                            let views = &of.tensor_operands()[..if of.op == Op::Linear { 1 } else { 2 }];
                            let views =
                                views.iter().filter(|it| is_unused(it)).filter_map(|it| transposes.get(it));
                            replaced.extend(views.map(|it| it.1).chain([stmt]).map(|it| (it, Vec::new())));
                        }
                        None => drop(transposes.insert(out, (*from, stmt))),
                    }
                }
                _ => (),
            }
        }
        if !replaced.is_empty() {
            let stmts = program.block(block).to_vec().into_iter();
            let new = stmts.flat_map(|it| replaced.remove(&it).unwrap_or_else(|| vec![it]));
            program.blocks[block] = new.collect();
            changed = true;
        }
    }
    changed
}

/// Makes the statements that compute the transpose of a product as `out`.
fn transposed(
    program: &mut Program,
    fresh: &mut IrBuilder,
    (stmt, product): (StmtId, &OpStmt),
    out: TensorId,
    transposes: &FxHashMap<TensorId, (TensorId, StmtId)>,
) -> Vec<StmtId> {
    let span = program.stmt_span(stmt);
    let operands = product.tensor_operands();
    let (a, b) = (operands[0], operands[1]);
    let mut stmts = Vec::new();
    let mut transpose = |program: &mut Program, tensor: TensorId| {
        if let Some((source, _)) = transposes.get(&tensor) {
            return *source;
        }
        let Some(mut sharding) = Sharding::of(program, tensor) else { return tensor };
        sharding.dims.reverse();
        let view = sharding.new_tensor(program, fresh, tensor, Memory::Global);
        let permute = permute_op(program, tensor, view, &[1, 0]);
        stmts.push(build::add(program, permute, span));
        view
    };
    let (op, left, right) = match (product.op, transposes.get(&a)) {
        // (A Wᵀ)ᵀ = W Aᵀ
        (Op::Linear, None) => (Op::Linear, b, a),
        (Op::Linear, Some((source, _))) => (Op::Matmul, b, *source),
        (_, None) => (Op::Linear, transpose(program, b), a),
        (_, Some((source, _))) => (Op::Matmul, transpose(program, b), *source),
    };
    let args = vec![Operand::Tensor(left), Operand::Tensor(right)];
    let new = OpStmt { op, outs: vec![Operand::Tensor(out)], args, ..product.clone() };
    stmts.push(build::add(program, new, span));
    stmts
}

/// Returns whether a tensor has two dimensions and a known sharding.
fn is_matrix(program: &Program, tensor: TensorId) -> bool {
    Sharding::of(program, tensor)
        .is_some_and(|it| it.dims.len() == 2 && it.dims.iter().all(|dim| !dim.partial))
}
