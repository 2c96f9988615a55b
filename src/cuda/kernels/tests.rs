//! Every operator, element type and template compiles for every architecture, where NVRTC is there.

use grammar::{
    dtype::DType,
    ops::{OPS, Op},
};

use super::{Argument, Function, Kernels, Launch, Link, Located, chain, fold, nvrtc, product, room};
use crate::{
    cuda::CudaError,
    plan::{Number, Reduce, ReduceOp, View},
};

const DTYPES: [DType; 13] = [
    DType::Bool,
    DType::Double,
    DType::Float,
    DType::Half,
    DType::BFloat,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
];
/// One for each type that is computed in, and truth values.
const COMPUTED: [DType; 5] = [DType::BFloat, DType::Double, DType::Int32, DType::UInt64, DType::Bool];
const REDUCTIONS: [ReduceOp; 10] = [
    ReduceOp::Sum,
    ReduceOp::Product,
    ReduceOp::Min,
    ReduceOp::Max,
    ReduceOp::FMin,
    ReduceOp::FMax,
    ReduceOp::Avg,
    ReduceOp::And,
    ReduceOp::Or,
    ReduceOp::Xor,
];

/// A view at an address that allows the widest access.
fn at(dtype: DType, view: &View) -> Located<'_> {
    Located { address: 4096, dtype, view }
}

/// A single step.
fn map(function: Function, args: &[Argument], out: &Located) -> Result<Option<Launch>, String> {
    chain(&[Link::new(function, args.to_vec(), *out)])
}

/// A reduction, and its result.
fn reduction(op: ReduceOp, input: &View, axes: &[usize]) -> (Reduce, View) {
    let kept = (0..input.shape.len()).filter(|it| !axes.contains(it)).map(|it| input.shape[it]);
    let out = View::contiguous(1, kept.collect());
    (Reduce { op, init: Number::Int(0), input: input.clone(), axes: axes.to_vec(), out: out.clone() }, out)
}

/// All instances that the tests compile.
fn instances() -> Result<Kernels, String> {
    let mut kernels = Kernels::default();
    let (dense, turned) = (
        View::contiguous(0, vec![4, 64]),
        View { buffer: 0, offset: 0, shape: vec![4, 64], strides: vec![1, 4] },
    );
    let (long, high) = (View::contiguous(0, vec![4, 4096]), View::contiguous(0, vec![4096, 256]));
    let repeated = View { buffer: 0, offset: 0, shape: vec![4, 64], strides: vec![1, 0] };
    let mut add = |launch: Option<Launch>| {
        if let Some(it) = launch {
            kernels.number(&it.kernel);
        }
    };
    let mut operators = 0;
    for op in OPS.iter().map(|row| row.op) {
        for dtype in COMPUTED {
            let args: Vec<Argument> = (0..3).map(|_| Argument::View(at(dtype, &dense))).collect();
            // What has no kernel is refused, and refused with a name.
            match map(Function::Op(op), &args, &at(dtype, &dense)) {
                Ok(launch) => {
                    operators += 1;
                    add(launch);
                }
                Err(message) => assert!(message.contains(op.name()), "{message}"),
            }
        }
    }
    assert!(operators > 150, "{operators} operators");
    for from in DTYPES {
        for to in DTYPES {
            add(map(Function::Move, &[Argument::View(at(from, &dense))], &at(to, &dense))?);
        }
        for view in [&turned, &repeated] {
            add(map(Function::Move, &[Argument::View(at(from, view))], &at(from, &dense))?);
        }
        add(map(Function::Move, &[Argument::Number(Number::Float(0.5))], &at(from, &dense))?);
        let row = View::contiguous(0, vec![256]);
        let steps = [Argument::Number(Number::Int(1)), Argument::Number(Number::Int(2))];
        add(map(Function::Iota, &steps, &at(from, &row))?);
    }
    // A step takes what an earlier one has given, as numbers or as bits.
    for dtype in DTYPES {
        let (from, between, copy) =
            (at(DType::BFloat, &dense), at(dtype, &dense), View { buffer: 1, ..dense.clone() });
        let copy = Located { address: 1 << 20, dtype, view: &copy };
        let out = Located { address: 2 << 20, dtype: DType::Half, view: &dense };
        let step = |from, to| Link::new(Function::Move, vec![Argument::View(from)], to);
        add(chain(&[
            Link { stored: false, ..step(Located { address: 3 << 20, ..from }, between) },
            step(between, copy),
            step(copy, out),
        ])?);
    }
    for dtype in COMPUTED {
        for op in REDUCTIONS {
            let parts: Vec<Argument> = (0..8).map(|_| Argument::View(at(dtype, &dense))).collect();
            if let Ok(launch) = map(Function::Combine(op), &parts, &at(dtype, &dense)) {
                add(launch);
            }
            // A thread for each column, lanes for each row, and two passes over lanes for each column.
            for (input, axis) in [(&dense, 0), (&long, 1), (&high, 0)] {
                let (it, out) = reduction(op, input, &[axis]);
                for launch in fold(&it, &at(dtype, input), &at(dtype, &out), 1 << 20).unwrap_or_default() {
                    add(Some(launch));
                }
            }
        }
        let square = View::contiguous(0, vec![8, 8]);
        for bias in [None, Some(at(dtype, &square))] {
            add(product(&at(dtype, &square), &at(dtype, &square), bias.as_ref(), &at(dtype, &square))?);
        }
    }
    Ok(kernels)
}

