//! Packs the parts of a tensor that devices send and receive into dense memory, and unpacks them.

use grammar::{DeviceDim, Memory, Op, ParallelType, TensorId};
use hir_ir::build;

use super::Lowering;
use crate::{
    analysis::sharding::{Sharding, same_extent},
    rewrite::{
        contiguity::{self, SubAxis},
        sharded_tensors::{allocate_per_stream, part_extent},
    },
};

impl Lowering<'_> {
    /// Calls `post` to receive the parts of all devices into a buffer, outermost first, and copies the buffer
    /// to `out`. If the parts are outermost in `out` already, `post` receives into `out` directly. `recv` is
    /// the sharding of `out`, with the device piece that distinguishes the parts.
    pub(super) fn post_and_unpack(
        &mut self,
        out: TensorId,
        recv: &Sharding,
        (dim, device): (usize, DeviceDim),
        post: &mut dyn FnMut(&mut Self, TensorId),
    ) {
        let split = self.program.is_split_by_stream(out);
        let mut leaves = contiguity::sub_axes(self.program, recv, split);
        let Some(at) = contiguity::device_axis_position(&leaves, dim, device) else { return };
        leaves[at] = leaves[at].serial();
        if contiguity::is_outermost(self.program, &leaves, at) {
            self.allocate(out);
            return post(self, out);
        }
        let arrived = contiguity::with_axis_moved(&leaves, at, 0);
        let buffer = contiguity::tensor(self.program, self.fresh, out, &arrived);
        let allocate = build::allocate(self.program, buffer);
        self.emit(allocate);
        post(self, buffer);
        self.emit_waits();
        let (permuted, stmt) = contiguity::permute_axis(self.program, self.fresh, buffer, &arrived, (0, at));
        if self.views.contains(&out) {
            // A slice of a larger tensor is not dense, so the source of its copy has to be allocated.
            let allocate = build::allocate(self.program, permuted);
            self.emit(allocate);
        }
        self.emit(stmt);
        self.allocate(out);
        self.emit(contiguity::unary_op(Op::Reshape, permuted, out));
        // In a loop, the name is bound to another view in the next iteration.
        self.emit(build::deallocate(permuted));
    }

    /// Returns the tensor as parts, one for each device, outermost first. `send` is its sharding, with the
    /// device piece that distinguishes the parts.
    pub(super) fn pack_parts(
        &mut self,
        arg: TensorId,
        send: &Sharding,
        (dim, device): (usize, DeviceDim),
    ) -> TensorId {
        let split = self.program.is_split_by_stream(arg);
        let mut leaves = contiguity::sub_axes(self.program, send, split);
        let Some(at) = contiguity::device_axis_position(&leaves, dim, device) else { return arg };
        leaves[at] = leaves[at].serial();
        if contiguity::is_outermost(self.program, &leaves, at) {
            return arg;
        }
        let cut = contiguity::tensor(self.program, self.fresh, arg, &leaves);
        self.emit(contiguity::unary_op(Op::Reshape, arg, cut));
        let (packed, stmt) = contiguity::permute_axis(self.program, self.fresh, cut, &leaves, (at, 0));
        let allocate = build::allocate(self.program, packed);
        self.emit(allocate);
        self.emit(stmt);
        // In a loop, the name is bound to another view in the next iteration.
        self.emit(build::deallocate(cut));
        packed
    }

    /// Returns the tensor reshaped with a leading dimension over its `count` parts.
    pub(super) fn split_into_parts(&mut self, tensor: TensorId, count: usize) -> TensorId {
        let Some(sharding) = Sharding::of(self.program, tensor) else { return tensor };
        let split = self.program.is_split_by_stream(tensor);
        let mut leaves = contiguity::sub_axes(self.program, &sharding, split);
        let count = self.program.intern_int(count as i64);
        let Some(at) = leaves.iter().position(|leaf| leaf.has_local_extent(self.program)) else {
            return tensor;
        };
        if same_extent(self.program, leaves[at].extent, count) && at == 0 {
            return tensor;
        }
        leaves[at].extent = part_extent(self.program, leaves[at].extent, count);
        leaves.insert(0, SubAxis { dim: 0, extent: count, parallel: ParallelType::Serial });
        let parts = contiguity::tensor(self.program, self.fresh, tensor, &leaves);
        self.emit(contiguity::unary_op(Op::Reshape, tensor, parts));
        self.reshaped_names.push(parts);
        parts
    }

    /// Returns a view of the part at index `at`.
    pub(super) fn part_view(&mut self, parts: TensorId, at: usize) -> TensorId {
        let Some(axis) = self.program.dimensions(parts).next() else { return parts };
        let Some(mut sharding) = Sharding::of(self.program, parts) else { return parts };
        sharding.dims.remove(0);
        let view = sharding.new_tensor(self.program, self.fresh, parts, Memory::Local);
        // A slice of a per-stream allocation is per-stream as well.
        if self.program.is_split_by_stream(parts) {
            allocate_per_stream(self.program, view);
        }
        let index = self.program.intern_int(at as i64);
        self.emit(build::select(view, parts, axis, index));
        view
    }
}
