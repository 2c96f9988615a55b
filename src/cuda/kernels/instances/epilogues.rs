//! Instances of collectives whose kernel also executes operations on the rows of the result.

use grammar::{DType, Op};

use super::{aligned_view, peer_collective, reduction};
use crate::{
    kernels::{
        DeviceView, ElementwiseArg, ElementwiseOp, EndSignals, Exchange, Gather, Kernels, ScalarFunction,
        Send, collective_rows_launch,
        row::{RowOp, RowReduction},
        with_exchange,
    },
    unsupported::Unsupported,
};
use hir_plan::{ReduceOp, View};

/// Adds sums of two parts with an addition behind them, with and without a reduction of rows: of rows that one thread or warp
/// computes, and of rows that a block computes; over peer memory and with packets, also those of an all-gather.
///
/// # Errors
/// Fails if one of them has no kernel.
pub(super) fn epilogues(kernels: &mut Kernels) -> Result<(), Unsupported> {
    for dtype in [DType::Float, DType::BFloat] {
        for extent in [8, 24, 4096] {
            for (has_reduction, exchange) in
                [false, true].into_iter().flat_map(|it| (0..3).map(move |at| (it, at)))
            {
                let launch = epilogue(dtype, extent, has_reduction, exchange);
                kernels.number(&launch.ok_or("an epilogue has no kernel")?.kernel);
            }
        }
    }
    Ok(())
}

/// Prepares a collective over peer memory (0), with packets (1), or with packets and an all-gather (2).
fn epilogue(
    dtype: DType,
    extent: usize,
    has_reduction: bool,
    exchange: usize,
) -> Option<crate::kernels::Launch> {
    let all = View::contiguous(0, vec![4, extent]);
    let at = |address| DeviceView { address, ..aligned_view(dtype, &all) };
    let add = |a, b, out| {
        let args = [at(a), at(b)].map(ElementwiseArg::View).to_vec();
        RowOp::Map(ElementwiseOp::new(ScalarFunction::Op(Op::Add), args, at(out)))
    };
    let (part, theirs, sum, residual, result) = (1 << 20, 2 << 20, 3 << 20, 4 << 20, 5 << 20);
    let mut ops = vec![add(part, theirs, sum), add(sum, residual, result)];
    let (it, out) = reduction(ReduceOp::Sum, &all, &[1]);
    if has_reduction {
        let out = DeviceView { address: 6 << 20, ..aligned_view(dtype, &out) };
        ops.push(RowOp::Reduce(RowReduction { reduce: &it, input: at(result), out, is_stored: true }));
    }
    let packets: &[u64] = if exchange == 0 { &[] } else { &[theirs] };
    let rows = collective_rows_launch(&ops, packets)?;
    let exchange_of = match exchange {
        0 => Exchange::Memory(peer_collective(None, Vec::new(), EndSignals::OfBlocks { needs_fence: false })),
        _ => Exchange::Packets {
            flags_per_run: 2,
            flag: 0,
            sends: vec![Send { from: part, to: vec![7 << 20] }],
        },
    };
    let (own, to, received) = (Some(8 << 20), vec![9 << 20], vec![(10 << 20, 11 << 20)]);
    let gather = (exchange == 2).then_some(Gather { step: 1, flags_per_run: 2, flag: 1, own, to, received });
    with_exchange(&rows, &exchange_of, gather.as_ref(), 1 << 24)
}
