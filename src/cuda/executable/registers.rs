//! Which buffers have no memory: those that fused kernels keep in registers.
//!
//! What is fused depends on addresses, and addresses on what is fused. So the buffers are those that are in registers if each buffer had memory
//! of its own, and still are with the assignment in which they have none.

use hir_plan::{BufferNo, Plan, World, sync::is_large_world};
use rustc_hash::FxHashSet;

use super::fusion::{FusionRole, relative_address, roles_without_gpu};
use crate::buffer_assignment::{BufferAssignment, PortMemory, Segment};

/// Number of assignments that are tried before all buffers get memory.
const ATTEMPTS: usize = 4;

/// Assigns memory to the buffers and signals of all ranks. In a large world, all buffers have memory.
///
/// # Errors
/// Returns the rank and the buffer if the size overflows or if the element type has no size.
pub(crate) fn assign_memory(world: &World, ports: PortMemory) -> Result<BufferAssignment, (usize, BufferNo)> {
    let none = || BufferAssignment::with_ports(world, ports, &[]);
    if is_large_world(world) {
        return none();
    }
    let apart = BufferAssignment::without_reuse(world)?;
    let mut registers: Vec<FxHashSet<BufferNo>> =
        world.iter().map(|plan| in_registers(world, plan, &apart)).collect();
    for _ in 0..ATTEMPTS {
        let assignment = BufferAssignment::with_ports(world, ports, &registers)?;
        let mut is_final = true;
        for (plan, registers) in world.iter().zip(&mut registers) {
            let still = in_registers(world, plan, &assignment);
            is_final &= registers.is_subset(&still);
            registers.retain(|it| still.contains(it));
        }
        if is_final {
            return Ok(assignment);
        }
    }
    none()
}

/// Returns a report of the GPU memory of all ranks.
///
/// # Errors
/// A buffer has no size in bytes.
pub(crate) fn memory_report(world: &World) -> Result<Vec<String>, String> {
    let layout = assign_memory(world, PortMemory::Segments).map_err(|(rank, buffer)| {
        let name = &world[rank].buffers[buffer as usize].name;
        format!("rank {rank}: `{name}` has no size in bytes")
    })?;
    let mut lines: Vec<String> = Vec::new();
    let mut shown: Vec<String> = Vec::new();
    for plan in world.plans() {
        let mut rank = layout.describe(plan);
        let sums = rank.pop();
        // Ranks that run the same program usually have the same layout.
        if rank != shown {
            lines.extend(rank.iter().cloned());
            shown = rank;
        }
        lines.extend(sums);
    }
    Ok(lines)
}

/// Returns the buffers of a rank that fused kernels alone access, and none of them in memory.
fn in_registers(world: &World, plan: &Plan, assignment: &BufferAssignment) -> FxHashSet<BufferNo> {
    let roles = roles_without_gpu(world, plan, assignment);
    let slices = &assignment.ranks[plan.rank].buffers;
    let is_private = |number: BufferNo| {
        let it = &slices[number as usize];
        let is_own = matches!(it.segment, Segment::Private | Segment::Lent | Segment::Registers);
        is_own && !it.holds_packets && it.bytes > 0
    };
    let mut found = FxHashSet::default();
    let mut in_memory = FxHashSet::default();
    let mut parameters: Vec<u64> = Vec::new();
    for (inst, role) in plan.code.iter().zip(&roles) {
        let is_fused = matches!(role, FusionRole::Leader(_) | FusionRole::FusedInto(_));
        for (rank, buffer, _) in inst.kind.touched_buffers(plan.rank) {
            if rank != plan.rank {
                continue;
            }
            if is_fused && is_private(buffer) {
                found.insert(buffer);
            } else {
                in_memory.insert(buffer);
            }
        }
        if let FusionRole::Leader(launch) = role {
            parameters.extend_from_slice(&launch.params);
        }
    }
    parameters.sort_unstable();
    // A buffer in memory of which a kernel has the address, or which it shares with one.
    let has_parameter = |it: BufferNo| {
        let start = relative_address(assignment, plan.rank, it);
        let end = start + slices[it as usize].bytes as u64;
        let next = parameters.partition_point(|it| *it < start);
        parameters.get(next).is_some_and(|it| *it < end)
    };
    found.retain(|it| !in_memory.contains(it) && !has_parameter(*it));
    found
}
