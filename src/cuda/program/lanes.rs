//! Which stream each lane is on. The plan's streams have one each, and so have communicators, but for those whose home is a
//! stream of the plan: going over to another stream and back takes five microseconds, a quarter of a small collective's time.

use super::Lane;
use crate::{
    cuda::{
        CudaError,
        device::{Device, Stream},
    },
    plan::{InstKind, Plan, StreamNo, WorkNo},
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
    let homes: Vec<_> = homes(plan).into_iter().map(|it| it.filter(is_home)).collect();
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

/// By communicator, the stream of the plan that may be its stream too: it posts all of its communications, and waits for each
/// before it does anything else. Nobody else waits for them.
fn homes(plan: &Plan) -> Vec<Option<StreamNo>> {
    let mut homes: Vec<Option<StreamNo>> = vec![None; plan.communicators.len()];
    let mut has_none = vec![false; homes.len()];
    let mut communicators = vec![0; plan.works];
    // By stream, the communication that it has just posted.
    let mut posted: Vec<Option<WorkNo>> = vec![None; plan.streams.len()];
    let nothing = |kind: &InstKind| matches!(kind, InstKind::Alloc { zero: false, .. });
    for inst in plan.code.iter().filter(|it| !nothing(&it.kind)) {
        let before = posted[inst.stream as usize].take();
        let waited = if let InstKind::Wait { work } = inst.kind { Some(work) } else { None };
        if before != waited {
            let works = before.into_iter().chain(waited);
            works.for_each(|work| has_none[communicators[work as usize]] = true);
        }
        if let Some(it) = inst.kind.communication() {
            let communicator = it.communicator() as usize;
            communicators[it.work() as usize] = communicator;
            posted[inst.stream as usize] = Some(it.work());
            has_none[communicator] |= *homes[communicator].get_or_insert(inst.stream) != inst.stream;
        }
    }
    posted.into_iter().flatten().for_each(|work| has_none[communicators[work as usize]] = true);
    homes.into_iter().zip(has_none).map(|(home, has_none)| home.filter(|_| !has_none)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plans_of;

    /// The homes in a program of two ranks with this body.
    fn homes_in(body: &[&str]) -> Vec<Option<StreamNo>> {
        let tensor = |name| format!("{name}_g_float[iS0{{2}}] (DeviceMesh{{0 1}})");
        let mut text = format!("%HostIrContainer {{ ({}) -> ({}) :\n", tensor("T0"), tensor("T1"));
        text += &format!("  {} = ALLOCATE(mem_type=global, zero_init=false)\n", tensor("T1"));
        for line in body {
            let (input, output) = (tensor("T0"), tensor("T1"));
            text += &match line.split_once(' ') {
                Some(("post", number)) => format!(
                    "  Communication {number} (type=Allreduce, team=(0 1), red_op=SUM, input={input}, output={output}, \
                     backend=NCCL)\n"
                ),
                Some(("wait", number)) => format!("  Wait(Communication {number})\n"),
                Some(("on", stream)) => format!("  SetCurrentStream(Stream {stream})\n"),
                _ => format!("  {output}\n     = {input}\n     + {input};\n"),
            };
        }
        text += "} // %HostIrContainer\n";
        homes(&plans_of(&text, 2)[0])
    }

    #[test]
    fn who_posts_and_waits_at_once_gives_its_stream() {
        assert_eq!(homes_in(&["post 3", "wait 3"]), [Some(0)]);
        assert_eq!(homes_in(&["post 3", "wait 3", "sum", "post 4", "wait 4"]), [Some(0)]);
        assert_eq!(homes_in(&["on 1", "post 3", "wait 3", "sum"]), [Some(1)]);
    }

    #[test]
    fn who_does_anything_meanwhile_does_not() {
        for body in [
            &["post 3", "sum", "wait 3"][..],
            &["post 3", "post 4", "wait 3", "wait 4"],
            &["post 3", "wait 3", "on 1", "post 4", "wait 4"],
            &["post 3", "on 1", "wait 3"],
            &["sum", "post 3"],
        ] {
            assert_eq!(homes_in(body), [None], "{body:?}");
        }
    }
}
