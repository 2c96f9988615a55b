//! Finds the instructions that the epilogue of a matrix product can compute.
//!
//! cuBLASLt applies `relu` to a product before it stores it. If nothing else reads the product, the product itself is
//! not stored. With the same algorithm, the result has the same bits: `relu` keeps a rounded value or returns +0, and NaN
//! stays NaN (cuBLASLt 13.1 on an H200). cuBLASLt may choose another algorithm for a product with `relu`, which adds the
//! terms in another order.

use grammar::{dtype::DType, ops::Op};
use rustc_hash::FxHashMap;

use hir_plan::{Arg, BufferNo, Inst, InstKind, StreamNo};

/// A matrix product and the `relu` of its result, as indices of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReluEpilogue {
    pub product: u32,
    pub relu: u32,
}

/// Returns each matrix product whose stream computes the `relu` of the result next, in the order of the products. `dtype` is
/// the element type of a buffer. Other instructions may also read the product: `executable::fusion` examines this.
pub(super) fn relu_epilogues(code: &[Inst], dtype: impl Fn(BufferNo) -> DType) -> Vec<ReluEpilogue> {
    // By stream: the last instruction, if it is a matrix product.
    let mut last: FxHashMap<StreamNo, u32> = FxHashMap::default();
    let mut found = Vec::new();
    for (at, inst) in (0..).zip(code) {
        match &inst.kind {
            it if it.does_nothing_on_stream() => {}
            InstKind::Gemm(_) => _ = last.insert(inst.stream, at),
            _ => {
                if let Some(product) = last.remove(&inst.stream)
                    && is_relu_of(&inst.kind, &code[product as usize].kind, &dtype)
                {
                    found.push(ReluEpilogue { product, relu: at });
                }
            }
        }
    }
    found.sort_by_key(|it| it.product);
    found
}

/// Returns true if an instruction computes the `relu` of the result of a matrix product, in the type of the result, and
/// cuBLASLt supports `relu` in this type: it does not in binary64, and has no products of integers.
fn is_relu_of(it: &InstKind, product: &InstKind, dtype: &impl Fn(BufferNo) -> DType) -> bool {
    let (InstKind::Map { op: Op::Relu, args, out }, InstKind::Gemm(gemm)) = (it, product) else {
        return false;
    };
    matches!(args.as_slice(), [Arg::View(it)] if *it == gemm.out)
        && out.shape == gemm.out.shape
        && dtype(out.buffer) == dtype(gemm.out.buffer)
        && matches!(dtype(out.buffer), DType::BFloat | DType::Half | DType::Float)
}
