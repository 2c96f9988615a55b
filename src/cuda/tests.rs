//! Tests without a GPU: the buffer assignment, which must be the same in all processes.

use std::sync::Arc;

use grammar::DType;

use super::{
    buffer_assignment::{ALIGNMENT, BufferAssignment, PortMemory, Segment, SignalSlice, Workspace},
    executable::count_waiting_blocks,
};
use hir_plan::{
    Buffer, Inst, InstKind, Number, Origin, Plan, PlanStream, SignalId, SignalKind, View, ViewOnRank, World,
    plans_of_text,
};

pub(super) fn plan(rank: usize, lens: &[usize], code: Vec<InstKind>) -> Plan {
    let buffer = |len: &usize| Buffer::new("T0", DType::BFloat, *len);
    Plan {
        buffers: lens.iter().map(buffer).collect(),
        code: code.into_iter().map(|kind| Inst { kind, stream: 0, origin: 0 }).collect(),
        origins: Arc::new(vec![Origin { stmt: None, line: 1, iteration: None }]),
        ..Plan::empty(rank, 2, vec![PlanStream::Indexed(0)])
    }
}

fn assign(plans: Vec<Plan>) -> Result<BufferAssignment, (usize, u32)> {
    BufferAssignment::of(&World::new(plans))
}

fn signal_id(from: usize, to: usize, index: u32) -> SignalId {
    SignalId { from, to, kind: SignalKind::Ready, index }
}

#[test]
fn what_peers_touch_is_symmetric() -> Result<(), (usize, u32)> {
    let view = |buffer| View::contiguous(buffer, vec![8]);
    let view_on = |rank, buffer| Box::new(ViewOnRank { rank, view: view(buffer) });
    let get = InstKind::Copy { from: view_on(1, 1), to: view_on(0, 0) };
    let wait = InstKind::WaitSignal { signal: signal_id(1, 0, 0) };
    let signal = InstKind::Signal { signal: signal_id(1, 0, 0) };
    let plans = vec![plan(0, &[8, 1000], vec![wait, get]), plan(1, &[300, 8], vec![signal])];
    let assignment = assign(plans)?;
    let symmetric = |rank: usize| -> Vec<bool> {
        assignment.ranks[rank].buffers.iter().map(|it| it.segment == Segment::Symmetric).collect()
    };
    assert_eq!((symmetric(0), symmetric(1)), (vec![false, false], vec![false, true]));
    assert!(assignment.share_memory(0, 1) && assignment.share_memory(1, 0));
    // One signal for the barrier of each rank, then the signal of the plan; the buffers follow.
    assert_eq!(
        assignment.signal(&signal_id(1, 0, 0)),
        Some(SignalSlice { offset: 64, words: 1, is_set_by_blocks: false })
    );
    assert_eq!(assignment.signal(&signal_id(0, 1, 0)), None);
    assert_eq!(assignment.ranks[1].buffers[1].offset, assignment.signal_bytes);
    assert_eq!(assignment.symmetric_bytes % (2 << 20), 0);
    Ok(())
}

/// Programs of a caller use memory in turn, as far as nothing in it is kept: signals are, and so is what is read before it is written.
#[test]
fn what_peers_touch_is_shared_by_programs() -> Result<(), (usize, u32)> {
    let view_on = |rank, buffer| Box::new(ViewOnRank { rank, view: View::contiguous(buffer, vec![8]) });
    let get = |buffer| InstKind::Copy { from: view_on(1, buffer), to: view_on(0, buffer) };
    let fill = InstKind::Fill { to: Box::new(View::contiguous(1, vec![8])), value: Number::Int(1) };
    let wait = InstKind::WaitSignal { signal: signal_id(1, 0, 0) };
    let signal = InstKind::Signal { signal: signal_id(1, 0, 0) };
    let plans = vec![plan(0, &[8, 8], vec![wait, get(0), get(1)]), plan(1, &[8, 8], vec![fill, signal])];
    let ports = PortMemory::Caller { rank: 0, donated: &[], workspaces: &[] };
    let assignment = BufferAssignment::with_ports(&World::new(plans), ports, &[])?;
    let segments: Vec<Segment> = assignment.ranks[1].buffers.iter().map(|it| it.segment).collect();
    assert_eq!(segments, [Segment::Symmetric, Segment::Shared]);
    assert_eq!((assignment.symmetric_bytes, assignment.shared_bytes), (2 << 20, 2 << 20));
    Ok(())
}

#[test]
fn buffers_lie_apart_and_aligned() -> Result<(), (usize, u32)> {
    let mut separate = plan(0, &[1, 127, 0, 129, 5], Vec::new());
    separate.live_out = (0..5).collect();
    let assignment = assign(vec![separate])?;
    let slices = &assignment.ranks[0].buffers;
    for (at, slice) in slices.iter().enumerate() {
        assert_eq!(slice.offset % ALIGNMENT, 0);
        let end = slices.get(at + 1).map_or(assignment.ranks[0].private_bytes, |it| it.offset);
        assert!(slice.offset + slice.bytes <= end);
    }
    assert!(!assignment.share_memory(0, 1));
    let huge = plan(0, &[usize::MAX / 2 + 1], Vec::new());
    assert_eq!(assign(vec![huge]).map(|_| ()), Err((0, 0)));
    Ok(())
}

