//! Which memory instructions read and write.

use super::{Arg, BufferNo, Collective, CommunicatorNo, Direction, InstKind, Transfer, View, WorkNo};

/// A view that an instruction reads or writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Access<'p> {
    /// The rank whose memory it is.
    pub rank: usize,
    /// The elements.
    pub view: &'p View,
    /// Whether they are written.
    pub written: bool,
}

/// What an instruction posts to a communicator's queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Communication<'p> {
    /// Of a whole team.
    Collective(&'p Collective),
    /// With single peers.
    Transfer(&'p Transfer),
}

impl Communication<'_> {
    /// Whose queue.
    pub fn communicator(self) -> CommunicatorNo {
        match self {
            Self::Collective(it) => it.communicator,
            Self::Transfer(it) => it.communicator,
        }
    }

    /// The work that `Wait` names.
    pub fn work(self) -> WorkNo {
        match self {
            Self::Collective(it) => it.work,
            Self::Transfer(it) => it.work,
        }
    }
}

impl InstKind {
    /// Whose buffers the instruction touches when `rank` executes it, and whether it writes to them. Storage that comes
    /// into being is touched where it becomes zero.
    pub fn touched(&self, rank: usize) -> Vec<(usize, BufferNo, bool)> {
        match self {
            Self::Alloc { buffer, zero: true } => vec![(rank, *buffer, true)],
            _ => self.accesses(rank).iter().map(|it| (it.rank, it.view.buffer, it.written)).collect(),
        }
    }

    /// What the instruction reads and writes when `rank` executes it.
    pub fn accesses(&self, rank: usize) -> Vec<Access<'_>> {
        let read = |view| Access { rank, view, written: false };
        let write = |view| Access { rank, view, written: true };
        match self {
            Self::Copy { from, to } => {
                let from = Access { rank: from.rank, ..read(&from.view) };
                vec![from, Access { rank: to.rank, ..write(&to.view) }]
            }
            Self::Fill { to, .. } | Self::Iota { to, .. } => vec![write(to)],
            Self::Gemm(it) => {
                let operands = [&it.a, &it.b].into_iter().chain(&it.bias);
                operands.map(read).chain([write(&it.out)]).collect()
            }
            Self::Map { args, out, .. } => {
                let views = args.iter().filter_map(|it| match it {
                    Arg::View(view) => Some(view),
                    Arg::Number(_) => None,
                });
                views.map(read).chain([write(out)]).collect()
            }
            Self::Reduce(it) => vec![read(&it.input), write(&it.out)],
            Self::Combine { parts, out, .. } => {
                let parts = parts.iter().map(|it| Access { rank: it.rank, ..read(&it.view) });
                parts.chain([write(out)]).collect()
            }
            Self::Collective(it) => it.input.iter().map(read).chain(it.output.iter().map(write)).collect(),
            Self::Transfer(it) => {
                let side = |direction, view| match direction {
                    Direction::Send => read(view),
                    Direction::Recv => write(view),
                };
                it.sides.iter().map(|it| side(it.direction, &it.view)).collect()
            }
            Self::Reshard(it) => {
                let operands = it.operands.iter().filter_map(|it| it.view.as_ref()).map(read);
                operands.chain(it.result.view.iter().map(write)).collect()
            }
            Self::Alloc { .. }
            | Self::Wait { .. }
            | Self::Signal { .. }
            | Self::Await { .. }
            | Self::Record { .. }
            | Self::Join { .. }
            | Self::Exchange { .. }
            | Self::Barrier
            | Self::Finish => Vec::new(),
        }
    }
}
