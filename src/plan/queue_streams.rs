//! Finds the streams that can serve as the queue of a communicator. Switching to another stream and back
//! takes five microseconds, a quarter of the time of a small collective.

use super::{InstKind, Plan, StreamNo, WorkNo};

/// Returns, by communicator, the stream of the plan that can serve as its queue, or `None` if there is no
/// such stream. The stream must post all communications of the communicator and wait for each before its next
/// instruction.
pub fn queue_streams(plan: &Plan) -> Vec<Option<StreamNo>> {
    let mut streams: Vec<Option<StreamNo>> = vec![None; plan.communicators.len()];
    let mut has_none = vec![false; streams.len()];
    let mut communicators = vec![0; plan.work_count];
    // By stream: the communication that the stream posted with its last instruction.
    let mut posted: Vec<Option<WorkNo>> = vec![None; plan.streams.len()];
    for inst in plan.code.iter().filter(|it| !it.kind.does_nothing_on_stream()) {
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
            has_none[communicator] |= *streams[communicator].get_or_insert(inst.stream) != inst.stream;
        }
    }
    posted.into_iter().flatten().for_each(|work| has_none[communicators[work as usize]] = true);
    streams.into_iter().zip(has_none).map(|(stream, has_none)| stream.filter(|_| !has_none)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::plans_of;

    /// Returns the queue streams of a program of two ranks with this body.
    fn queue_streams_in(body: &[&str]) -> Vec<Option<StreamNo>> {
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
        queue_streams(&plans_of(&text, 2)[0])
    }

    #[test]
    fn a_stream_that_waits_at_once_is_home() {
        assert_eq!(queue_streams_in(&["post 3", "wait 3"]), [Some(0)]);
        assert_eq!(queue_streams_in(&["post 3", "wait 3", "sum", "post 4", "wait 4"]), [Some(0)]);
        assert_eq!(queue_streams_in(&["on 1", "post 3", "wait 3", "sum"]), [Some(1)]);
    }

    #[test]
    fn a_stream_that_does_anything_meanwhile_is_not() {
        for body in [
            &["post 3", "sum", "wait 3"][..],
            &["post 3", "post 4", "wait 3", "wait 4"],
            &["post 3", "wait 3", "on 1", "post 4", "wait 4"],
            &["post 3", "on 1", "wait 3"],
            &["sum", "post 3"],
        ] {
            assert_eq!(queue_streams_in(body), [None], "{body:?}");
        }
    }
}
