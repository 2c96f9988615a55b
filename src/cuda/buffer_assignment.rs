//! Assigns an address range to every buffer of every rank from the plans alone. All processes compute the
//! same assignment, so it is not exchanged.
//!
//! A rank has two segments. Buffers that another rank accesses are in the symmetric segment, behind the
//! signals that other ranks write here. The symmetric segment has the same size on all ranks, and ranks with
//! the same buffers use the same offsets. All other buffers are in the private segment.
//!
//! A buffer reuses the memory of another buffer if every instruction that accesses the other one, on any
//! rank, happens before every instruction that accesses it (`plan::sync::happens_before`). Names do not
//! matter, and neither does `Deallocate`. The buffers of a communication that nobody waits for stay in use
//! until the end of the run. Inputs, outputs, signals and buffers that are read before the run writes them
//! have memory of their own. A barrier of all ranks separates two runs, so the order within one run is
//! sufficient.
//!
//! Programs of one process run one after the other, each behind such a barrier. They share a third segment: with `PortMemory::Caller`, buffers
//! that other ranks access, and of which nothing is kept from run to run, are there instead of in the symmetric segment. It has addresses behind
//! `SHARED_BASE` until the program runs, because a larger program may take other memory for it.
//!
//! With `PortMemory::Caller`, inputs that the program only reads and outputs have no memory here, as far as no other rank
//! accesses them: the caller passes their addresses for each run. Until then they have addresses behind `CALLER_BASE`. Private buffers may lie
//! in outputs that are not yet written, and in inputs that the caller gives away, once they are read for the last time.
//!
//! Buffers that kernels keep in registers (`executable::registers`) have no memory. They have addresses behind `REGISTER_BASE`, which tell
//! them apart.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;

use hir_plan::{BufferNo, InstKind, IoBinding, PeerPhases, Plan, SignalId, Transfer, World};

mod lifetime;
mod offsets;
mod signals;

use lifetime::{Lifetime, lifetimes, unordered_lifetimes};
use offsets::{LentMemory, LentWhen, LiveBuffer, Offset, SegmentEnds, SegmentOffsets, assign_offsets};
use signals::SignalOffsets;
pub(super) use signals::SignalSlice;

/// Alignment of buffers in bytes, as cuBLASLt prefers it.
pub const ALIGNMENT: usize = 256;
/// Bytes that a buffer of packets has for each byte of data. Packets of 16 bytes hold 8 bytes of data; packets of 128
/// bytes hold 120, and need no more in slots of a multiple of 64 bytes.
pub(super) const PACKET_EXPANSION: usize = 2;
/// Granularity of segments that other processes map, in bytes: the driver gives them pages of their own.
const SEGMENT_GRANULARITY: usize = 2 << 20;

/// Whose memory holds inputs and outputs.
#[derive(Clone, Copy, Debug)]
pub enum PortMemory<'a> {
    /// They are buffers like all others.
    Segments,
    /// The caller of this rank passes memory for each run, where no other rank accesses it, and with it what nothing keeps from run to run.
    Caller {
        /// This rank. The same is assumed of other ranks, whose memory nothing here depends on.
        rank: usize,
        /// The inputs, by name, whose values the caller does not need after the run.
        donated: &'a [String],
        /// What instructions of this rank need besides their operands, while they run.
        workspaces: &'a [Workspace],
    },
}

impl<'a> PortMemory<'a> {
    /// Returns the workspaces of the instructions of a rank.
    fn workspaces(self, of: usize) -> &'a [Workspace] {
        match self {
            PortMemory::Caller { rank, workspaces, .. } if rank == of => workspaces,
            PortMemory::Caller { .. } | PortMemory::Segments => &[],
        }
    }
}

/// Memory that an instruction needs while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// Index in `Plan::code`.
    pub inst: usize,
    /// Length in bytes.
    pub bytes: usize,
}

