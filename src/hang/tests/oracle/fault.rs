//! One fault of one rank.

use super::{
    device::Broken,
    program::{Call, Kind, Program, Step},
    rng::Rng,
};

/// The kinds of faults.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Fault {
    /// None: a snapshot of a job that runs, or of one that has ended.
    Healthy,
    Skip,
    OneMore,
    OtherOrder,
    OtherSize,
    OtherType,
    OtherGroup,
    StuckHost,
    StuckKernel,
    /// All members have started a call, and the network does not move it.
    StuckNetwork,
    Killed,
    /// A batch lacks one of its messages.
    BatchWithoutPartner,
    /// The host is stuck, and the dumps are written after the others have aborted their communicators.
    Abort,
}

/// All kinds.
pub const FAULTS: [Fault; 13] = [
    Fault::Healthy,
    Fault::Skip,
    Fault::OneMore,
    Fault::OtherOrder,
    Fault::OtherSize,
    Fault::OtherType,
    Fault::OtherGroup,
    Fault::StuckHost,
    Fault::StuckKernel,
    Fault::StuckNetwork,
    Fault::Killed,
    Fault::BatchWithoutPartner,
    Fault::Abort,
];

impl Fault {
    /// Whether the calls of the rank that are made contradict those of the others. Otherwise the records are also those of a job in which this
    /// rank, its device or the network is slow.
    pub fn contradicts(self) -> bool {
        match self {
            Self::Skip
            | Self::OneMore
            | Self::OtherOrder
            | Self::OtherSize
            | Self::OtherType
            | Self::OtherGroup
            | Self::BatchWithoutPartner => true,
            Self::Healthy
            | Self::StuckHost
            | Self::StuckKernel
            | Self::StuckNetwork
            | Self::Killed
            | Self::Abort => false,
        }
    }
}

/// A job with a fault.
#[derive(Clone)]
pub struct Faulty {
    pub fault: Fault,
    pub rank: usize,
    /// The position among the steps of the rank.
    pub at: usize,
    /// What selected the variant.
    pub choice: u64,
    pub program: Program,
    pub broken: Broken,
    /// The rank without a dump.
    pub killed: Option<usize>,
}

/// Makes a fault at a step; `None` if this kind cannot be there. `choice` selects among variants.
pub fn plant(program: &Program, fault: Fault, rank: usize, at: usize, choice: u64) -> Option<Faulty> {
    let mut made =
        Faulty { fault, rank, at, choice, program: program.clone(), broken: Broken::default(), killed: None };
    let position = program.calls(rank).take_while(|it| it.0 < at).count();
    match fault {
        Fault::Healthy => {}
        Fault::StuckHost | Fault::Abort => made.program.ranks[rank].truncate(at),
        Fault::Killed => {
            made.program.ranks[rank].truncate(at);
            made.killed = Some(rank);
        }
        Fault::StuckKernel => made.broken.kernel = Some((rank, position)),
        Fault::StuckNetwork => made.broken.network = Some((rank, position)),
        _ => edit(&program.groups, &mut made.program.ranks[rank], rank, fault, at, choice)?,
    }
    Some(made)
}

/// Edits the calls of a rank.
pub fn edit(
    groups: &[super::program::Group],
    steps: &mut Vec<Step>,
    rank: usize,
    fault: Fault,
    at: usize,
    choice: u64,
) -> Option<()> {
    let Step::Call(call) = steps.get(at)?.clone() else { return None };
    let mut changed = call.clone();
    // `ProcessGroupNCCL::barrier` makes its tensor itself, of one float.
    if matches!(call.kind, Kind::Barrier) && matches!(fault, Fault::OtherSize | Fault::OtherType) {
        return None;
    }
    match fault {
        Fault::Skip => {
            steps.remove(at);
            return Some(());
        }
        Fault::OneMore => {
            // At its own line, as a branch that others do not take, or at the same, as one round too many.
            if choice.is_multiple_of(2) {
                changed.line += 200;
            }
            steps.insert(at, Step::Call(changed));
            return Some(());
        }
        Fault::OtherOrder => {
            let other = (at + 1..steps.len().min(at + 4))
                .find(|it| matches!(&steps[*it], Step::Call(other) if differ(&call, other)))?;
            steps.swap(at, other);
            return Some(());
        }
        Fault::OtherSize => {
            changed.size = if choice.is_multiple_of(2) { call.size * 2 } else { call.size + 32 }
        }
        Fault::OtherType => changed.dtype = if call.dtype.1 == 4 { ("Half", 2) } else { ("Float", 4) },
        Fault::OtherGroup => {
            if matches!(call.kind, Kind::Message(_) | Kind::Batch(_) | Kind::Broadcast(_) | Kind::Reduce(_)) {
                return None;
            }
            let others: Vec<usize> = (0..groups.len())
                .filter(|&it| it != call.group && groups[it].ranks.contains(&rank))
                .collect();
            changed.group = *others.get((choice as usize).checked_rem(others.len())?)?;
        }
        Fault::BatchWithoutPartner => match &mut changed.kind {
            Kind::Batch(messages) if messages.len() > 1 => {
                messages.remove((choice as usize) % messages.len());
            }
            Kind::Batch(_) => {
                steps.remove(at);
                return Some(());
            }
            _ => return None,
        },
        _ => return None,
    }
    steps[at] = Step::Call(changed);
    Some(())
}

/// Whether the order of two calls matters.
fn differ(a: &Call, b: &Call) -> bool {
    !a.is_async && (a.group, &a.kind, a.size, a.line) != (b.group, &b.kind, b.size, b.line)
}

/// Makes a fault of a kind at a random place; most are behind two rounds of the program.
pub fn plant_somewhere(program: &Program, fault: Fault, rng: &mut Rng) -> Option<Faulty> {
    let rank = rng.below(program.ranks.len());
    let first = rng.pick(&[0, 2, 2, 2, 2, 2, 2]);
    let places: Vec<usize> =
        program.calls(rank).filter(|(_, call)| call.iteration >= first).map(|it| it.0).collect();
    let at = *places.get(rng.below(places.len()))?;
    plant(program, fault, rank, at, rng.bits())
}
