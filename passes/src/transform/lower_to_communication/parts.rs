//! The parts of a tensor that devices send and receive, in dense memory.

use grammar::{
    ir::{DeviceDim, Memory, Parallel, TensorId},
    ops::Op,
};

use super::Ctx;
use crate::{
    analysis::sharding::{Sharding, same},
    rewrite::{
        create,
        pack::{self, Leaf},
        sharded::{divide, split_by_stream},
    },
};

impl Ctx<'_> {
    /// Lets `post` put the parts of all devices into a buffer, outermost first, and that into `out`. `recv` is how
    /// `out` is spread, with the piece that tells the parts apart.
    pub(super) fn unpacked(
        &mut self,
        out: TensorId,
        recv: &Sharding,
        (dim, device): (usize, DeviceDim),
        post: &mut dyn FnMut(&mut Self, TensorId),
    ) {
        let split = self.program.stream_split(out);
        let mut leaves = pack::leaves(self.program, recv, split);
        let Some(at) = pack::position(&leaves, dim, device) else { return };
        leaves[at] = leaves[at].serial();
        if pack::is_outermost(self.program, &leaves, at) {
            self.allocate(out);
            return post(self, out);
        }
        let arrived = pack::moved(&leaves, at, 0);
        let buffer = pack::tensor(self.program, self.fresh, out, &arrived);
        let allocate = create::allocate(self.program, buffer);
        self.emit(allocate);
        post(self, buffer);
        self.wait();
        let (permuted, stmt) = pack::permuted(self.program, self.fresh, buffer, &arrived, (0, at));
        if self.views.contains(&out) {
            // A slice of something larger is not dense: then what is copied to it has to be.
            let allocate = create::allocate(self.program, permuted);
            self.emit(allocate);
        }
        self.emit(stmt);
        self.allocate(out);
        self.emit(pack::copying(Op::Reshape, permuted, out));
        // In a loop, the next iteration's name is another view.
        self.emit(create::deallocate(permuted));
    }

    /// The tensor as parts, one for each device, outermost first. `send` is how it is spread, with the piece that tells
    /// the parts apart.
    pub(super) fn parts_of(
        &mut self,
        arg: TensorId,
        send: &Sharding,
        (dim, device): (usize, DeviceDim),
    ) -> TensorId {
        let split = self.program.stream_split(arg);
        let mut leaves = pack::leaves(self.program, send, split);
        let Some(at) = pack::position(&leaves, dim, device) else { return arg };
        leaves[at] = leaves[at].serial();
        if pack::is_outermost(self.program, &leaves, at) {
            return arg;
        }
        let cut = pack::tensor(self.program, self.fresh, arg, &leaves);
        self.emit(pack::copying(Op::Reshape, arg, cut));
        let (packed, stmt) = pack::permuted(self.program, self.fresh, cut, &leaves, (at, 0));
        let allocate = create::allocate(self.program, packed);
        self.emit(allocate);
        self.emit(stmt);
        // In a loop, the next iteration's name is another view.
        self.emit(create::deallocate(cut));
        packed
    }

    /// A tensor with its parts as a dimension of their own.
    pub(super) fn as_parts(&mut self, tensor: TensorId, count: usize) -> TensorId {
        let Some(sharding) = Sharding::of(self.program, tensor) else { return tensor };
        let split = self.program.stream_split(tensor);
        let mut leaves = pack::leaves(self.program, &sharding, split);
        let count = self.program.int(count as i64);
        let Some(at) = leaves.iter().position(|leaf| leaf.is_wide(self.program)) else { return tensor };
        if same(self.program, leaves[at].extent, count) && at == 0 {
            return tensor;
        }
        leaves[at].extent = divide(self.program, leaves[at].extent, count);
        leaves.insert(0, Leaf { dim: 0, extent: count, parallel: Parallel::Serial });
        let parts = pack::tensor(self.program, self.fresh, tensor, &leaves);
        self.emit(pack::copying(Op::Reshape, tensor, parts));
        self.names.push(parts);
        parts
    }

    /// One part, as a view.
    pub(super) fn part(&mut self, parts: TensorId, at: usize) -> TensorId {
        let Some(axis) = self.program.dimensions(parts).next() else { return parts };
        let Some(mut sharding) = Sharding::of(self.program, parts) else { return parts };
        sharding.dims.remove(0);
        let view = sharding.tensor(self.program, self.fresh, parts, Memory::Local);
        // A slice of what is one stream's already is that stream's too.
        if self.program.stream_split(parts) {
            split_by_stream(self.program, view);
        }
        let index = self.program.int(at as i64);
        self.emit(create::select(view, parts, axis, index));
        view
    }
}
