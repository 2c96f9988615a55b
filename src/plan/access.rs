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
    pub is_write: bool,
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
    pub fn touched_buffers(&self, rank: usize) -> Vec<(usize, BufferNo, bool)> {
        match self {
            Self::Alloc { buffer, zero: true } => vec![(rank, *buffer, true)],
            _ => self.accesses(rank).iter().map(|it| (it.rank, it.view.buffer, it.is_write)).collect(),
        }
    }

    /// What the instruction reads and writes when `rank` executes it.
    pub fn accesses(&self, rank: usize) -> Vec<Access<'_>> {
        let mut all = Vec::new();
        self.visit_accesses(rank, &mut |it| all.push(it));
        all
    }

    /// Visits what the instruction reads and writes when `rank` executes it: operands first.
    pub fn visit_accesses<'p>(&'p self, rank: usize, visit: &mut impl FnMut(Access<'p>)) {
        let read = |view| Access { rank, view, is_write: false };
        let write = |view| Access { rank, view, is_write: true };
        match self {
            Self::Copy { from, to } => {
                visit(Access { rank: from.rank, ..read(&from.view) });
                visit(Access { rank: to.rank, ..write(&to.view) });
            }
            Self::Fill { to, .. } | Self::Iota { to, .. } => visit(write(to)),
            Self::Gemm(it) => {
                [&it.a, &it.b].into_iter().chain(&it.bias).for_each(|it| visit(read(it)));
                visit(write(&it.out));
            }
            Self::Map { args, out, .. } => {
                for it in args {
                    if let Arg::View(view) = it {
                        visit(read(view));
                    }
                }
                visit(write(out));
            }
            Self::Reduce(it) => {
                visit(read(&it.input));
                visit(write(&it.out));
            }
            Self::PeerReduce { parts, out, .. } => {
                parts.iter().for_each(|it| visit(Access { rank: it.rank, ..read(&it.view) }));
                visit(write(out));
            }
            Self::Collective(it) => {
                it.input.iter().for_each(|it| visit(read(it)));
                it.output.iter().for_each(|it| visit(write(it)));
            }
            Self::Transfer(it) => it.ops.iter().for_each(|it| {
                visit(match it.direction {
                    Direction::Send => read(&it.view),
                    Direction::Recv => write(&it.view),
                });
            }),
            Self::Reshard(it) => {
                it.operands.iter().filter_map(|it| it.view.as_ref()).for_each(|it| visit(read(it)));
                it.result.view.iter().for_each(|it| visit(write(it)));
            }
            Self::Alloc { .. }
            | Self::Wait { .. }
            | Self::Signal { .. }
            | Self::WaitSignal { .. }
            | Self::RecordEvent { .. }
            | Self::WaitEvent { .. }
            | Self::ShareMemHandles { .. }
            | Self::Barrier
            | Self::ReadOutputs => (),
        }
    }
}