/// Compiles all instances for an architecture. Without NVRTC the test says that it is skipped, or fails where
/// `HIR_REQUIRE_NVRTC=1` insists.
fn compiles_for(architecture: i32) -> Result<(), Box<dyn std::error::Error>> {
    let source = instances()?.source();
    assert!(!source.contains("void,"), "a type without a name");
    let known = match nvrtc::capabilities() {
        Ok(known) => known,
        Err(CudaError::Environment(why)) if std::env::var("HIR_REQUIRE_NVRTC").as_deref() != Ok("1") => {
            use std::io::Write;
            // Past the harness, which shows nothing of a test that passes.
            writeln!(std::io::stderr(), "skipped: {why}")?;
            return Ok(());
        }
        Err(other) => return Err(other.into()),
    };
    // CUDA 12.8 is the first to know 10.0.
    if !known.contains(&architecture) {
        assert_eq!(architecture, 100, "NVRTC knows {known:?}");
        return Ok(());
    }
    let cubin = nvrtc::compile(&source, architecture)?;
    assert!(cubin.starts_with(b"\x7fELF"), "no machine code for {architecture}");
    Ok(())
}

// Three tests, which run side by side.

#[test]
fn everything_compiles_for_ampere() -> Result<(), Box<dyn std::error::Error>> {
    compiles_for(80)
}

#[test]
fn everything_compiles_for_hopper() -> Result<(), Box<dyn std::error::Error>> {
    compiles_for(90)
}

#[test]
fn everything_compiles_for_blackwell() -> Result<(), Box<dyn std::error::Error>> {
    compiles_for(100)
}

#[test]
fn accesses_are_wide_where_addresses_allow() -> Result<(), String> {
    let width = |dtype, address: u64, view: &View, out: &View| {
        let from = Argument::View(Located { address, dtype, view });
        match map(Function::Op(Op::Neg), &[from], &at(dtype, out)).map(|it| it.map(|it| it.kernel)) {
            Ok(Some(super::Kernel::Chain { width, .. })) => Ok(width),
            other => Err(format!("{other:?}")),
        }
    };
    let dense = View::contiguous(0, vec![4, 64]);
    assert_eq!(width(DType::BFloat, 4096, &dense, &dense)?, 8);
    assert_eq!(width(DType::Float, 4096, &dense, &dense)?, 4);
    assert_eq!(width(DType::BFloat, 4100, &dense, &dense)?, 2);
    let odd = View::contiguous(0, vec![3, 5]);
    assert_eq!(width(DType::BFloat, 4096, &odd, &odd)?, 1);
    // Rows of a wider matrix: the pitch decides.
    let rows = |pitch| View { buffer: 0, offset: 0, shape: vec![4, 64], strides: vec![pitch, 1] };
    assert_eq!(width(DType::BFloat, 4096, &rows(128), &dense)?, 8);
    assert_eq!(width(DType::BFloat, 4096, &rows(66), &dense)?, 2);
    let turned = View { buffer: 0, offset: 0, shape: vec![4, 64], strides: vec![1, 4] };
    assert_eq!(width(DType::BFloat, 4096, &turned, &dense)?, 1);
    Ok(())
}

