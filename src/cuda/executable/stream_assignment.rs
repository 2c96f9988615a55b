//! Which CUDA stream each lane is on. A stream of the plan has one, and so has a communicator that has no home (`plan::homes`).

use super::LogicalStream;
use crate::{
    cuda::{
        CudaError,
        device::{Device, Stream},
    },
    plan::{self, InstClass, Plan, StreamNo},
};

/// What a stream of a plan does besides posting communications: the greatest role of its instructions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum StreamRole {
    Idle,
    /// It moves data between ranks.
    Communicates,
    Computes,
}

impl StreamRole {
    fn of(kind: InstClass) -> Self {
        match kind {
            InstClass::Compute => Self::Computes,
            InstClass::Communication => Self::Communicates,
            InstClass::Ordering | InstClass::DataMovement => Self::Idle,
        }
    }
}

/// Creates the CUDA streams of a plan, `first` first, and its lanes, by stream of the plan and then by communicator. Streams that
/// communicate have high priority; `first`, and streams that compute, do not.
pub(super) fn assign_streams(
    device: &Device,
    plan: &Plan,
    first: Stream,
) -> Result<(Vec<Stream>, Vec<LogicalStream>), CudaError> {
    let mut roles = vec![StreamRole::Idle; plan.streams.len()];
    for inst in &plan.code {
        let role = &mut roles[inst.stream as usize];
        *role = StreamRole::of(inst.kind.work_info().kind).max(*role);
    }
    let computing = roles.iter().filter(|it| **it == StreamRole::Computes).count();
    let is_home = |stream: &StreamNo| match roles[*stream as usize] {
        StreamRole::Computes => computing == 1,
        StreamRole::Communicates | StreamRole::Idle => computing == 0 || *stream > 0,
    };
    let homes: Vec<_> = plan::queue_streams(plan).into_iter().map(|it| it.filter(is_home)).collect();
    let mut streams = vec![first];
    for (number, role) in roles.iter().enumerate().skip(1) {
        let has_high_priority = match role {
            StreamRole::Computes => false,
            StreamRole::Communicates => true,
            StreamRole::Idle => homes.contains(&Some(number as StreamNo)),
        };
        streams.push(device.stream(has_high_priority)?);
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
    let lane = |(number, stream)| LogicalStream { index: number, stream };
    Ok((streams, lanes.into_iter().enumerate().map(lane).collect()))
}
