//! The works of a program: what they access and compute, and what a kernel of NCCL does on a rank.

use super::program::{Kind, Place, Program, Role, Shape, Side};

/// The rules that options select.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Sends and receives that are in no group have a communicator for each pair, and communicators are created when they are first used.
    pub pairs: bool,
    /// NCCL connects ranks where it first needs that.
    pub connects: bool,
}

/// A part of a buffer: its rank, its tensor, how often the rank has allocated that before, and its row.
pub type Cell = [usize; 4];

/// The statement that does something, as a rank executes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct By {
    pub rank: usize,
    pub place: Place,
    pub index: usize,
    pub stream: usize,
    /// The number of statements that the rank has executed before.
    pub at: usize,
    /// The number of the communication.
    pub number: Option<usize>,
    /// The kernel of the rank.
    pub kernel: Option<usize>,
    pub run: usize,
}

/// A read or write, from the beginning of a work to the end of one.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub begin: usize,
    pub end: usize,
    pub cell: Cell,
    pub writes: bool,
    pub by: By,
}

/// What a work computes: the cells that it writes, from those that it reads.
#[derive(Debug)]
pub struct Flow {
    pub work: usize,
    pub out: Vec<Cell>,
    /// With the works that read them.
    pub from: Vec<(usize, Cell)>,
    /// The text does not contain how.
    pub is_opaque: bool,
}

/// Storage that a rank allocates.
#[derive(Debug)]
pub struct Buffer {
    pub stream: usize,
    pub at: usize,
    pub freed: Option<usize>,
    /// What the host has waited for then.
    pub host: Option<usize>,
    /// What the stream computes before.
    pub works: Vec<usize>,
    pub role: Role,
    /// A handle keeps it.
    pub is_kept: bool,
    /// The work of the stream that allocates and that frees it, if streams do.
    pub works_of_stream: [Option<usize>; 2],
}

/// A communicator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Comm {
    Team(Vec<usize>),
    /// Of the sends and receives of two ranks that are in no group; of their team if that has not all ranks.
    Pair([usize; 2], bool),
}

impl Comm {
    pub fn members(&self) -> Vec<usize> {
        match self {
            Self::Team(it) => it.clone(),
            Self::Pair(it, _) => it.to_vec(),
        }
    }

    /// Returns the ranks of its process group.
    pub fn process_group(&self, ranks: usize) -> Vec<usize> {
        match self {
            Self::Pair(_, false) => (0..ranks).collect(),
            Self::Team(_) | Self::Pair(_, true) => {
                let mut all = self.members();
                all.sort_unstable();
                all
            }
        }
    }
}

/// What a kernel of NCCL does on a rank.
#[derive(Clone, Debug)]
pub enum Op {
    Collective {
        kind: Kind,
        root: usize,
        input: Vec<Cell>,
        output: Vec<Cell>,
    },
    Send {
        peer: usize,
        cells: Vec<Cell>,
    },
    Receive {
        peer: usize,
        cells: Vec<Cell>,
    },
    /// The gather of a view.
    View,
}

#[derive(Clone, Debug)]
pub struct Kernel {
    pub comm: Comm,
    pub begin: usize,
    pub end: usize,
    pub ops: Vec<Op>,
    /// The kind of its statement: sides of different kinds are not meant to meet.
    pub is_communication: bool,
    /// The number of the communication.
    pub number: usize,
    /// The number of statements before it, and before its Wait.
    pub at: usize,
    pub awaited: Option<usize>,
}

/// A side of a transfer over peer memory, where a rank posts it.
#[derive(Clone, Debug)]
pub struct Transfer {
    pub key: (usize, usize, usize),
    pub puts: bool,
    /// The place of its handle among those of the two ranks.
    pub handle: Option<usize>,
    pub cells: Vec<Cell>,
    /// The stream arrives.
    pub reached: usize,
    /// The copy has ended, as the rank knows it.
    pub copied: usize,
    pub by: By,
}

/// A place where hosts meet: before and behind it.
pub type Meeting = [usize; 2];

pub type Exchange = ([usize; 4], Option<Vec<(usize, usize, bool)>>);

pub fn op_of(side: &Side, peer: usize, cells: Vec<Cell>) -> Op {
    if side.sends { Op::Send { peer, cells } } else { Op::Receive { peer, cells } }
}

/// Returns the cells of a buffer.
pub fn cells(program: &Program, [rank, tensor, instance]: [usize; 3]) -> Vec<Cell> {
    let rows = if program.tensors[tensor].0 == Shape::Wide { program.ranks } else { 1 };
    (0..rows).map(|row| [rank, tensor, instance, row]).collect()
}

/// Returns the cells that an operation reads, and those that it writes.
pub fn accesses(op: &Op, rank: usize, comm: &Comm) -> (Vec<Cell>, Vec<Cell>) {
    match op {
        Op::Send { cells, .. } => (cells.clone(), Vec::new()),
        Op::Receive { cells, .. } => (Vec::new(), cells.clone()),
        Op::View => (Vec::new(), Vec::new()),
        Op::Collective { kind, root, input, output } => {
            let is_root = comm.members().get(*root) == Some(&rank);
            let reads = is_root || !matches!(kind, Kind::Broadcast | Kind::Scatter);
            let writes = kind.receives(is_root);
            let of = |has: bool, it: &Vec<Cell>| if has { it.clone() } else { Vec::new() };
            (of(reads, input), of(writes, output))
        }
    }
}

/// Returns whether two operations of one kernel access the same memory. Messages of one peer arrive in order.
pub fn conflict(one: &Op, other: &Op) -> bool {
    let share = |one: &[Cell], other: &[Cell]| one.iter().any(|it| other.contains(it));
    match (one, other) {
        (Op::Receive { peer, cells }, Op::Receive { peer: of, cells: with }) => {
            peer != of && share(cells, with)
        }
        (Op::Receive { cells, .. }, Op::Send { cells: with, .. })
        | (Op::Send { cells, .. }, Op::Receive { cells: with, .. }) => share(cells, with),
        _ => false,
    }
}

/// Returns whether the output of a collective does not overlap its input, or is in place as NCCL documents it.
pub fn is_in_place(op: &Op, rank: usize, comm: &Comm) -> bool {
    let Op::Collective { kind, input, output, .. } = op else { return true };
    let (read, written) = accesses(op, rank, comm);
    let own = comm.members().iter().position(|it| *it == rank).unwrap_or_default();
    let is_of_rank = |part: &[Cell], all: &[Cell]| all.get(own) == part.first();
    !written.iter().any(|it| read.contains(it))
        || match kind {
            Kind::Allreduce | Kind::Broadcast | Kind::Reduce => input == output,
            Kind::Allgather | Kind::Gather => is_of_rank(input, output),
            Kind::ReduceScatter | Kind::Scatter => is_of_rank(output, input),
            _ => false,
        }
}