#[test]
fn shapes_merge_as_far_as_all_operands_allow() {
    let it = super::merged(&[2, 3, 1, 4], &[&[12, 4, 4, 1], &[12, 4, 9, 1]]);
    assert_eq!((it.extents, it.strides), (vec![24], vec![vec![1], vec![1]]));
    let it = super::merged(&[2, 3, 4], &[&[12, 4, 1], &[0, 4, 1]]);
    assert_eq!((it.extents, it.strides), (vec![2, 12], vec![vec![12, 1], vec![0, 1]]));
    let it = super::merged(&[1, 1], &[&[1, 1]]);
    assert_eq!((it.extents, it.strides), (vec![1], vec![vec![0]]));
}

#[test]
fn what_is_not_in_memory_takes_no_parameters() -> Result<(), String> {
    let dense = View::contiguous(0, vec![64]);
    let place = |number: u64, dtype| Located { address: number << 12, dtype, view: &dense };
    let (half, wide, out) = (place(1, DType::Half), place(2, DType::Double), place(3, DType::Half));
    let add = |a, b, to| Link::new(Function::Op(Op::Add), vec![Argument::View(a), Argument::View(b)], to);
    let launch = |stored| chain(&[Link { stored, ..add(half, half, wide) }, add(wide, half, out)]);
    // What is read twice is read once; only what is in memory says how wide accesses are.
    for (stored, places, elements) in [(true, 3, 2), (false, 2, 8)] {
        let Some(Launch { kernel: super::Kernel::Chain { reads, width, .. }, words, .. }) = launch(stored)?
        else {
            return Err("no chain".to_owned());
        };
        assert_eq!((reads.len(), width, words.len()), (1, elements, places * 9 + 8 + 2 + 1));
    }
    // A kernel takes no more than its parameters hold.
    let parts = |count| Link::new(Function::Combine(ReduceOp::Sum), vec![Argument::View(half); count], out);
    assert!(chain(&[parts(60)])?.is_some());
    let parts: Vec<Argument> = (4..64).map(|it| Argument::View(place(it, DType::Half))).collect();
    let refused = chain(&[Link::new(Function::Combine(ReduceOp::Sum), parts, out)]);
    assert_eq!(refused, Err("61 operands, more than a kernel takes".to_owned()));
    Ok(())
}

#[test]
fn reductions_take_the_form_that_fills_the_gpu() -> Result<(), String> {
    // By pass: elements of an access, whether along rows, lanes, blocks.
    let forms = |dtype, shape: &[usize], axes: &[usize]| -> Result<_, String> {
        let input = View::contiguous(0, shape.to_vec());
        let (it, out) = reduction(ReduceOp::Sum, &input, axes);
        let (input, out) = (at(dtype, &input), at(dtype, &out));
        let launches = fold(&it, &input, &out, 1 << 20)?;
        assert_eq!(launches.len() > 1, room(&it, &input, &out)? > 0);
        let form = |it: Launch| match it.kernel {
            super::Kernel::Fold { width, rows, lanes, .. } => Ok((width, rows, lanes, it.blocks)),
            other => Err(format!("{other:?}")),
        };
        launches.into_iter().map(form).collect::<Result<Vec<_>, _>>()
    };
    let (half, float) = (DType::BFloat, DType::Float);
    // Columns that alone would be 4 blocks: 8 lanes for each, and 16 parts.
    assert_eq!(forms(half, &[16384, 8192], &[0])?, [(8, false, 8, 512), (4, false, 4, 32)]);
    assert_eq!(forms(half, &[16384, 8191], &[0])?, [(1, false, 8, 512), (1, false, 1, 32)]);
    // Columns that fill the GPU, with few terms and with many.
    assert_eq!(forms(half, &[4, 1 << 22], &[0])?, [(8, false, 1, 2048)]);
    assert_eq!(forms(half, &[64, 1 << 18], &[0])?, [(8, false, 4, 512)]);
    // Rows: short ones share a block, long ones have one each, and few ones several.
    assert_eq!(forms(half, &[8192, 64], &[1])?, [(8, true, 2, 64)]);
    assert_eq!(forms(half, &[8192, 16384], &[1])?, [(8, true, 256, 8192)]);
    assert_eq!(forms(half, &[2, 1 << 22], &[1])?, [(8, true, 256, 256), (2, false, 32, 1)]);
    // A scalar.
    assert_eq!(forms(float, &[4096, 4096], &[0, 1])?, [(4, true, 256, 512), (4, true, 32, 1)]);
    // Room: a binary32 for each part of each result.
    let input = View::contiguous(0, vec![16384, 8192]);
    let (it, out) = reduction(ReduceOp::Sum, &input, &[0]);
    assert_eq!(room(&it, &at(half, &input), &at(half, &out))?, 16 * 8192 * 4);
    Ok(())
}