/// Returns the plan of a rank whose temporaries are filled one after the other, followed by `code`.
fn plan_of_fills(rank: usize, lens: &[usize], code: Vec<InstKind>) -> Plan {
    let fill = |buffer: u32| InstKind::Fill {
        to: Box::new(View::contiguous(buffer, vec![1])),
        value: Number::Int(0),
    };
    let fills = (0..lens.len() as u32).map(fill);
    plan(rank, lens, fills.chain(code).collect())
}

fn offsets(assignment: &BufferAssignment, rank: usize) -> Vec<usize> {
    assignment.ranks[rank].buffers.iter().map(|it| it.offset / ALIGNMENT).collect()
}

#[test]
fn places_are_split_joined_and_grown() -> Result<(), (usize, u32)> {
    // In units of 128 elements: two small buffers reuse a large one, one reuses both, and one extends the
    // segment.
    let units = |them: &[usize]| them.iter().map(|it| it * 128).collect::<Vec<_>>();
    let assignment = assign(vec![plan_of_fills(0, &units(&[3, 1, 2, 3, 5]), Vec::new())])?;
    assert_eq!(offsets(&assignment, 0), [0, 0, 1, 0, 0]);
    assert_eq!(
        (assignment.ranks[0].private_bytes, assignment.ranks[0].bytes_without_reuse),
        (5 * ALIGNMENT, (2 << 20) + 14 * ALIGNMENT)
    );
    Ok(())
}

#[test]
fn what_is_kept_or_read_unwritten_is_not_shared() -> Result<(), (usize, u32)> {
    let mut kept = plan_of_fills(0, &[8; 4], Vec::new());
    kept.live_out = vec![1];
    assert_eq!(offsets(&assign(vec![kept])?, 0), [1, 0, 1, 1]);
    let view_on = |buffer| Box::new(ViewOnRank { rank: 0, view: View::contiguous(buffer, vec![1]) });
    let mut early = plan_of_fills(0, &[8; 3], Vec::new());
    early.code[0].kind = InstKind::Copy { from: view_on(0), to: view_on(1) };
    assert_eq!(offsets(&assign(vec![early])?, 0), [0, 1, 1]);
    // Zeroing is a write.
    let mut zero = plan_of_fills(0, &[8; 3], Vec::new());
    zero.code[0].kind = InstKind::Alloc { buffer: 0, zeroed: Some(View::contiguous(0, vec![1]).into()) };
    zero.code[1].kind = InstKind::Copy { from: view_on(0), to: view_on(1) };
    assert_eq!(offsets(&assign(vec![zero])?, 0), [0, 1, 0]);
    Ok(())
}

/// Returns the program of an all-reduce of two ranks, for which they wait on stream 1.
fn all_reduce(count: usize, backend: &str) -> String {
    format!(
        "%tensor T0_g_float[ideviceIdx.x0{{2}}, iS1{{{count}}}] (DeviceMesh{{0 1}})\n\
         %tensor T1_g_float[iS2{{{count}}}] (DeviceMesh{{0 1}})\n\
         %HostIrContainer {{ (T0) -> (T1) :\n  T1 = ALLOCATE(mem_type=global, zero_init=false)\n  \
         Communication 1 (type=Allreduce, team=(0 1), red_op=SUM, input=T0, output=T1, backend={backend})\n  \
         SetCurrentStream(Stream 1)\n  Wait(Communication 1)\n}} // %HostIrContainer\n"
    )
}

#[test]
fn done_signals_awaited_in_kernels_have_a_word_for_each_block() -> Result<(), (usize, u32)> {
    let words = |count, backend: &str, kind| -> Result<Vec<(usize, bool)>, (usize, u32)> {
        let plans = plans_of_text(&all_reduce(count, backend), 2).unwrap_or_default();
        let assignment = BufferAssignment::of(&plans)?;
        let signals = plans.iter().flat_map(|it| &it.code).filter_map(|inst| match &inst.kind {
            InstKind::Signal { signal } if signal.kind == kind => assignment.signal(signal),
            _ => None,
        });
        Ok(signals.map(|it| (it.words, it.is_set_by_blocks)).collect())
    };
    let (ready, done) = (SignalKind::TeamReady(0), SignalKind::TeamDone(0));
    // A rank reduces its half, 256 elements in each block.
    assert_eq!(words(8, "NCCL, algo=two-shot", done)?, [(1, true); 2]);
    assert_eq!(words(5000, "NCCL, algo=two-shot", done)?, [(10, true); 2]);
    assert_eq!(words(100_000, "NCCL, algo=two-shot", done)?, [(128, true); 2]);
    assert_eq!(words(100_000, "NCCL, algo=two-shot", ready)?, [(1, false); 2]);
    // Another stream than that of the kernel waits.
    assert_eq!(words(100_000, "CUDA, algo=two-shot", done)?, [(1, false); 2]);
    Ok(())
}