/// Start of the addresses that stand for memory of the caller. No allocation has such an address, and no other parameter of
/// a kernel has such a value: as a 64-bit float it would be a signalling NaN.
pub(super) const CALLER_BASE: u64 = 0x7ff4 << 48;

/// Start of the addresses that stand for what a run needs besides: the private segment, workspaces and scratch memory, which the caller
/// passes, too.
pub(super) const TEMPORARY_BASE: u64 = 0x7ff6 << 48;

/// Start of the addresses that stand for shared memory of rank 0. That of each next rank is `SHARED_DISTANCE` bytes behind it.
pub(super) const SHARED_BASE: u64 = 0x7ff7 << 48;

/// Maximum size of a shared segment in bytes, so that no GPU has as much memory.
pub(super) const SHARED_DISTANCE: u64 = 1 << 38;

/// Start of the addresses of buffers that kernels keep in registers, which no command has.
pub(super) const REGISTER_BASE: u64 = 0x7ff5 << 48;

/// Where a buffer is, and from where its offset counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// Memory that other ranks do not access.
    Private,
    /// Memory that other ranks map.
    Symmetric,
    /// Memory that other ranks map and that the programs of a process use in turn, from `SHARED_BASE`.
    Shared,
    /// Memory of the caller, from `CALLER_BASE`.
    Caller,
    /// A part of the caller's memory for another buffer, which does not need it meanwhile; from `CALLER_BASE`.
    Lent,
    /// No memory, because kernels keep its elements in registers; from `REGISTER_BASE`.
    Registers,
}

impl Segment {
    /// Returns whether other ranks map it.
    pub fn is_mapped(self) -> bool {
        match self {
            Self::Symmetric | Self::Shared => true,
            Self::Private | Self::Caller | Self::Lent | Self::Registers => false,
        }
    }
}

/// The memory of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSlice {
    /// Where it is.
    pub segment: Segment,
    /// Byte offset from the start of the segment.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
    /// Whether it holds packets (`kernels::packets`), which take more bytes than their data. Stray data could
    /// look like a packet, so such a buffer has memory of its own.
    pub holds_packets: bool,
}

/// The memory of one rank's buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankAssignment {
    /// Indexed by buffer.
    pub buffers: Vec<BufferSlice>,
    /// Workspaces of instructions, by index in `Plan::code`.
    pub workspaces: Vec<(usize, BufferSlice)>,
    /// Size of the private segment in bytes.
    pub private_bytes: usize,
    /// Size of both segments in bytes if no memory were reused.
    pub bytes_without_reuse: usize,
}

impl RankAssignment {
    /// Returns, for each buffer of the rank's plan, whether others read or write it: ranks, or the caller of the program.
    pub fn escapes(&self, plan: &Plan) -> Vec<bool> {
        let mut escapes: Vec<bool> = self.buffers.iter().map(|it| it.segment.is_mapped()).collect();
        plan.caller_buffers().for_each(|it| escapes[it as usize] = true);
        // Where a loop ends early, what would write the elements again is not executed.
        if !plan.exits.is_empty() {
            escapes.fill(true);
        }
        escapes
    }
}

/// The memory of the buffers and signals of all ranks.
#[derive(Clone, Debug)]
pub struct BufferAssignment {
    /// Indexed by rank.
    pub ranks: Vec<RankAssignment>,
    /// Size of every symmetric segment in bytes.
    pub symmetric_bytes: usize,
    /// Size of every shared segment in bytes.
    pub shared_bytes: usize,
    /// Number of bytes at the start of a symmetric segment that hold signals.
    pub signal_bytes: usize,
    signals: SignalOffsets,
    /// The pairs of a rank and a peer whose memory or signals it accesses.
    accessed_peers: FxHashSet<(usize, usize)>,
}

