//! Tests which instances are chosen and what their parameters are. The suite's trials `kernels::*` compile
//! all instances.

use grammar::{DType, Op};

use super::{
    DeviceView, ElementwiseArg, ElementwiseOp, Launch, MAX_PARAM_WORDS, ScalarFunction,
    elementwise::elementwise_launch,
    instances::{aligned_view, peer_collective, reduction, single_op_launch},
    peer_memory::{EndSignals, PeerCollective, PeerResult, peer_memory_launch},
    reduce::reduce_launches,
    reduce_scratch_bytes,
};
use crate::{peer_kernel::MAX_ADDRESSES, unsupported::Unsupported};
use hir_plan::{ReduceOp, View};

#[test]
fn accesses_are_wide_where_addresses_allow() -> Result<(), Unsupported> {
    let width = |dtype, address: u64, view: &View, out: &View| {
        let from = ElementwiseArg::View(DeviceView { address, dtype, view });
        match single_op_launch(ScalarFunction::Op(Op::Neg), &[from], &aligned_view(dtype, out))
            .map(|it| it.map(|it| it.kernel))
        {
            Ok(Some(super::Kernel::Elementwise(it))) => Ok::<_, Unsupported>(it.width),
            other => Err(format!("{other:?}").into()),
        }
    };
    let dense = View::contiguous(0, vec![4, 64]);
    assert_eq!(width(DType::BFloat, 4096, &dense, &dense)?, 8);
    assert_eq!(width(DType::Float, 4096, &dense, &dense)?, 4);
    assert_eq!(width(DType::BFloat, 4100, &dense, &dense)?, 2);
    let unaligned = View::contiguous(0, vec![3, 5]);
    assert_eq!(width(DType::BFloat, 4096, &unaligned, &unaligned)?, 1);
    // In the rows of a wider matrix, the pitch limits the width.
    let rows = |pitch| View { buffer: 0, offset: 0, shape: vec![4, 64], strides: vec![pitch, 1] };
    assert_eq!(width(DType::BFloat, 4096, &rows(128), &dense)?, 8);
    assert_eq!(width(DType::BFloat, 4096, &rows(66), &dense)?, 2);
    let turned = View { buffer: 0, offset: 0, shape: vec![4, 64], strides: vec![1, 4] };
    assert_eq!(width(DType::BFloat, 4096, &turned, &dense)?, 1);
    Ok(())
}

#[test]
fn shapes_merge_as_far_as_all_operands_allow() {
    let it = super::merge_dims(&[2, 3, 1, 4], &[&[12, 4, 4, 1], &[12, 4, 9, 1]]);
    assert_eq!((it.extents, it.strides), (vec![24], vec![vec![1], vec![1]]));
    let it = super::merge_dims(&[2, 3, 4], &[&[12, 4, 1], &[0, 4, 1]]);
    assert_eq!((it.extents, it.strides), (vec![2, 12], vec![vec![12, 1], vec![0, 1]]));
    // Both operands are transposed alike.
    let it = super::merge_dims_in_any_order(&[2, 3, 4], &[&[1, 8, 2], &[1, 8, 2]]);
    assert_eq!((it.extents, it.strides), (vec![24], vec![vec![1], vec![1]]));
    let it = super::merge_dims_in_any_order(&[3, 4], &[&[4, 1], &[1, 3]]);
    assert_eq!((it.extents, it.strides), (vec![4, 3], vec![vec![1, 4], vec![3, 1]]));
    let it = super::merge_dims(&[1, 1], &[&[1, 1]]);
    assert_eq!((it.extents, it.strides), (vec![1], vec![vec![0]]));
}

