//! The buffers and views that an instruction reads and writes.

use super::{Arg, BufferNo, Collective, CommunicatorNo, Direction, InstKind, P2pGroup, View, WorkNo};

/// A read or write of a view by an instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Access<'p> {
    /// The rank that owns the memory.
    pub rank: usize,
    /// The accessed elements.
    pub view: &'p View,
    /// True if the elements are written, false if they are read.
    pub is_write: bool,
}

/// A communication that an instruction posts to the queue of a communicator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Communication<'p> {
    /// A collective of a whole team.
    Collective(&'p Collective),
    /// Sends and receives with single peers.
    P2pGroup(&'p P2pGroup),
}

impl Communication<'_> {
    /// Returns the communicator that the communication is posted to.
    pub fn communicator(self) -> CommunicatorNo {
        match self {
            Self::Collective(it) => it.communicator,
            Self::P2pGroup(it) => it.communicator,
        }
    }

    /// Returns the work number that `Wait` refers to.
    pub fn work(self) -> WorkNo {
        match self {
            Self::Collective(it) => it.work,
            Self::P2pGroup(it) => it.work,
        }
    }
}

impl InstKind {
    /// Returns the buffers that the instruction accesses when `rank` executes it, as (owning rank, buffer, is
    /// written).
    pub fn touched_buffers(&self, rank: usize) -> Vec<(usize, BufferNo, bool)> {
        self.accesses(rank).iter().map(|it| (it.rank, it.view.buffer, it.is_write)).collect()
    }

    /// Returns the reads and writes of the instruction when `rank` executes it.
    pub fn accesses(&self, rank: usize) -> Vec<Access<'_>> {
        let mut all = Vec::new();
        self.visit_accesses(rank, &mut |it| all.push(it));
        all
    }

    /// Calls `visit` for each read and write of the instruction when `rank` executes it: reads before writes,
    /// except for the sends and receives of a P2P group, which are in their order.
    pub fn visit_accesses<'p>(&'p self, rank: usize, visit: &mut impl FnMut(Access<'p>)) {
        let read = |view| Access { rank, view, is_write: false };
        let write = |view| Access { rank, view, is_write: true };
        match self {
            Self::Copy { from, to } => {
                visit(Access { rank: from.rank, ..read(&from.view) });
                visit(Access { rank: to.rank, ..write(&to.view) });
            }
            Self::Fill { to, .. } | Self::Iota { to, .. } | Self::Constant { to, .. } => visit(write(to)),
            crate::computation_insts!() => self.computation().into_iter().for_each(|it| {
                it.visit_views(&mut |view, is_write| visit(Access { rank, view, is_write }));
            }),
            Self::Map { args, out, .. } => {
                for it in args {
                    if let Arg::View(view) = it {
                        visit(read(view));
                    }
                }
                visit(write(out));
            }
            Self::PeerReduce { parts, out, .. } => {
                parts.iter().for_each(|it| visit(Access { rank: it.rank, ..read(&it.view) }));
                visit(write(out));
            }
            Self::Collective(it) => {
                it.input.iter().for_each(|it| visit(read(it)));
                it.output.iter().for_each(|it| visit(write(it)));
            }
            Self::P2pGroup(it) => it.ops.iter().for_each(|it| {
                visit(match it.direction {
                    Direction::Send => read(&it.view),
                    Direction::Recv => write(&it.view),
                });
            }),
            Self::Reshard(it) => {
                it.operands.iter().filter_map(|it| it.view.as_ref()).for_each(|it| visit(read(it)));
                it.result.view.iter().for_each(|it| visit(write(it)));
            }
            Self::Alloc { zeroed, .. } => zeroed.iter().for_each(|it| visit(write(it))),
            crate::ordering_insts!() => (),
        }
    }

    /// Calls `change` for each view of the instruction when `rank` executes it, with the rank that owns the memory. The views of the
    /// body of a resharding operator are not visited: they are of its own buffers.
    pub fn change_views(&mut self, rank: usize, mut change: impl FnMut(usize, &mut View)) {
        let mut own = |view: &mut View| change(rank, view);
        match self {
            Self::Copy { from, to } => [from, to].into_iter().for_each(|it| change(it.rank, &mut it.view)),
            Self::Fill { to, .. } | Self::Iota { to, .. } | Self::Constant { to, .. } => own(to),
            crate::computation_insts!() => {
                self.computation_mut().into_iter().for_each(|it| it.change_views(&mut own));
            }
            Self::Map { args, out, .. } => {
                for it in args {
                    if let Arg::View(view) = it {
                        own(view);
                    }
                }
                own(out);
            }
            Self::PeerReduce { parts, out, .. } => {
                own(out);
                parts.iter_mut().for_each(|it| change(it.rank, &mut it.view));
            }
            Self::Collective(it) => it.input.iter_mut().chain(&mut it.output).for_each(own),
            Self::P2pGroup(it) => it.ops.iter_mut().for_each(|it| own(&mut it.view)),
            Self::Reshard(it) => {
                it.operands
                    .iter_mut()
                    .chain([&mut it.result])
                    .filter_map(|it| it.view.as_mut())
                    .for_each(own);
            }
            Self::Alloc { zeroed, .. } => zeroed.iter_mut().for_each(|it| own(it)),
            crate::ordering_insts!() => (),
        }
    }
}