impl BufferAssignment {
    /// Assigns memory to the buffers and signals of all ranks.
    ///
    /// # Errors
    /// Returns the rank and the buffer if the size overflows or if the element type has no size.
    pub fn of(world: &World) -> Result<Self, (usize, BufferNo)> {
        Self::with_ports(world, PortMemory::Segments, &[])
    }

    /// Assigns memory to the buffers and signals of all ranks, where inputs and outputs may be memory of the caller, and other buffers, by rank,
    /// are in registers.
    ///
    /// # Errors
    /// As for `of`.
    pub fn with_ports(
        world: &World,
        ports: PortMemory,
        registers: &[FxHashSet<BufferNo>],
    ) -> Result<Self, (usize, BufferNo)> {
        Self::with_lifetimes(world, ports, registers, lifetimes(world, |rank| ports.workspaces(rank)))
    }

    /// As `of`, with memory of its own for each buffer, so that time and memory are proportional to the size of the plans.
    ///
    /// # Errors
    /// As for `of`.
    pub fn without_reuse(world: &World) -> Result<Self, (usize, BufferNo)> {
        Self::with_lifetimes(world, PortMemory::Segments, &[], unordered_lifetimes(world))
    }

    fn with_lifetimes(
        world: &World,
        ports: PortMemory,
        registers: &[FxHashSet<BufferNo>],
        mut lifetimes: Vec<Vec<Lifetime>>,
    ) -> Result<Self, (usize, BufferNo)> {
        let mut shared: Vec<Vec<bool>> = world.iter().map(|it| vec![false; it.buffers.len()]).collect();
        let mut signals = SignalOffsets::new(world);
        let mut accessed_peers = FxHashSet::default();
        for plan in world.plans() {
            for inst in &plan.code {
                for it in inst.kind.accesses(plan.rank) {
                    if it.rank != plan.rank {
                        accessed_peers.insert((plan.rank, it.rank));
                        let flags = shared.get_mut(it.rank);
                        if let Some(it) = flags.and_then(|flags| flags.get_mut(it.view.buffer as usize)) {
                            *it = true;
                        }
                    }
                }
                let (InstKind::Signal { signal } | InstKind::WaitSignal { signal }) = &inst.kind else {
                    continue;
                };
                if signal.from != signal.to {
                    accessed_peers.insert((signal.from, signal.to));
                }
                signals.add(signal);
            }
        }
        let signal_bytes = signals.bytes().next_multiple_of(ALIGNMENT);
        let mut ranks = Vec::with_capacity(world.len());
        let packets = packet_buffers(world);
        for (plan, shared) in world.iter().zip(&shared) {
            let mut slices = Vec::with_capacity(plan.buffers.len());
            for (number, (buffer, symmetric)) in plan.buffers.iter().zip(shared).enumerate() {
                let error = (plan.rank, number as BufferNo);
                let size = Some(buffer.dtype.size()).filter(|it| *it > 0).ok_or(error)?;
                let holds_packets = packets.contains(&(plan.rank, number as BufferNo));
                let size = if holds_packets { size * PACKET_EXPANSION } else { size };
                let bytes = buffer.len.checked_mul(size).ok_or(error)?;
                let segment = if *symmetric { Segment::Symmetric } else { Segment::Private };
                slices.push(BufferSlice { segment, offset: 0, bytes, holds_packets });
            }
            if matches!(ports, PortMemory::Caller { .. }) {
                assign_callers_memory(world, plan, &mut slices);
            }
            if let Some(registers) = registers.get(plan.rank) {
                assign_registers(registers, &mut slices);
            }
            let workspace = |it: &Workspace| BufferSlice {
                segment: Segment::Private,
                offset: 0,
                bytes: it.bytes,
                holds_packets: false,
            };
            slices.extend(ports.workspaces(plan.rank).iter().map(workspace));
            ranks.push(RankAssignment { buffers: slices, ..RankAssignment::default() });
        }
        for (rank, slices) in ranks.iter_mut().enumerate() {
            for (slice, lifetime) in slices.buffers.iter_mut().zip(&mut lifetimes[rank]) {
                lifetime.needs_own_memory |= slice.holds_packets;
                // What the caller passes is copied there in each run.
                let is_kept = slice.holds_packets || lifetime.needs_own_memory && !lifetime.is_callers;
                if slice.segment == Segment::Symmetric
                    && matches!(ports, PortMemory::Caller { .. })
                    && !is_kept
                {
                    slice.segment = Segment::Shared;
                }
            }
        }
        let symmetric = assign_mapped(&mut ranks, (Segment::Symmetric, signal_bytes), &lifetimes)?;
        let shared = assign_mapped(&mut ranks, (Segment::Shared, 0), &lifetimes)?;
        let without_reuse = symmetric.end_without_reuse.saturating_add(shared.end_without_reuse);
        for rank in 0..ranks.len() {
            let lent = lent_memory(&world[rank], &ranks[rank].buffers, &lifetimes[rank], ports);
            let segment = assign_segment(&mut ranks, &[rank], (Segment::Private, 0), &lifetimes, &lent)?;
            let it = &mut ranks[rank];
            (it.private_bytes, it.bytes_without_reuse) =
                (segment.end, without_reuse.saturating_add(segment.end_without_reuse));
            let slices = it.buffers.split_off(world[rank].buffers.len());
            let places = ports.workspaces(rank).iter().map(|it| it.inst);
            it.workspaces = places.zip(slices).collect();
        }
        let (symmetric_bytes, shared_bytes) = (symmetric.end, shared.end);
        Ok(Self { ranks, symmetric_bytes, shared_bytes, signal_bytes, signals, accessed_peers })
    }