#[test]
fn what_is_not_in_memory_takes_no_parameters() -> Result<(), Unsupported> {
    let dense = View::contiguous(0, vec![64]);
    let place = |number: u64, dtype| DeviceView { address: number << 12, dtype, view: &dense };
    let (half, wide, out) = (place(1, DType::Half), place(2, DType::Double), place(3, DType::Half));
    let add = |a, b, to| {
        ElementwiseOp::new(
            ScalarFunction::Op(Op::Add),
            vec![ElementwiseArg::View(a), ElementwiseArg::View(b)],
            to,
        )
    };
    let launch = |stored| {
        elementwise_launch(&[
            ElementwiseOp { is_stored: stored, ..add(half, half, wide) },
            add(wide, half, out),
        ])
    };
    // A view that is used twice is loaded once; only views in memory limit the width.
    for (stored, places, elements) in [(true, 3, 2), (false, 2, 8)] {
        let Some(Launch { kernel: super::Kernel::Elementwise(kernel), params: words, .. }) = launch(stored)?
        else {
            return Err("not a fused elementwise kernel".into());
        };
        assert_eq!((kernel.reads.len(), kernel.width, words.len()), (1, elements, places * 9 + 8 + 2 + 1));
    }
    // A kernel rejects more operands than its parameters hold.
    let parts = |count| {
        ElementwiseOp::new(
            ScalarFunction::Reduce(ReduceOp::Sum),
            vec![ElementwiseArg::View(half); count],
            out,
        )
    };
    assert!(elementwise_launch(&[parts(60)])?.is_some());
    let parts: Vec<ElementwiseArg> = (4..64).map(|it| ElementwiseArg::View(place(it, DType::Half))).collect();
    let refused =
        elementwise_launch(&[ElementwiseOp::new(ScalarFunction::Reduce(ReduceOp::Sum), parts, out)]);
    assert_eq!(refused, Err("61 operands, more than a kernel takes".into()));
    Ok(())
}

#[test]
fn reductions_take_the_form_that_fills_the_gpu() -> Result<(), Unsupported> {
    // Returns for each pass: elements of an access, whether it reads along rows, lanes, blocks.
    let forms = |dtype, shape: &[usize], axes: &[usize]| -> Result<_, Unsupported> {
        let input = View::contiguous(0, shape.to_vec());
        let (it, out) = reduction(ReduceOp::Sum, &input, axes);
        let (input, out) = (aligned_view(dtype, &input), aligned_view(dtype, &out));
        let launches = reduce_launches(&it, &input, &out, 1 << 20)?;
        assert_eq!(launches.len() > 1, reduce_scratch_bytes(&it, &input, &out)? > 0);
        let form = |it: Launch| match it.kernel {
            super::Kernel::Reduce(kernel) => Ok((kernel.width, kernel.along_rows, kernel.lanes, it.blocks)),
            other => Err(format!("{other:?}").into()),
        };
        launches.into_iter().map(form).collect::<Result<Vec<_>, _>>()
    };
    let (half, float) = (DType::BFloat, DType::Float);
    // These columns alone need 4 blocks, so there are 8 lanes for each column and 16 parts.
    assert_eq!(forms(half, &[16384, 8192], &[0])?, [(8, false, 8, 512), (4, false, 4, 32)]);
    assert_eq!(forms(half, &[16384, 8191], &[0])?, [(1, false, 8, 512), (1, false, 1, 32)]);
    // Columns that fill the GPU, with few terms and with many.
    assert_eq!(forms(half, &[4, 1 << 22], &[0])?, [(8, false, 1, 2048)]);
    assert_eq!(forms(half, &[64, 1 << 18], &[0])?, [(8, false, 4, 512)]);
    // Short rows share a block, each long row has a block, and few rows have several blocks each.
    assert_eq!(forms(half, &[8192, 64], &[1])?, [(8, true, 2, 64)]);
    assert_eq!(forms(half, &[8192, 16384], &[1])?, [(8, true, 256, 8192)]);
    assert_eq!(forms(half, &[2, 1 << 22], &[1])?, [(8, true, 256, 256), (2, false, 32, 1)]);
    // A scalar.
    assert_eq!(forms(float, &[4096, 4096], &[0, 1])?, [(4, true, 256, 512), (4, true, 32, 1)]);
    // The scratch memory holds a binary32 for each part of each result.
    let input = View::contiguous(0, vec![16384, 8192]);
    let (it, out) = reduction(ReduceOp::Sum, &input, &[0]);
    assert_eq!(
        reduce_scratch_bytes(&it, &aligned_view(half, &input), &aligned_view(half, &out))?,
        16 * 8192 * 4
    );
    Ok(())
}

