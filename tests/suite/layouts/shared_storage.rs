//! Converts a buffer assignment to plans: all buffers of one segment and element type become parts of one
//! buffer, at the offsets of the assignment.

use std::collections::HashMap;

use grammar::dtype::DType;
use hir_cuda::buffer_assignment::{BufferAssignment, Segment};
use hir_plan::{Buffer, InstKind, Number, Plan, View};

use super::area;

/// The locations of a rank's buffers: the new buffer, and the offset of the first element in it.
struct Parts {
    buffers: Vec<Buffer>,
    places: Vec<(u32, usize)>,
    lens: Vec<usize>,
}

/// Returns the plans with all buffers in their shared storage.
pub fn plans(plans: &[Plan], layout: &BufferAssignment) -> Vec<Plan> {
    let parts: Vec<Parts> = plans.iter().map(|plan| parts(plan, layout)).collect();
    let moved = |plan: &Plan| {
        let rank = plan.rank;
        let mut plan = plan.clone();
        plan.buffers = parts[rank].buffers.clone();
        for port in plan.inputs.iter_mut().chain(&mut plan.outputs) {
            port.shard.view.iter_mut().for_each(|view| parts[rank].shift(view));
        }
        plan.code.iter_mut().for_each(|inst| instruction(&mut inst.kind, rank, &parts));
        plan
    };
    plans.iter().map(moved).collect()
}

fn parts(plan: &Plan, layout: &BufferAssignment) -> Parts {
    let mut known: HashMap<(Segment, DType), u32> = HashMap::new();
    let (mut buffers, mut places) = (Vec::<Buffer>::new(), Vec::new());
    for (buffer, spot) in plan.buffers.iter().zip(&layout.ranks[plan.rank].buffers) {
        let number = *known.entry((area(spot), buffer.dtype)).or_insert_with(|| {
            buffers.push(Buffer::new("all", buffer.dtype, 0));
            buffers.len() as u32 - 1
        });
        let first = spot.offset / buffer.dtype.size();
        let whole = &mut buffers[number as usize];
        whole.len = whole.len.max(first + buffer.len);
        places.push((number, first));
    }
    Parts { buffers, places, lens: plan.buffers.iter().map(|it| it.len).collect() }
}

impl Parts {
    fn shift(&self, view: &mut View) {
        let (buffer, first) = self.places[view.buffer as usize];
        (view.buffer, view.offset) = (buffer, view.offset + first);
    }
}

fn instruction(kind: &mut InstKind, rank: usize, parts: &[Parts]) {
    // The storage always exists, so only the zeros are written.
    if let InstKind::Alloc { buffer, zeroed } = kind {
        let len = if zeroed.is_some() { parts[rank].lens[*buffer as usize] } else { 0 };
        let to = View::contiguous(*buffer, vec![len]);
        *kind = InstKind::Fill { to: Box::new(to), value: Number::Int(0) };
    }
    kind.change_views(rank, |rank, view| parts[rank].shift(view));
}
