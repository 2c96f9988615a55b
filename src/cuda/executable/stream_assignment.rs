//! Which stream each lane is on. The plan's streams have one each, and so have communicators, but for those whose home is a
//! stream of the plan: going over to another stream and back takes five microseconds, a quarter of a small collective's time.

use super::Lane;
use crate::{
    cuda::{
        CudaError,
        device::{Device, Stream},
    },
    plan::{self, InstKind, Plan, StreamNo},
};

/// What a stream of a plan does, besides posting communications; the greatest of its instructions' is the stream's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Duty {
    Neither,
    /// It moves data between ranks.
    Moves,
    Computes,
}

impl Duty {
    fn of(kind: &InstKind) -> Self {
        match kind {
            InstKind::Gemm(_) | InstKind::Map { .. } | InstKind::Reduce(_) => Self::Computes,
            InstKind::Combine { .. } | InstKind::Signal { .. } | InstKind::Await { .. } => Self::Moves,
            InstKind::Alloc { .. }
            | InstKind::Copy { .. }
            | InstKind::Fill { .. }
            | InstKind::Iota { .. }
            | InstKind::Collective(_)
            | InstKind::Transfer(_)
            | InstKind::Wait { .. }
            | InstKind::Record { .. }
            | InstKind::Join { .. }
            | InstKind::Exchange { .. }
            | InstKind::Barrier
            | InstKind::Reshard(_)
            | InstKind::Finish => Self::Neither,
        }
    }
}

/// All streams of a plan, `first` first, and its lanes, by stream of the plan and then by communicator. What communicates goes
/// first where another stream computes; the first stream, and those that compute, do not.
pub(super) fn make(
    device: &Device,
    plan: &Plan,
    first: Stream,
) -> Result<(Vec<Stream>, Vec<Lane>), CudaError> {
    let mut duties = vec![Duty::Neither; plan.streams.len()];
    for inst in &plan.code {
        let duty = &mut duties[inst.stream as usize];
        *duty = Duty::of(&inst.kind).max(*duty);
    }
    let computing = duties.iter().filter(|it| **it == Duty::Computes).count();
    let is_home = |stream: &StreamNo| match duties[*stream as usize] {
        Duty::Computes => computing == 1,
        Duty::Moves | Duty::Neither => computing == 0 || *stream > 0,
    };
    let homes: Vec<_> = plan::homes(plan).into_iter().map(|it| it.filter(is_home)).collect();
    let mut streams = vec![first];
    for (number, duty) in duties.iter().enumerate().skip(1) {
        let goes_first = match duty {
            Duty::Computes => false,
            Duty::Moves => true,
            Duty::Neither => homes.contains(&Some(number as StreamNo)),
        };
        streams.push(device.stream(goes_first)?);
    }
    let mut lanes = streams.clone();
    for home in homes {
        let stream = match home {
            Some(home) => streams[home as usize],
            None => {
                streams.push(device.stream(true)?);
                streams[streams.len() - 1]
            }
        };
        lanes.push(stream);
    }
    let lane = |(number, stream)| Lane { number, stream };
    Ok((streams, lanes.into_iter().enumerate().map(lane).collect()))
}
