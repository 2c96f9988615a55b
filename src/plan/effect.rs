//! What an instruction does to the synchronisation of ranks, hosts and streams, and what kind of work it is. `access` says what it reads
//! and writes.

use super::{Communication, EventNo, Handle, InstKind, Reshard, Slot, WorkNo};

/// A kind of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkKind {
    /// None: it orders others, allocates, or posts what runs on a queue.
    Orders,
    /// It writes memory of one rank, without arithmetic.
    Moves,
    /// It moves data or signals between ranks.
    Communicates,
    /// It computes.
    Computes,
}

/// What kind of work an instruction is.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The kind.
    pub kind: WorkKind,
    /// What reports of times call it; `None`: nothing that takes time on a stream.
    pub word: Option<&'static str>,
    /// How many products or elements are summed into one element.
    pub summed: usize,
}

/// What an instruction does to the synchronisation.
#[derive(Clone, Copy, Debug)]
pub enum Effect<'p> {
    /// Blocks the host until each peer has published the matching handle.
    Share(&'p [Handle]),
    /// Blocks the host until the hosts of all ranks are at their barrier of the same number.
    Barrier,
    /// None: it only touches memory.
    Compute,
    /// Sets an event once the stream is here.
    Record(EventNo),
    /// Blocks the stream until an event is set.
    Join(EventNo),
    /// Blocks the stream until a posted communication is complete.
    Wait(WorkNo),
    /// Raises a flag once the stream is here.
    Signal(Slot),
    /// Blocks the stream until a flag is raised.
    Await(Slot),
    /// Posts on a communicator's queue; the stream goes on.
    Post(Communication<'p>),
    /// Blocks the stream until the whole team is here.
    Reshard(&'p Reshard),
    /// Reads the outputs.
    Finish,
}

/// Where an instruction completes.
#[derive(Clone, Copy, Debug)]
pub enum Runner<'p> {
    /// On the host, which blocks in it.
    Host,
    /// On the stream that it is issued to.
    Stream,
    /// On the queue of its communicator, once the stream has posted it.
    Queue(Communication<'p>),
}

impl<'p> Effect<'p> {
    /// Where the instruction completes.
    pub fn runner(self) -> Runner<'p> {
        match self {
            Self::Share(_) | Self::Barrier => Runner::Host,
            Self::Post(it) => Runner::Queue(it),
            Self::Compute
            | Self::Record(_)
            | Self::Join(_)
            | Self::Wait(_)
            | Self::Signal(_)
            | Self::Await(_)
            | Self::Reshard(_)
            | Self::Finish => Runner::Stream,
        }
    }

    /// Whether the host executes the instruction, and no stream.
    pub fn is_on_host(self) -> bool {
        matches!(self.runner(), Runner::Host)
    }
}

impl InstKind {
    /// What the instruction does to the synchronisation.
    pub fn effect(&self) -> Effect<'_> {
        match self {
            Self::Alloc { .. }
            | Self::Copy { .. }
            | Self::Fill { .. }
            | Self::Iota { .. }
            | Self::Gemm(_)
            | Self::Map { .. }
            | Self::Reduce(_)
            | Self::Combine { .. } => Effect::Compute,
            Self::Collective(it) => Effect::Post(Communication::Collective(it)),
            Self::Transfer(it) => Effect::Post(Communication::Transfer(it)),
            Self::Wait { work } => Effect::Wait(*work),
            Self::Signal { slot } => Effect::Signal(*slot),
            Self::Await { slot } => Effect::Await(*slot),
            Self::Record { event } => Effect::Record(*event),
            Self::Join { event } => Effect::Join(*event),
            Self::Exchange { handles } => Effect::Share(handles),
            Self::Barrier => Effect::Barrier,
            Self::Reshard(it) => Effect::Reshard(it),
            Self::Finish => Effect::Finish,
        }
    }

    /// What kind of work the instruction is.
    pub fn work(&self) -> Work {
        let work = |kind, word| Work { kind, word: Some(word), summed: 1 };
        match self {
            Self::Copy { .. } => work(WorkKind::Moves, "copy"),
            Self::Fill { .. } => work(WorkKind::Moves, "fill"),
            Self::Iota { .. } => work(WorkKind::Moves, "iota"),
            Self::Alloc { zero: true, .. } => work(WorkKind::Moves, "zero"),
            Self::Gemm(it) => {
                Work { summed: it.a.shape.last().copied().unwrap_or(1), ..work(WorkKind::Computes, "gemm") }
            }
            Self::Map { op, .. } => work(WorkKind::Computes, op.name()),
            Self::Reduce(it) => {
                let summed = it.axes.iter().map(|axis| it.input.shape[*axis]).product();
                Work { summed, ..work(WorkKind::Computes, "reduce") }
            }
            Self::Combine { parts, .. } => {
                Work { summed: parts.len(), ..work(WorkKind::Communicates, "combine") }
            }
            Self::Signal { .. } => work(WorkKind::Communicates, "signal"),
            Self::Await { .. } => work(WorkKind::Communicates, "await"),
            Self::Collective(it) => work(WorkKind::Orders, it.kind.word()),
            Self::Transfer(_) => work(WorkKind::Orders, "transfer"),
            Self::Alloc { zero: false, .. }
            | Self::Wait { .. }
            | Self::Record { .. }
            | Self::Join { .. }
            | Self::Exchange { .. }
            | Self::Barrier
            | Self::Reshard(_)
            | Self::Finish => Work { kind: WorkKind::Orders, word: None, summed: 1 },
        }
    }

    /// The communication that the instruction posts.
    pub fn communication(&self) -> Option<Communication<'_>> {
        if let Runner::Queue(it) = self.effect().runner() { Some(it) } else { None }
    }
}
