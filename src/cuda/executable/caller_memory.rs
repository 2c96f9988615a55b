//! The places where commands have addresses of the caller's memory and of shared memory, which change from run to run.
//!
//! A plan is lowered with addresses that stand for this memory (`buffer_assignment::{CALLER_BASE, SHARED_BASE}`). Afterwards, each of these
//! values among the parameters of commands is such an address: no size and no distance is as large, and a plan with such an
//! integer constant is refused.

use std::ops::Range;

use super::{Executable, ScheduledCommand};
use crate::{
    ExecutorError, Result,
    buffer_assignment::{ALIGNMENT, BufferAssignment, CALLER_BASE, Segment, TEMPORARY_BASE},
    memory::shared_base,
};
use hir_plan::{Arg, BufferNo, Inst, InstKind, Number, Plan};

/// What has an address that is bound for each run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BoundMemory {
    /// An input or an output.
    Port(BufferNo),
    /// What the run needs besides.
    Temporary,
    /// The shared segment of a rank.
    Shared(usize),
}

/// Memory whose address is bound for each run.
pub(crate) struct CallerBuffer {
    pub what: BoundMemory,
    /// The addresses that stand for it.
    stand_in: Range<u64>,
    /// Its address in the last run that was issued.
    bound: u64,
}

/// An address in a command.
struct AddressPlace {
    command: usize,
    /// Index among the addresses of the command.
    position: usize,
    /// Index in `CallerMemory::buffers`.
    buffer: usize,
    /// Byte offset in the buffer.
    offset: u64,
}

/// The memory of a plan whose addresses are bound for each run.
pub(crate) struct CallerMemory {
    pub buffers: Vec<CallerBuffer>,
    places: Vec<AddressPlace>,
}

impl CallerMemory {
    /// Finds these addresses in the commands of a plan, which need so many bytes of temporary memory.
    ///
    /// # Errors
    /// The plan has an integer constant that could be taken for an address.
    pub fn of(
        plan: &Plan,
        assignment: &BufferAssignment,
        temporary_bytes: usize,
        commands: &[ScheduledCommand],
    ) -> Result<Self> {
        let slices =
            (0..).zip(&assignment.ranks[plan.rank].buffers).filter(|(_, it)| it.segment == Segment::Caller);
        let stand_in = |what, start: u64, bytes: usize| CallerBuffer {
            what,
            stand_in: start..start + bytes as u64,
            bound: start,
        };
        let mut buffers: Vec<CallerBuffer> = slices
            .map(|(buffer, it)| stand_in(BoundMemory::Port(buffer), CALLER_BASE + it.offset as u64, it.bytes))
            .collect();
        if temporary_bytes > 0 {
            buffers.push(stand_in(BoundMemory::Temporary, TEMPORARY_BASE, temporary_bytes));
        }
        if assignment.shared_bytes > 0 {
            let of_rank =
                |rank| stand_in(BoundMemory::Shared(rank), shared_base(rank), assignment.shared_bytes);
            buffers.extend((0..plan.world).map(of_rank));
        }
        let find = |address: u64| buffers.iter().position(|it| it.stand_in.contains(&address));
        let is_ambiguous = |it: &Number| matches!(it, Number::Int(it) if find(*it as u64).is_some());
        if let Some(inst) = plan.code.iter().find(|it| constants(it).iter().any(is_ambiguous)) {
            let reason = "this constant cannot be used in a program that works in memory of its caller";
            return Err(ExecutorError::unsupported(plan, inst, reason));
        }
        let mut places = Vec::new();
        for (command, scheduled) in commands.iter().enumerate() {
            for (position, address) in scheduled.command.addresses().into_iter().enumerate() {
                if let Some(buffer) = find(address) {
                    let offset = address - buffers[buffer].stand_in.start;
                    places.push(AddressPlace { command, position, buffer, offset });
                }
            }
        }
        Ok(Self { buffers, places })
    }

    /// Returns the address for which a value stands, if `addresses` are bound.
    pub fn resolve(&self, value: u64, addresses: &[u64]) -> u64 {
        let bound = self.buffers.iter().zip(addresses).find(|(it, _)| it.stand_in.contains(&value));
        bound.map_or(value, |(it, address)| address + (value - it.stand_in.start))
    }
}

impl Executable {
    /// Makes the commands use these addresses, one for each of `CallerMemory::buffers`.
    ///
    /// # Errors
    /// An address is missing or not aligned, or a call fails.
    pub fn bind(&mut self, memory: &mut CallerMemory, addresses: &[u64]) -> Result<()> {
        if addresses.len() != memory.buffers.len() {
            return Err(ExecutorError::Internal(format!(
                "{} addresses were passed for {} buffers",
                addresses.len(),
                memory.buffers.len()
            )));
        }
        if let Some(address) = addresses.iter().find(|it| !it.is_multiple_of(ALIGNMENT as u64)) {
            return Err(ExecutorError::Internal(format!(
                "the address {address:#x} is not a multiple of {ALIGNMENT}"
            )));
        }
        for AddressPlace { command, position, buffer, offset } in &memory.places {
            if memory.buffers[*buffer].bound != addresses[*buffer] {
                self.commands[*command].command.set_address(*position, addresses[*buffer] + offset)?;
            }
        }
        memory.buffers.iter_mut().zip(addresses).for_each(|(it, address)| it.bound = *address);
        Ok(())
    }
}

/// Returns the constants of an instruction that become parameters of kernels.
fn constants(inst: &Inst) -> Vec<Number> {
    match &inst.kind {
        InstKind::Fill { value, .. } => vec![*value],
        InstKind::Iota { start, step, .. } => vec![Number::Int(*start), Number::Int(*step)],
        InstKind::Map { args, .. } => args
            .iter()
            .filter_map(|it| match it {
                Arg::Number(it) => Some(*it),
                Arg::View(_) => None,
            })
            .collect(),
        InstKind::Alloc { .. }
        | InstKind::Copy { .. }
        | InstKind::Constant { .. }
        | hir_plan::computation_insts!()
        | InstKind::PeerReduce { .. }
        | InstKind::Collective(_)
        | InstKind::P2pGroup(_)
        | InstKind::Reshard(_)
        | hir_plan::ordering_insts!() => Vec::new(),
    }
}