    /// Returns true if some rank accesses memory or signals of another one.
    pub fn shares_memory(&self) -> bool {
        !self.accessed_peers.is_empty()
    }

    /// Returns true if one of two ranks accesses memory or signals of the other one.
    pub fn share_memory(&self, rank: usize, peer: usize) -> bool {
        [(rank, peer), (peer, rank)].iter().any(|it| self.accessed_peers.contains(it))
    }

    /// Returns whether a buffer of a rank holds packets.
    pub fn holds_packets(&self, rank: usize, buffer: BufferNo) -> bool {
        self.ranks.get(rank).and_then(|it| it.buffers.get(buffer as usize)).is_some_and(|it| it.holds_packets)
    }

    /// Returns the words of a signal in the symmetric segment of the rank `to`.
    pub(super) fn signal(&self, signal: &SignalId) -> Option<SignalSlice> {
        self.signals.get(signal)
    }

    /// Returns the byte offset, in the symmetric segment of another rank, of the signal that rank `from`
    /// writes there at the barrier between runs.
    pub fn barrier_signal_offset(&self, from: usize) -> usize {
        signals::barrier_offset(from)
    }

    /// Formats the assignment of one rank: a line for each buffer, then the totals.
    pub fn describe(&self, plan: &Plan) -> Vec<String> {
        let Some(rank) = self.ranks.get(plan.rank) else { return Vec::new() };
        let mut lines = vec![format!("{:<10} {:<12} {:>14} {:>14}", "buffer", "segment", "offset", "bytes")];
        for (slice, buffer) in rank.buffers.iter().zip(&plan.buffers) {
            let segment = match slice.segment {
                Segment::Private => "private",
                Segment::Symmetric | Segment::Shared => "symmetric",
                Segment::Caller | Segment::Lent => "caller",
                Segment::Registers => "registers",
            };
            lines.push(format!("{:<10} {segment:<12} {:>14} {:>14}", buffer.name, slice.offset, slice.bytes));
        }
        lines.push(format!(
            "rank {}: {} bytes symmetric ({} of signals), {} private, peak {}, without reuse {}",
            plan.rank,
            self.symmetric_bytes,
            self.signal_bytes,
            rank.private_bytes,
            self.symmetric_bytes + rank.private_bytes,
            rank.bytes_without_reuse
        ));
        lines
    }
}

