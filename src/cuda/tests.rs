//! What can be tested without a GPU: the layout that all processes agree on.

use std::sync::Arc;

use grammar::dtype::DType;

use super::buffer_assignment::{ALIGNMENT, BufferAssignment};
use crate::plan::{Buffer, Inst, InstKind, Number, Origin, Plan, SignalId, SignalKind, View, ViewOnRank};

pub(super) fn plan(rank: usize, lens: &[usize], code: Vec<InstKind>) -> Plan {
    let buffer = |len: &usize| Buffer { name: "T0".to_owned(), dtype: DType::BFloat, len: *len };
    Plan {
        buffers: lens.iter().map(buffer).collect(),
        code: code.into_iter().map(|kind| Inst { kind, stream: 0, origin: 0 }).collect(),
        origins: Arc::new(vec![Origin { stmt: None, line: 1, iteration: None }]),
        ..Plan::empty(rank, 2, vec!["stream 0".to_owned()])
    }
}

fn slot(from: usize, to: usize, index: u32) -> SignalId {
    SignalId { from, to, kind: SignalKind::Ready, index }
}

#[test]
fn what_peers_touch_is_symmetric() -> Result<(), (usize, u32)> {
    let view = |buffer| View::contiguous(buffer, vec![8]);
    let place = |rank, buffer| Box::new(ViewOnRank { rank, view: view(buffer) });
    let get = InstKind::Copy { from: place(1, 1), to: place(0, 0) };
    let await_it = InstKind::WaitSignal { signal: slot(1, 0, 0) };
    let raise = InstKind::Signal { signal: slot(1, 0, 0) };
    let plans = [plan(0, &[8, 1000], vec![await_it, get]), plan(1, &[300, 8], vec![raise])];
    let layout = BufferAssignment::of(&plans)?;
    let symmetric =
        |rank: usize| -> Vec<bool> { layout.ranks[rank].buffers.iter().map(|it| it.is_symmetric).collect() };
    assert_eq!((symmetric(0), symmetric(1)), (vec![false, false], vec![false, true]));
    assert!(layout.uses_peer_memory);
    // One flag for the barrier of each rank, then the slot; the segment begins behind them.
    assert_eq!(layout.signal_offset(&slot(1, 0, 0)), Some(64));
    assert_eq!(layout.signal_offset(&slot(0, 1, 0)), None);
    assert_eq!(layout.ranks[1].buffers[1].offset, layout.signal_bytes);
    assert_eq!(layout.symmetric_bytes % (2 << 20), 0);
    Ok(())
}

#[test]
fn buffers_lie_apart_and_aligned() -> Result<(), (usize, u32)> {
    let mut apart = plan(0, &[1, 127, 0, 129, 5], Vec::new());
    apart.live_out = (0..5).collect();
    let layout = BufferAssignment::of(&[apart])?;
    let spots = &layout.ranks[0].buffers;
    for (at, spot) in spots.iter().enumerate() {
        assert_eq!(spot.offset % ALIGNMENT, 0);
        let end = spots.get(at + 1).map_or(layout.ranks[0].private_bytes, |it| it.offset);
        assert!(spot.offset + spot.bytes <= end);
    }
    assert!(!layout.uses_peer_memory);
    let huge = plan(0, &[usize::MAX / 2 + 1], Vec::new());
    assert_eq!(BufferAssignment::of(&[huge]).map(|_| ()), Err((0, 0)));
    Ok(())
}

/// A rank whose temporaries are filled and read one after the other.
fn plan_of_fills(rank: usize, lens: &[usize], code: Vec<InstKind>) -> Plan {
    let fill = |buffer: u32| InstKind::Fill {
        to: Box::new(View::contiguous(buffer, vec![1])),
        value: Number::Int(0),
    };
    let fills = (0..lens.len() as u32).map(fill);
    plan(rank, lens, fills.chain(code).collect())
}

fn offsets(layout: &BufferAssignment, rank: usize) -> Vec<usize> {
    layout.ranks[rank].buffers.iter().map(|it| it.offset / ALIGNMENT).collect()
}

#[test]
fn places_are_split_joined_and_grown() -> Result<(), (usize, u32)> {
    // In units of 128 elements: two small ones in the place of a large one, one in the place of both, one that needs more.
    let units = |them: &[usize]| them.iter().map(|it| it * 128).collect::<Vec<_>>();
    let layout = BufferAssignment::of(&[plan_of_fills(0, &units(&[3, 1, 2, 3, 5]), Vec::new())])?;
    assert_eq!(offsets(&layout, 0), [0, 0, 0, 0, 0]);
    assert_eq!(
        (layout.ranks[0].private_bytes, layout.ranks[0].bytes_without_reuse),
        (5 * ALIGNMENT, (2 << 20) + 14 * ALIGNMENT)
    );
    Ok(())
}

#[test]
fn what_is_kept_or_read_unwritten_is_not_shared() -> Result<(), (usize, u32)> {
    let mut kept = plan_of_fills(0, &[8; 4], Vec::new());
    kept.live_out = vec![1];
    assert_eq!(offsets(&BufferAssignment::of(&[kept])?, 0), [1, 0, 1, 1]);
    let place = |buffer| Box::new(ViewOnRank { rank: 0, view: View::contiguous(buffer, vec![1]) });
    let mut early = plan_of_fills(0, &[8; 3], Vec::new());
    early.code[0].kind = InstKind::Copy { from: place(0), to: place(1) };
    assert_eq!(offsets(&BufferAssignment::of(&[early])?, 0), [0, 1, 1]);
    // Zeros are written, and count.
    let mut zero = plan_of_fills(0, &[8; 3], Vec::new());
    zero.code[0].kind = InstKind::Alloc { buffer: 0, zero: true };
    zero.code[1].kind = InstKind::Copy { from: place(0), to: place(1) };
    assert_eq!(offsets(&BufferAssignment::of(&[zero])?, 0), [0, 1, 0]);
    Ok(())
}
