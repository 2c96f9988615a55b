//! Streams that may execute the communications of a queue.

use hir_plan::{StreamNo, plans_of_text, queue_streams};

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
    let world = plans_of_text(&text, 2);
    assert!(world.is_ok(), "{text}\n{world:?}");
    world.map_or_else(|_| Vec::new(), |it| queue_streams(&it[0]))
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
