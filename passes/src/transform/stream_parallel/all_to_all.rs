//! Emits the all-to-all of one slice of every device's part of a dimension.
//!
//! For `T1[ideviceIdx.x1{2}, istreamIdx2{4}, iS3{3}, iS4{6}] = Set( T0[iS5{24}, ideviceIdx.x6{2}, iS7{3}] )`, iteration `i5` reads the
//! slice `i5` of both parts of T0, which are not adjacent. So the dimension is cut into the parts and what is in each:
//! ```text
//! T8[iS10{2}, istreamIdx11{4}, iS12{3}, ideviceIdx.x13{2}, iS14{3}] = reshape( T0 )
//! FOR i5 from 0 to 4:
//!   T1 = ALLOCATE(mem_type=global, zero_init=false)
//!   T15 = ShardByStream( T8, stream_index = i5 )
//!   T16[ideviceIdx.x17{2}, istreamIdx18{4}, iS19{3}, iS20{6}] = reshape( T1 )
//!   T16 = Set( T15 )
//! ```
//! lower-to-communication makes the all-to-all of the last Set. An all-to-all of slices of the operand's parts is the same with
//! the sides exchanged: T8 is then the result, and T16 the operand.

use grammar::{Memory, Op, OpStmt, Operand, TensorId, attr};
use hir_ir::build;

use super::{StreamParallel, body::LoopWriter, group::LoopStmt};
use crate::{
    analysis::sharding::{Dim, Sharding},
    rewrite::{
        contiguity,
        sharded_tensors::{allocate_per_stream, part_extent},
    },
};

/// Emits the all-to-all of the current slice of dimension `dim`, which is sharded on one side.
pub(super) fn emit(it: &mut LoopWriter<'_, '_>, member: &LoopStmt, dim: usize) {
    let (operand, out) = (member.slicing.operands[0], member.slicing.out);
    let is_result_sliced = member.slicing.out_dim.is_some();
    let (part, whole) = if is_result_sliced {
        (it.result_slice(member), operand.tensor)
    } else {
        it.allocate_before(out, member.stmt);
        (it.operand_slice(operand), out)
    };
    let Some([parts, slices]) = cut(it, [part, whole], dim) else { return };
    allocate_per_stream(it.pass.program, parts);
    it.emit_before(contiguity::unary_op(Op::Reshape, whole, slices));
    let slice = it.name_like(slices, None);
    allocate_per_stream(it.pass.program, slice);
    it.emit(OpStmt {
        outs: vec![Operand::Tensor(slice)],
        args: vec![Operand::Tensor(slices)],
        attrs: vec![attr::STREAM_INDEX.with(it.chunk)],
        ..build::op(Op::ShardByStream)
    });
    it.emit(contiguity::unary_op(Op::Reshape, part, parts));
    let (from, to) = if is_result_sliced { (slice, parts) } else { (parts, slice) };
    it.emit(contiguity::unary_op(Op::Set, from, to));
    // The next iteration binds the name again.
    it.emit(build::deallocate(parts));
}

/// Returns new tensors for the elements of both, with two dimensions in place of dimension `dim`: the parts, of which each
/// device has one of the first tensor and all of the second, and the elements of a part, of which there is one slice for each
/// iteration.
fn cut(it: &mut LoopWriter<'_, '_>, tensors: [TensorId; 2], dim: usize) -> Option<[TensorId; 2]> {
    let StreamParallel { program, fresh, .. } = &mut *it.pass;
    let [part, whole] = tensors.map(|tensor| Sharding::of(program, tensor));
    let (part, whole) = (part?, whole?);
    let (stream, devices) = part.dims[dim].pieces.split_last()?;
    let count: i64 = devices.iter().filter_map(|piece| program.constant(piece.count)).product();
    let count = program.intern_int(count);
    let elements = part_extent(program, part.dims[dim].extent, count);
    let elements = Dim { pieces: vec![*stream], ..Dim::whole(elements) };
    let mut tensor = |mut sharding: Sharding, like| {
        let pieces = sharding.dims[dim].devices().count();
        let parts = Dim { pieces: devices[..pieces].to_vec(), ..Dim::whole(count) };
        sharding.dims.splice(dim..=dim, [parts, elements.clone()]);
        sharding.new_tensor(program, fresh, like, Memory::Local)
    };
    Some([tensor(part.clone(), tensors[0]), tensor(whole, tensors[1])])
}
