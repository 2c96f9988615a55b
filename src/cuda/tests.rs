//! What can be tested without a GPU: the layout that all processes agree on.

use std::sync::Arc;

use grammar::dtype::DType;

use super::buffer_assignment::{ALIGNMENT, WorldLayout};
use crate::plan::{Buffer, Inst, InstKind, Meaning, Number, Origin, Place, Plan, Slot, View};

pub(super) fn plan(rank: usize, lens: &[usize], code: Vec<InstKind>) -> Plan {
    let buffer = |len: &usize| Buffer { name: "T0".to_owned(), dtype: DType::BFloat, len: *len };
    Plan {
        buffers: lens.iter().map(buffer).collect(),
        code: code.into_iter().map(|kind| Inst { kind, stream: 0, origin: 0 }).collect(),
        origins: Arc::new(vec![Origin { stmt: None, line: 1, frame: None }]),
        ..Plan::empty(rank, 2, vec!["stream 0".to_owned()])
    }
}

fn slot(from: usize, to: usize, index: u32) -> Slot {
    Slot { from, to, meaning: Meaning::Ready, index }
}

#[test]
fn what_peers_touch_is_symmetric() -> Result<(), (usize, u32)> {
    let view = |buffer| View::contiguous(buffer, vec![8]);
    let place = |rank, buffer| Box::new(Place { rank, view: view(buffer) });
    let get = InstKind::Copy { from: place(1, 1), to: place(0, 0) };
    let await_it = InstKind::Await { slot: slot(1, 0, 0) };
    let raise = InstKind::Signal { slot: slot(1, 0, 0) };
    let plans = [plan(0, &[8, 1000], vec![await_it, get]), plan(1, &[300, 8], vec![raise])];
    let layout = WorldLayout::of(&plans)?;
    let symmetric =
        |rank: usize| -> Vec<bool> { layout.ranks[rank].spots.iter().map(|it| it.symmetric).collect() };
    assert_eq!((symmetric(0), symmetric(1)), (vec![false, false], vec![false, true]));
    assert!(layout.has_peers);
    // One flag for the barrier of each rank, then the slot; the segment begins behind them.
    assert_eq!(layout.slot(&slot(1, 0, 0)), Some(64));
    assert_eq!(layout.slot(&slot(0, 1, 0)), None);
    assert_eq!(layout.ranks[1].spots[1].offset, layout.flags);
    assert_eq!(layout.symmetric % (2 << 20), 0);
    Ok(())
}

#[test]
fn buffers_lie_apart_and_aligned() -> Result<(), (usize, u32)> {
    let mut apart = plan(0, &[1, 127, 0, 129, 5], Vec::new());
    apart.kept = (0..5).collect();
    let layout = WorldLayout::of(&[apart])?;
    let spots = &layout.ranks[0].spots;
    for (at, spot) in spots.iter().enumerate() {
        assert_eq!(spot.offset % ALIGNMENT, 0);
        let end = spots.get(at + 1).map_or(layout.ranks[0].private, |it| it.offset);
        assert!(spot.offset + spot.bytes <= end);
    }
    assert!(!layout.has_peers);
    let huge = plan(0, &[usize::MAX / 2 + 1], Vec::new());
    assert_eq!(WorldLayout::of(&[huge]).map(|_| ()), Err((0, 0)));
    Ok(())
}

/// A rank whose temporaries are filled and read one after the other.
fn chain(rank: usize, lens: &[usize], code: Vec<InstKind>) -> Plan {
    let fill = |buffer: u32| InstKind::Fill {
        to: Box::new(View::contiguous(buffer, vec![1])),
        value: Number::Int(0),
    };
    let fills = (0..lens.len() as u32).map(fill);
    plan(rank, lens, fills.chain(code).collect())
}

fn offsets(layout: &WorldLayout, rank: usize) -> Vec<usize> {
    layout.ranks[rank].spots.iter().map(|it| it.offset / ALIGNMENT).collect()
}

#[test]
fn places_are_split_joined_and_grown() -> Result<(), (usize, u32)> {
    // In units of 128 elements: two small ones in the place of a large one, one in the place of both, one that needs more.
    let units = |them: &[usize]| them.iter().map(|it| it * 128).collect::<Vec<_>>();
    let layout = WorldLayout::of(&[chain(0, &units(&[3, 1, 2, 3, 5]), Vec::new())])?;
    assert_eq!(offsets(&layout, 0), [0, 0, 0, 0, 0]);
    assert_eq!((layout.ranks[0].private, layout.ranks[0].apart), (5 * ALIGNMENT, (2 << 20) + 14 * ALIGNMENT));
    Ok(())
}

#[test]
fn what_is_kept_or_read_unwritten_is_not_shared() -> Result<(), (usize, u32)> {
    let mut kept = chain(0, &[8; 4], Vec::new());
    kept.kept = vec![1];
    assert_eq!(offsets(&WorldLayout::of(&[kept])?, 0), [1, 0, 1, 1]);
    let place = |buffer| Box::new(Place { rank: 0, view: View::contiguous(buffer, vec![1]) });
    let mut early = chain(0, &[8; 3], Vec::new());
    early.code[0].kind = InstKind::Copy { from: place(0), to: place(1) };
    assert_eq!(offsets(&WorldLayout::of(&[early])?, 0), [0, 1, 1]);
    // Zeros are written, and count.
    let mut zero = chain(0, &[8; 3], Vec::new());
    zero.code[0].kind = InstKind::Alloc { buffer: 0, zero: true };
    zero.code[1].kind = InstKind::Copy { from: place(0), to: place(1) };
    assert_eq!(offsets(&WorldLayout::of(&[zero])?, 0), [0, 1, 0]);
    Ok(())
}
