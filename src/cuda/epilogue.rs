//! Finds the instructions that the kernel of a collective or the epilogue of a matrix product can compute.
//!
//! The kernel of a collective with `epilogue=true` computes elementwise operations and reductions of rows that follow on
//! its stream (`executable::fusion`).
//!
//! cuBLASLt applies `relu` to a product before it stores it, or adds another matrix. If nothing else reads the product, the product itself is
//! not stored. With the same algorithm, the result of `relu` has the same bits: `relu` keeps a rounded value or returns +0, and NaN
//! stays NaN (cuBLASLt 13.1 on an H200). A sum is rounded once, where a stored product would be rounded before it is added. cuBLASLt may choose
//! another algorithm for a product with an epilogue, which adds the terms in another order.

use grammar::{DType, Op};
use rustc_hash::FxHashMap;

use hir_plan::{Arg, BufferNo, Gemm, Inst, InstKind, PeerCollective, StreamNo, View};

/// A matrix product, and the `relu` of its result or the sum of its result and another matrix, as indices of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProductEpilogue {
    pub product: u32,
    pub follower: u32,
}

/// Returns each matrix product whose stream computes the `relu` of the result next, or a sum with it, in the order of the products. `dtype` is
/// the element type of a buffer. Other instructions may also read the product: `executable::fusion` examines this.
pub(super) fn product_epilogues(code: &[Inst], dtype: impl Fn(BufferNo) -> DType) -> Vec<ProductEpilogue> {
    // By stream: the last instruction, if it is a matrix product.
    let mut last: FxHashMap<StreamNo, u32> = FxHashMap::default();
    let mut found = Vec::new();
    for (at, inst) in (0..).zip(code) {
        match &inst.kind {
            it if it.does_nothing_on_stream() => {}
            InstKind::Gemm(_) => _ = last.insert(inst.stream, at),
            _ => {
                if let Some(product) = last.remove(&inst.stream)
                    && is_epilogue_of(&inst.kind, &code[product as usize].kind, &dtype)
                {
                    found.push(ProductEpilogue { product, follower: at });
                }
            }
        }
    }
    found.sort_by_key(|it| it.product);
    found
}

/// Returns the instructions that the kernel of a collective may compute: by index, the number of the collective.
pub(super) fn collective_epilogues(code: &[Inst], collectives: &[PeerCollective]) -> FxHashMap<usize, usize> {
    let mut found = FxHashMap::default();
    // By stream: the collective whose epilogue may go on.
    let mut open: FxHashMap<StreamNo, usize> = FxHashMap::default();
    let mut next = 0;
    for (at, inst) in code.iter().enumerate() {
        while collectives.get(next).is_some_and(|it| it.range.end <= at) {
            next += 1;
        }
        let here = collectives.get(next).filter(|it| it.range.contains(&at));
        match &inst.kind {
            _ if here.is_some_and(|it| it.epilogue.is_some()) => _ = open.insert(inst.stream, next),
            // An all-gather of what the kernel computes. It ends the epilogue.
            _ if here.is_some() && open.contains_key(&inst.stream) => {
                found.extend(open.get(&inst.stream).map(|it| (at, *it)));
                if here.is_some_and(|it| it.range.end == at + 1) {
                    open.remove(&inst.stream);
                }
            }
            it if it.does_nothing_on_stream() => {}
            InstKind::Map { .. } | InstKind::Reduce(_) | InstKind::Fill { .. } | InstKind::Copy { .. }
                if here.is_none() =>
            {
                found.extend(open.get(&inst.stream).map(|it| (at, *it)));
            }
            _ => _ = open.remove(&inst.stream),
        }
    }
    found
}

/// Returns the buffers of which elementwise instructions that follow each other on a stream, with one shape, read a part only: by the
/// index of the last one of these instructions. If a result took such memory, its elements would not be those that are read
/// there, and the instructions could not be fused. `len` is the number of elements of a buffer.
pub(super) fn parts_read_by_runs(
    code: &[Inst],
    len: impl Fn(BufferNo) -> usize,
) -> FxHashMap<usize, Vec<BufferNo>> {
    let mut found = FxHashMap::default();
    // By stream: the shape of the run, its last instruction, and the buffers.
    let mut runs: FxHashMap<StreamNo, (&[usize], usize, Vec<BufferNo>)> = FxHashMap::default();
    for (at, inst) in code.iter().enumerate().filter(|(_, it)| !it.kind.does_nothing_on_stream()) {
        let InstKind::Map { args, out, .. } = &inst.kind else {
            found.extend(runs.remove(&inst.stream).map(|(_, last, buffers)| (last, buffers)));
            continue;
        };
        if runs.get(&inst.stream).is_some_and(|(shape, ..)| *shape != out.shape) {
            found.extend(runs.remove(&inst.stream).map(|(_, last, buffers)| (last, buffers)));
        }
        let (_, last, buffers) = runs.entry(inst.stream).or_insert((&out.shape, at, Vec::new()));
        *last = at;
        buffers.extend(args.iter().filter_map(|it| match it {
            Arg::View(it) if it.shape == out.shape && it.len() < len(it.buffer) => Some(it.buffer),
            _ => None,
        }));
    }
    found.extend(runs.into_values().map(|(_, last, buffers)| (last, buffers)));
    found.retain(|_, buffers| !buffers.is_empty());
    found
}

/// Returns true if an instruction computes the `relu` of the result of a matrix product, or adds another matrix to it, in the type of the result,
/// and cuBLASLt supports this: it has no `relu` in binary64, and no products of integers.
fn is_epilogue_of(it: &InstKind, product: &InstKind, dtype: &impl Fn(BufferNo) -> DType) -> bool {
    let (InstKind::Map { op, args, out }, InstKind::Gemm(gemm)) = (it, product) else { return false };
    let is_known = match op {
        Op::Relu => matches!(args.as_slice(), [Arg::View(it)] if *it == gemm.out),
        Op::Add => {
            gemm.bias.is_none()
                && added_to(gemm, args).is_some_and(|it| dtype(it.buffer) == dtype(out.buffer))
        }
        _ => false,
    };
    is_known
        && out.shape == gemm.out.shape
        && dtype(out.buffer) == dtype(gemm.out.buffer)
        && matches!(dtype(out.buffer), DType::BFloat | DType::Half | DType::Float)
}

/// Returns the operand of a sum that is added to the result of a matrix product.
pub(super) fn added_to<'a>(gemm: &Gemm, args: &'a [Arg]) -> Option<&'a View> {
    match args {
        [Arg::View(it), Arg::View(other)] | [Arg::View(other), Arg::View(it)]
            if *it == gemm.out && other.buffer != it.buffer && other.shape == it.shape =>
        {
            Some(other)
        }
        _ => None,
    }
}