/// What is written before the output, and what is written after the last use of the input, needs no memory of its own.
#[test]
fn callers_lend_inputs_and_outputs() -> Result<(), (usize, u32)> {
    let allocate =
        |it| format!("  T{it} = ALLOCATE(mem_type=global, zero_init=false)\n  T{it} = abs(T{});\n", it - 1);
    let text = format!(
        "{}%HostIrContainer {{ (T0) -> (T5) :\n{}}} // %HostIrContainer\n",
        (0..6).map(|it| format!("%tensor T{it}_g_float[iS0{{128}}]\n")).collect::<String>(),
        (1..6).map(allocate).collect::<String>()
    );
    let world = plans_of_text(&text, 1).unwrap_or_default();
    let assigned = |donated: &[String], workspaces: &[Workspace]| -> Result<_, (usize, u32)> {
        let ports = PortMemory::Caller { rank: 0, donated, workspaces };
        Ok(BufferAssignment::with_ports(&world, ports, &[])?.ranks.remove(0))
    };
    let segments = |donated: &[String]| -> Result<_, (usize, u32)> {
        let of_rank = assigned(donated, &[])?;
        let places: Vec<_> = of_rank.buffers.iter().map(|it| (it.segment, it.offset)).collect();
        Ok((places, of_rank.private_bytes))
    };
    let (input, output) = (0, 4 * ALIGNMENT - ALIGNMENT);
    let (caller, lent, own) = (Segment::Caller, Segment::Lent, (Segment::Private, 0));
    let kept = [(caller, input), (lent, output), own, (lent, output), own, (caller, output)];
    assert_eq!(segments(&[])?, (kept.to_vec(), 2 * ALIGNMENT));
    let given =
        [(caller, input), (lent, output), (lent, input), (lent, output), (lent, input), (caller, output)];
    assert_eq!(segments(&["T0".to_owned()])?, (given.to_vec(), 0));
    // A workspace lies apart from what its instruction accesses, and in memory that others use at other times.
    let computes = |it: &Inst| !matches!(it.kind, InstKind::Alloc { .. });
    let insts: Vec<usize> = (0..).zip(&world[0].code).filter(|(_, it)| computes(it)).map(|it| it.0).collect();
    for (number, inst) in insts.into_iter().take(5).enumerate() {
        let of_rank = assigned(&[], &[Workspace { inst, bytes: 500 }])?;
        assert!(of_rank.buffers.len() == 6 && of_rank.private_bytes <= 4 * ALIGNMENT, "{of_rank:?}");
        let [(at, slice)] = of_rank.workspaces[..] else { unreachable!("one workspace") };
        assert_eq!((at, slice.bytes), (inst, 500));
        for other in &of_rank.buffers[number..number + 2] {
            let is_own = |it: Segment| it == Segment::Private;
            let is_apart =
                slice.offset + slice.bytes <= other.offset || other.offset + other.bytes <= slice.offset;
            assert!(is_own(slice.segment) != is_own(other.segment) || is_apart, "{of_rank:?}");
        }
    }
    Ok(())
}

#[test]
fn kernels_that_wait_leave_room_for_each_other() {
    let blocks = |second: &str, algorithm: &str| {
        let collective = |number: u32, on: &str, algo: &str| {
            format!(
                "  {on}\n  Communication {number} (type=Allreduce, team=(0 1), red_op=SUM, input=T0, output=T{number}, \
                 backend={algo})\n  Wait(Communication {number})\n"
            )
        };
        let text = format!(
            "%tensor T0_g_float[ideviceIdx.x0{{2}}, iS1{{8}}] (DeviceMesh{{0 1}})\n\
             %tensor T1_g_float[iS2{{8}}] (DeviceMesh{{0 1}})\n%tensor T2_g_float[iS3{{8}}] (DeviceMesh{{0 1}})\n\
             %HostIrContainer {{ (T0) -> (T1, T2) :\n  T1 = ALLOCATE(mem_type=global, zero_init=false)\n  \
             T2 = ALLOCATE(mem_type=global, zero_init=false)\n{}{}}} // %HostIrContainer\n",
            collective(1, "SetCurrentStream(Stream 0)", "CUDA, algo=one-shot"),
            collective(2, second, algorithm)
        );
        count_waiting_blocks(&plans_of_text(&text, 2).unwrap_or_default(), 132)
    };
    assert_eq!(blocks("SetCurrentStream(Stream 0)", "CUDA, algo=two-shot"), 132);
    assert_eq!(blocks("SetCurrentStream(Stream 1)", "CUDA, algo=two-shot"), 66);
    assert_eq!(blocks("SetCurrentStream(Stream 1)", "NCCL"), 66);
}
