//! Slots: staging buffers into which the peers of a team write.
//!
//! A member has a slot for each member of the team. The collectives of a team whose instructions run one after
//! another on every rank, because they are posted on one stream or run on one queue, use two sets of slots in
//! turn; `push` shows why two are enough. Other collectives have slots of their own.

use grammar::DType;
use rustc_hash::FxHashMap;

use crate::{
    Backend, Buffer, BufferNo, BufferRole, CommunicatorNo, PacketFormat, Plan, StreamNo, sync::InstRef,
};

/// Slots begin at multiples of this number of elements. Twice as many bytes then hold the packets of a slot, in
/// both formats, and begin at a multiple of 128 bytes.
const SLOT_UNIT: usize = 64;

/// The slots of all members of a team for one step of a collective.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    /// By member: the buffer that holds its slots, in team order of the senders.
    pub buffers: Vec<BufferNo>,
    /// The number of elements from one slot to the next.
    pub len: usize,
}

/// What collectives that use the same slots have in common.
#[derive(Clone, PartialEq, Eq, Hash)]
struct SlotKey {
    team: u32,
    /// The data of one format could look like a flag of the other one.
    packets: Option<PacketFormat>,
    /// By member: where its instructions run.
    places: Vec<Place>,
    round: usize,
    dtype: DType,
    len: usize,
}

/// A sequence in which the instructions of a rank run one after another.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Stream(StreamNo),
    Queue(CommunicatorNo),
}

/// The slots of all teams.
#[derive(Default)]
pub(super) struct SlotPool {
    /// The two sets of a key, and the number of collectives that have used them.
    sets: FxHashMap<SlotKey, (usize, Vec<Slots>)>,
}

impl SlotPool {
    /// Returns the slots of a collective for one round. `parts` are the instructions that post it, by member;
    /// a slot has room for `len` elements.
    pub(super) fn slots(
        &mut self,
        plans: &mut [Plan],
        (team, backend, packets): (u32, Backend, Option<PacketFormat>),
        parts: &[InstRef],
        (round, len, dtype): (usize, usize, DType),
    ) -> Slots {
        let place = |at: &InstRef| {
            let inst = &plans[at.rank].code[at.inst];
            match (backend, inst.kind.communication()) {
                (Backend::Nccl | Backend::Ucc, Some(it)) => Place::Queue(it.communicator()),
                (Backend::Cuda, _) | (Backend::Nccl | Backend::Ucc, None) => Place::Stream(inst.stream),
            }
        };
        let len = len.max(1).next_multiple_of(SLOT_UNIT);
        let key = SlotKey { team, packets, places: parts.iter().map(place).collect(), round, dtype, len };
        let (uses, sets) = self.sets.entry(key).or_default();
        let turn = *uses % 2;
        *uses += 1;
        if sets.len() <= turn {
            let buffers = parts.iter().map(|at| add_buffer(&mut plans[at.rank], parts.len() * len, dtype));
            sets.push(Slots { buffers: buffers.collect(), len });
        }
        sets[turn].clone()
    }
}

fn add_buffer(plan: &mut Plan, len: usize, dtype: DType) -> BufferNo {
    plan.buffers.push(Buffer { role: BufferRole::Slots, ..Buffer::new("slots", dtype, len) });
    plan.buffers.len() as BufferNo - 1
}
