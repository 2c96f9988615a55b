//! Tests of instructions that compute and of resharding.

use grammar::{dtype::DType, ops::Op};

use super::{RankPlanBuilder, floats, go, schedules, values};
use crate::{Schedule, SimError};
use hir_plan::*;

#[test]
fn instructions_that_compute() -> Result<(), SimError> {
    let mut it = RankPlanBuilder::new(0, 1, 1);
    let (row, sum, out) = (it.buffer(3), it.buffer(3), it.output(3));
    it.on(0, InstKind::Iota { to: Box::new(row.clone()), start: 1, step: 2 });
    let args = [Arg::View(row.clone()), Arg::Number(Number::Int(10)), Arg::View(row.clone())];
    it.on(0, InstKind::Map { op: Op::Add, args: args[..2].to_vec(), out: Box::new(sum.clone()) });
    it.on(0, InstKind::Map { op: Op::Sub, args: args[1..].to_vec(), out: Box::new(row.clone()) });
    it.on(0, InstKind::Alloc { buffer: out.buffer, zeroed: None });
    // [11, 13, 15] · [9, 7, 5] as a product of a 1 x 3 and a 3 x 1 matrix, then the sum of the first two
    // elements.
    let shaped = |view: &View, shape: [usize; 2]| View::contiguous(view.buffer, shape.to_vec());
    let one = |offset| View { offset, ..View::contiguous(out.buffer, vec![1, 1]) };
    let (a, b) = (shaped(&sum, [1, 3]), shaped(&row, [3, 1]));
    it.on(0, InstKind::Gemm(Box::new(Gemm { a, b, bias: None, out: one(0) })));
    let scalar = View { offset: 1, ..View::contiguous(out.buffer, vec![]) };
    let input = View::contiguous(sum.buffer, vec![2]);
    let init = Number::Int(0);
    let sum = Reduce { op: ReduceOp::Sum, init, input, axes: vec![0], out: scalar };
    it.on(0, InstKind::Reduce(Box::new(sum)));
    let outcome = go(&[it.finish()], vec![Vec::new()], &Schedule::Program)?;
    assert_eq!(values(&outcome, 0), [265.0, 24.0, -1.0]);
    assert!(outcome.notes.exactness.is_exact() && outcome.notes.unwritten.is_empty());
    Ok(())
}

#[test]
fn a_row_sharded_matrix_reshards() -> Result<(), SimError> {
    // Each of two ranks holds two rows of a 4 x 2 matrix. The result is its transpose, also sharded by rows.
    let shard = |view: &View, shape: [usize; 2], rank: usize| {
        let rows = vec![
            AxisPiece { extent: 2, coordinate: Some(rank) },
            AxisPiece { extent: shape[0] / 2, coordinate: None },
        ];
        let pieces = vec![rows, vec![AxisPiece { extent: shape[1], coordinate: None }]];
        Shard { view: Some(view.clone()), layout: ShardLayout { shape: shape.to_vec(), pieces } }
    };
    let plan = |rank: usize| {
        let mut it = RankPlanBuilder::new(rank, 2, 1);
        let (from, to) = (it.input(4), it.output(4));
        let buffer = |name: &str| Buffer::new(name, DType::Float, 8);
        let transposed = View { buffer: 0, offset: 0, shape: vec![2, 4], strides: vec![1, 2] };
        let place = |view| Box::new(ViewOnRank { rank: 0, view });
        let copy = InstKind::Copy { from: place(transposed), to: place(View::contiguous(1, vec![2, 4])) };
        it.on(
            0,
            InstKind::Reshard(Box::new(Reshard {
                team: [0, 1].into(),
                operands: vec![shard(&from, [4, 2], rank)],
                result: shard(&to, [2, 4], rank),
                buffers: vec![buffer("T0"), buffer("T1")],
                body: vec![copy],
            })),
        );
        it.finish()
    };
    let plans = [plan(0), plan(1)];
    for schedule in schedules(10) {
        let inputs = vec![vec![floats(&[0.0, 1.0, 2.0, 3.0])], vec![floats(&[4.0, 5.0, 6.0, 7.0])]];
        let outcome = go(&plans, inputs, &schedule)?;
        assert_eq!(values(&outcome, 0), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(values(&outcome, 1), [1.0, 3.0, 5.0, 7.0]);
    }
    Ok(())
}
