//! Estimates the peak memory of a run before it allocates anything.
//!
//! Extents are numbers, so a small program can need any amount of memory. The estimate is that of the larger one of two phases:
//!
//! * The run holds inputs, the contents of buffers with one byte per element for the written mask, copies of the outputs, and the
//!   operands and results of the largest instruction at 16 bytes per element, the widest representation in the kernels.
//! * When the run has ended, outputs are assembled from their parts: inputs and copies of the outputs are held, but no buffers.
//!
//! Plans are held in both.
//!
//! Contents that ranks share count once (`memory`): those of equal parts of an input, or of the result of a resharding operator,
//! that nothing else writes.

use grammar::DType;
use hir_plan::{BufferNo, InstKind, Plan, ShardLayout, View};
use hir_tensor::data::shadow::LANES;
use rustc_hash::FxHashSet;

use super::memory::is_whole;

/// Memory that a run needs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Footprint {
    /// Total size in bytes, without f64 shadows.
    pub bytes: usize,
    /// The size of the f64 shadows in bytes, if every value is inexact.
    pub shadow_bytes: usize,
    /// The largest buffer: its size in bytes, the tensor's name and the rank.
    pub largest: Option<(usize, String, usize)>,
}

/// Bytes of simulator state per instruction: its state, queue entries and conditions.
const STATE: usize = 64;

/// Bytes per element while a kernel computes.
const WORKING: usize = 16;

/// Bytes per element of an assembled output beside the element itself: the rank that holds it, and whether it is written.
const ASSEMBLED: usize = 17;

/// Bytes per element of a part while it is compared with an assembled output, beside a copy of the element: its position, and whether it
/// is new.
const COMPARED: usize = 9;

/// Bytes per element of a shadow.
const SHADOW: usize = LANES * 8;

/// Bytes without and with the f64 shadows of a phase.
#[derive(Clone, Copy, Default)]
struct Phase {
    plain: usize,
    shadow: usize,
}

impl Phase {
    /// Adds elements of a type, with `beside` bytes for each beside the element itself.
    fn add(&mut self, elements: usize, dtype: DType, beside: usize) {
        self.plain = self.plain.saturating_add(elements.saturating_mul(dtype.size().max(1) + beside));
        if !dtype.is_integral() {
            self.shadow = self.shadow.saturating_add(elements.saturating_mul(SHADOW));
        }
    }

    fn sum(self) -> usize {
        self.plain.saturating_add(self.shadow)
    }
}

/// Returns the memory of all ranks together, if ranks that hold the same part of an input share it. Sizes saturate instead of
/// overflowing.
pub fn footprint(plans: &[Plan]) -> Footprint {
    let (mut run, mut assembly) = (Phase::default(), Phase::default());
    let mut largest: Option<(usize, String, usize)> = None;
    let (mut inputs, mut always) = (0_usize, 0_usize);
    let (mut working, mut working_shadow) = (0, 0);
    let written_by_peers = written_by_peers(plans);
    let (mut known, mut known_ports) = (FxHashSet::default(), FxHashSet::default());
    for plan in plans {
        let contents = contents(plan, &written_by_peers);
        let distinct = plan.buffers.iter().zip(&contents).filter(|(_, it)| known.insert(**it));
        for (buffer, _) in distinct {
            run.add(buffer.len, buffer.dtype, 1);
            let bytes = buffer.len.saturating_mul(buffer.dtype.size().max(1) + 1);
            if largest.as_ref().is_none_or(|(most, ..)| bytes > *most) {
                largest = Some((bytes, buffer.name.clone(), plan.rank));
            }
        }
        // A small buffer can be a large output, because a view may repeat its elements.
        for (at, port) in plan.inputs.iter().chain(&plan.outputs).enumerate() {
            let Some(view) = &port.shard.view else { continue };
            if !known_ports.insert((at, contents[view.buffer as usize], view.key())) {
                continue;
            }
            if at < plan.inputs.len() {
                inputs = inputs.saturating_add(view.len().saturating_mul(port.dtype.size().max(1)));
            } else {
                run.add(view.len(), port.dtype, 1);
                assembly.add(view.len(), port.dtype, 1);
            }
        }
        always = always.saturating_add(plan.bytes()).saturating_add(plan.code.len() * STATE);
        for inst in &plan.code {
            working = working.max(elements(&inst.kind));
            working_shadow = working_shadow.max(private_elements(&inst.kind));
        }
    }
    run.plain = run.plain.saturating_add(working.saturating_mul(WORKING));
    run.shadow = run.shadow.saturating_add(working_shadow.saturating_mul(SHADOW));
    let mut compared = Phase::default();
    for (at, output) in plans.first().map_or(&[][..], |it| &it.outputs).iter().enumerate() {
        let shape = &output.shard.layout.shape;
        let elements = shape.iter().copied().fold(1, usize::saturating_mul);
        assembly.add(elements, output.dtype, ASSEMBLED);
        let parts = plans.iter().filter_map(|it| it.outputs.get(at)?.shard.view.as_ref());
        let mut part = Phase::default();
        part.add(parts.map(View::len).max().unwrap_or(0), output.dtype, COMPARED);
        // The shadows of both sides are copied.
        compared = Phase {
            plain: compared.plain.max(part.plain),
            shadow: compared.shadow.max(part.shadow.saturating_mul(2)),
        };
    }
    assembly.plain = assembly.plain.saturating_add(compared.plain);
    assembly.shadow = assembly.shadow.saturating_add(compared.shadow);
    let always = always.saturating_add(inputs);
    let bytes = run.plain.max(assembly.plain);
    let shadow_bytes = run.sum().max(assembly.sum()) - bytes;
    Footprint { bytes: bytes.saturating_add(always), shadow_bytes, largest }
}