/// Returns the buffers into which packet kernels of other ranks write, with their ranks.
fn packet_buffers(plans: &[Plan]) -> FxHashSet<(usize, BufferNo)> {
    let mut found = FxHashSet::default();
    for plan in plans {
        for it in &plan.peer_collectives {
            let phases = match &it.phases {
                PeerPhases::Packets { phases, .. } => phases,
                PeerPhases::Memory(_) => continue,
            };
            let outputs = phases.iter().flat_map(|it| &it.transfers).flat_map(Transfer::outputs);
            found.extend(outputs.filter(|to| to.rank != plan.rank).map(|to| (to.rank, to.view.buffer)));
        }
    }
    found
}

/// Assigns offsets from `start` on to the buffers of a segment that other ranks map. It has the same size on all ranks, and ranks with the same
/// buffers use the same offset for each of them.
fn assign_mapped(
    ranks: &mut [RankAssignment],
    (which, start): (Segment, usize),
    lifetimes: &[Vec<Lifetime>],
) -> Result<SegmentEnds, (usize, BufferNo)> {
    let mut alike: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
    for (rank, it) in ranks.iter().enumerate() {
        let own = it.buffers.iter().filter(|it| it.segment == which);
        alike.entry(own.map(|it| it.bytes).collect()).or_default().push(rank);
    }
    let mut ends = SegmentEnds { end: start, end_without_reuse: start };
    for members in alike.values() {
        let found = assign_segment(ranks, members, (which, start), lifetimes, &[])?;
        ends.end = ends.end.max(found.end);
        ends.end_without_reuse = ends.end_without_reuse.max(found.end_without_reuse);
    }
    ends.end = ends.end.next_multiple_of(SEGMENT_GRANULARITY);
    ends.end_without_reuse = ends.end_without_reuse.next_multiple_of(SEGMENT_GRANULARITY);
    Ok(ends)
}

/// Assigns offsets from `start` on to the buffers of one segment. `members` are ranks with the same number of buffers of the
/// same sizes; all of them get the same offsets. Buffers may also use what the caller lends.
fn assign_segment(
    ranks: &mut [RankAssignment],
    members: &[usize],
    (which, start): (Segment, usize),
    lifetimes: &[Vec<Lifetime>],
    lent: &[LentMemory],
) -> Result<SegmentEnds, (usize, BufferNo)> {
    let numbers = |rank: &usize| -> Vec<usize> {
        let slices = ranks[*rank].buffers.iter().enumerate();
        slices.filter(|(_, it)| it.segment == which).map(|(number, _)| number).collect()
    };
    let numbers: Vec<Vec<usize>> = members.iter().map(numbers).collect();
    let live_buffer = |at: usize| LiveBuffer {
        bytes: ranks[members[0]].buffers[numbers[0][at]].bytes,
        lifetimes: members
            .iter()
            .zip(&numbers)
            .map(|(rank, numbers)| &lifetimes[*rank][numbers[at]])
            .collect(),
    };
    let count = numbers.first().map_or(0, Vec::len);
    let live_buffers: Vec<LiveBuffer> = (0..count).map(live_buffer).collect();
    let SegmentOffsets { offsets, ends } =
        assign_offsets(&live_buffers, start, lent).map_err(|at| (members[0], numbers[0][at] as BufferNo))?;
    for (rank, numbers) in members.iter().zip(&numbers) {
        for (number, offset) in numbers.iter().zip(&offsets) {
            let slice = &mut ranks[*rank].buffers[*number];
            (slice.segment, slice.offset) = match offset {
                Offset::Segment(it) => (which, *it),
                Offset::Lent(it) => (Segment::Lent, *it),
            };
        }
    }
    Ok(ends)
}

