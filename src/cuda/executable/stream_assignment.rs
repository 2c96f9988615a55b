//! Assigns a CUDA stream to each logical stream. Each stream of the plan has its own. A communicator shares the
//! stream that `plan::queue_streams` finds for it, if that stream is suitable; otherwise it has its own.

use super::LogicalStream;
use crate::{
    Result,
    device::{Device, Stream},
};
use hir_plan::{CostClass, Plan, StreamNo};

/// The most important kind of work on a stream of the plan, apart from posting communications.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum StreamRole {
    Idle,
    /// Moves data between ranks.
    Communicates,
    Computes,
}

impl StreamRole {
    fn of(class: CostClass) -> Self {
        match class {
            CostClass::Compute => Self::Computes,
            CostClass::PeerAccess => Self::Communicates,
            CostClass::Ordering | CostClass::DataMovement => Self::Idle,
        }
    }
}

/// Creates the CUDA streams of a plan, `first` first, and its logical streams, indexed by stream of the plan
/// and then by communicator. Streams that communicate have high priority; `first` and streams that compute do
/// not.
pub(super) fn assign_streams(
    device: &Device,
    plan: &Plan,
    first: Stream,
) -> Result<(Vec<Stream>, Vec<LogicalStream>)> {
    let mut roles = vec![StreamRole::Idle; plan.streams.len()];
    for inst in &plan.code {
        let role = &mut roles[inst.stream as usize];
        *role = StreamRole::of(inst.kind.cost_info().class).max(*role);
    }
    let computing = roles.iter().filter(|it| **it == StreamRole::Computes).count();
    let is_suitable = |stream: &StreamNo| match roles[*stream as usize] {
        StreamRole::Computes => computing == 1,
        StreamRole::Communicates | StreamRole::Idle => computing == 0 || *stream > 0,
    };
    let queue_streams: Vec<_> =
        hir_plan::queue_streams(plan).into_iter().map(|it| it.filter(is_suitable)).collect();
    let mut streams = vec![first];
    for (number, role) in roles.iter().enumerate().skip(1) {
        let has_high_priority = match role {
            StreamRole::Computes => false,
            StreamRole::Communicates => true,
            StreamRole::Idle => queue_streams.contains(&Some(number as StreamNo)),
        };
        streams.push(device.stream(has_high_priority)?);
    }
    let mut assigned = streams.clone();
    for queue_stream in queue_streams {
        let stream = match queue_stream {
            Some(queue_stream) => streams[queue_stream as usize],
            None => {
                streams.push(device.stream(true)?);
                streams[streams.len() - 1]
            }
        };
        assigned.push(stream);
    }
    let logical = |(number, stream)| LogicalStream { index: number, stream };
    Ok((streams, assigned.into_iter().enumerate().map(logical).collect()))
}