/// Returns the memory in bytes that it takes to assemble a tensor of `whole` elements of `size` bytes from parts of `part` elements, beside
/// these parts and the tensor.
pub fn assembly_bytes(whole: usize, part: usize, size: usize) -> usize {
    whole.saturating_mul(ASSEMBLED).saturating_add(part.saturating_mul(size + COMPARED))
}

/// Returns the memory of the inputs of all ranks in bytes, if each rank has its own: the inputs, and the contents of buffers.
pub fn own_input_bytes(plans: &[Plan]) -> usize {
    let ports = plans.iter().flat_map(|it| &it.inputs);
    let bytes = ports.filter_map(|port| {
        let elements = port.shard.view.as_ref()?.len();
        Some(elements.saturating_mul(2 * port.dtype.size().max(1)))
    });
    bytes.fold(0, usize::saturating_add)
}

/// What a buffer holds. Ranks share equal contents.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Contents<'p> {
    Unwritten(DType, usize),
    /// The program, the position of the input, and the part.
    Input(usize, usize, &'p ShardLayout),
    /// The program, the resharding operator, the ranks that execute it, and the part of its result.
    Result(usize, usize, &'p [usize], &'p ShardLayout),
    Own(usize, BufferNo),
}

/// Returns the contents of each buffer of a rank.
fn contents<'p>(plan: &'p Plan, written_by_peers: &FxHashSet<(usize, BufferNo)>) -> Vec<Contents<'p>> {
    let unwritten = plan.buffers.iter().map(|it| Contents::Unwritten(it.dtype, it.len));
    let mut found: Vec<Contents<'p>> = unwritten.collect();
    let mut write = |view: &View, shared: Option<Contents<'p>>| {
        let own = Contents::Own(plan.rank, view.buffer);
        let is_first = matches!(found[view.buffer as usize], Contents::Unwritten(..))
            && !written_by_peers.contains(&(plan.rank, view.buffer))
            && is_whole(view, plan.buffers[view.buffer as usize].len);
        found[view.buffer as usize] = shared.filter(|_| is_first).unwrap_or(own);
    };
    for (position, port) in plan.inputs.iter().enumerate() {
        if let Some(view) = &port.shard.view {
            let shared = Contents::Input(plan.program_id, position, &port.shard.layout);
            write(view, Some(shared));
        }
    }
    for (number, inst) in plan.code.iter().enumerate() {
        let shared = match &inst.kind {
            InstKind::Reshard(it) => {
                Some(Contents::Result(plan.program_id, number, &it.team, &it.result.layout))
            }
            _ => None,
        };
        inst.kind.visit_accesses(plan.rank, &mut |it| {
            if it.is_write && it.rank == plan.rank {
                write(it.view, shared);
            }
        });
    }
    found
}

/// Returns the buffers, by rank, that other ranks write.
fn written_by_peers(plans: &[Plan]) -> FxHashSet<(usize, BufferNo)> {
    let mut found = FxHashSet::default();
    for plan in plans {
        for inst in &plan.code {
            inst.kind.visit_accesses(plan.rank, &mut |it| {
                if it.is_write && it.rank != plan.rank {
                    found.insert((it.rank, it.view.buffer));
                }
            });
        }
    }
    found
}

/// Returns the number of elements of all operands and results of an instruction.
fn elements(kind: &InstKind) -> usize {
    if let InstKind::Reshard(it) = kind {
        let most = it.body.iter().map(elements).max().unwrap_or(0);
        return private_elements(kind).saturating_add(most);
    }
    let mut sum: usize = 0;
    kind.visit_accesses(0, &mut |it| sum = sum.saturating_add(it.view.len()));
    sum
}

/// Returns the number of elements of the private buffers of a resharding operator.
fn private_elements(kind: &InstKind) -> usize {
    match kind {
        InstKind::Reshard(it) => it.buffers.iter().fold(0, |sum: usize, it| sum.saturating_add(it.len)),
        _ => 0,
    }
}