/// Marks the buffers of a rank that kernels keep in registers, and gives them distinct offsets.
fn assign_registers(registers: &FxHashSet<BufferNo>, slices: &mut [BufferSlice]) {
    let mut end = 0;
    for (_, slice) in (0..).zip(slices).filter(|(number, _)| registers.contains(number)) {
        (slice.segment, slice.offset) = (Segment::Registers, end);
        end += slice.bytes.next_multiple_of(ALIGNMENT);
    }
}

/// Marks the buffers of a rank whose memory the caller passes, and gives them distinct offsets.
fn assign_callers_memory(world: &World, plan: &Plan, slices: &mut [BufferSlice]) {
    let written = written_buffers(world, plan.rank);
    let number = |it: &IoBinding| it.shard.view.as_ref().map(|view| view.buffer as usize);
    let inputs: FxHashSet<usize> = plan.inputs.iter().filter_map(number).collect();
    let mut end = 0;
    for buffer in plan.inputs.iter().chain(&plan.outputs).filter_map(number) {
        let slice = &mut slices[buffer];
        // The caller's inputs keep their values.
        let is_overwritten = inputs.contains(&buffer) && written[buffer];
        if slice.segment != Segment::Private || is_overwritten || slice.bytes == 0 {
            continue;
        }
        (slice.segment, slice.offset) = (Segment::Caller, end);
        // What the caller passes for two buffers does not adjoin.
        end += slice.bytes.next_multiple_of(ALIGNMENT) + ALIGNMENT;
    }
}

/// Returns the caller's memory that private buffers may use: that of outputs before they are written, and that of donated inputs after their
/// last use. Memory of which all uses are not known is not lent.
fn lent_memory<'a>(
    plan: &Plan,
    slices: &[BufferSlice],
    lifetimes: &'a [Lifetime],
    ports: PortMemory,
) -> Vec<LentMemory<'a>> {
    let PortMemory::Caller { rank, donated, .. } = ports else { return Vec::new() };
    if rank != plan.rank {
        return Vec::new();
    }
    let number = |it: &IoBinding| it.shard.view.as_ref().map(|view| view.buffer);
    let inputs: FxHashSet<BufferNo> = plan.inputs.iter().filter_map(number).collect();
    let outputs: FxHashSet<BufferNo> =
        plan.outputs.iter().filter_map(number).chain(plan.live_out.iter().copied()).collect();
    let given = plan.inputs.iter().filter(|it| donated.contains(&it.name)).filter_map(number);
    let given: FxHashSet<BufferNo> = given.filter(|it| !outputs.contains(it)).collect();
    let mut lent = Vec::new();
    for (at, (slice, lifetime)) in slices.iter().zip(lifetimes).enumerate() {
        let at = at as BufferNo;
        let is_input = given.contains(&at);
        let is_output = !inputs.contains(&at) && !lifetime.needs_own_memory;
        if slice.segment == Segment::Caller && lifetime.first_use.is_some() && (is_input || is_output) {
            let when = if is_input { LentWhen::AfterLastUse } else { LentWhen::BeforeFirstUse };
            lent.push(LentMemory { offset: slice.offset, bytes: slice.bytes, lifetime, when });
        }
    }
    lent
}

/// Returns, for each buffer of a rank, whether some rank writes to it while the program runs.
pub(super) fn written_buffers(plans: &[Plan], rank: usize) -> Vec<bool> {
    let mut flags = vec![false; plans.get(rank).map_or(0, |it| it.buffers.len())];
    for plan in plans {
        for inst in &plan.code {
            if let InstKind::Alloc { buffer, .. } = inst.kind
                && plan.rank == rank
            {
                flags[buffer as usize] = true;
            }
            for it in inst.kind.accesses(plan.rank).iter().filter(|it| it.is_write && it.rank == rank) {
                flags[it.view.buffer as usize] = true;
            }
        }
    }
    flags
}