#[test]
fn a_collective_over_peer_memory_has_the_parameters_of_its_structure() -> Result<(), Unsupported> {
    let view = View::contiguous(0, vec![67]);
    let place = |address| DeviceView { address, dtype: DType::BFloat, view: &view };
    let copy = |from, to: &[u64]| PeerResult {
        inputs: vec![place(from)],
        outputs: to.iter().map(|it| place(*it)).collect(),
    };
    let end = EndSignals::OfBlocks { needs_fence: true };
    let launch = |op, results| {
        let more = PeerCollective {
            start_waits: vec![3],
            end_waits: vec![4, 5],
            ..peer_collective(op, results, end)
        };
        peer_memory_launch(&more, 9)
    };
    let Launch { kernel: super::Kernel::PeerMemory(kernel), params, blocks } =
        launch(None, vec![copy(4096, &[8192, 16384])])?
    else {
        return Err("not a kernel over peer memory".into());
    };
    // 8 groups of 8 elements, and 3 elements behind them. Lists of signals are as long as the longest one.
    assert_eq!((kernel.width, blocks), (8, 1));
    assert_eq!(params, [9, 0, 8, 67, 2, 2, 1, 0, 2, 1, 2, 3, 0, 0, 0, 4, 5, 4096, 8192, 16384]);
    // The addresses of four lists of two signals, and of three views.
    let others = params.len() - (4 * 2 + 3);
    let width = |address| -> Result<usize, Unsupported> {
        Ok(match launch(Some(ReduceOp::Sum), vec![copy(address, &[8192])])?.kernel {
            super::Kernel::PeerMemory(kernel) => kernel.width,
            _ => 0,
        })
    };
    assert_eq!((width(4096)?, width(4104)?, width(4098)?), (8, 4, 1));
    assert!(others + MAX_ADDRESSES <= MAX_PARAM_WORDS);
    // A member without results has only signals.
    assert_eq!(launch(None, Vec::new())?.params, [9, 0, 0, 0, 2, 2, 1, 0, 2, 1, 2, 3, 0, 0, 0, 4, 5, 0, 0]);
    // There is a block for each word, at most.
    let large = View::contiguous(0, vec![100_000]);
    let wide = |address| DeviceView { address, dtype: DType::BFloat, view: &large };
    let results = || vec![PeerResult { inputs: vec![wide(4096)], outputs: vec![wide(8192)] }];
    assert_eq!(launch(None, results())?.blocks, 2);
    let last = peer_memory_launch(&peer_collective(None, results(), EndSignals::OfLastBlock), 9)?;
    assert_eq!(last.blocks, 49);
    // An element of 16 bytes is copied as two of 8 bytes.
    let complex = DeviceView { dtype: DType::Complex128, ..place(4096) };
    let copies = vec![PeerResult { inputs: vec![complex], outputs: vec![complex] }];
    assert_eq!(launch(None, copies)?.params[2..4], [67, 134]);
    Ok(())
}

#[test]
fn only_kernels_that_write_to_peers_have_a_fence_before_their_end_signals() -> Result<(), Unsupported> {
    let view = View::contiguous(0, vec![64]);
    let place = || DeviceView { address: 4096, dtype: DType::BFloat, view: &view };
    let body = |end| -> Result<String, Unsupported> {
        let results = vec![PeerResult { inputs: vec![place(), place()], outputs: vec![place()] }];
        match peer_memory_launch(&peer_collective(Some(ReduceOp::Sum), results, end), 9)?.kernel {
            super::Kernel::PeerMemory(kernel) => Ok(super::peer_memory::body(&kernel)),
            _ => Err("not a kernel over peer memory".into()),
        }
    };
    let reads = body(EndSignals::OfBlocks { needs_fence: false })?;
    assert!(!reads.contains("fence_system") && !reads.contains("store_release") && !reads.contains("arrive"));
    let writes = body(EndSignals::OfBlocks { needs_fence: true })?;
    let (fence, store) = (writes.find("fence_system"), writes.rfind("store_relaxed"));
    assert!(fence.is_some() && fence < store && writes.matches("fence_system").count() == 1);
    // The accesses of all threads come before the fence.
    assert!(writes.find("save<") < writes[..fence.unwrap_or(0)].rfind("__syncthreads"));
    let last = body(EndSignals::OfLastBlock)?;
    assert!(last.contains("arrive(p.arrived)") && last.contains("store_release(p.end_signal"));
    Ok(())
}
