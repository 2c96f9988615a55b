//! Instances of every template for every operator and element type, to test a compiler or an architecture.
//! They compile without a GPU.

mod epilogues;

use grammar::{DType, OPS, Op};

use super::{
    AttentionCall, DeviceView, ElementwiseArg, ElementwiseOp, EndSignals, Item, Kernels, Launch,
    PacketCollective, PeerCollective, PeerResult, ScalarFunction, Source, attention_launch,
    elementwise::elementwise_launch,
    few_rows,
    matmul::matmul_launch,
    nvrtc,
    packets::packet_launch,
    peer_memory::peer_memory_launch,
    reduce::reduce_launches,
    routine_launch,
    row::{RowOp, RowReduction, row_launch},
    shape::merge_dims_in_any_order,
    shifted_rows_launch,
};
use crate::{ExecutorError, Result, unsupported::Unsupported};
use hir_plan::{GroupedDim, Number, PacketFormat, Reduce, ReduceOp, RoutineKind, View};

const DTYPES: [DType; 17] = [
    DType::Bool,
    DType::Double,
    DType::Float,
    DType::Half,
    DType::BFloat,
    DType::E4M3,
    DType::E5M2,
    DType::E8M0,
    DType::E2M1,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
];
/// One element type for each compute type, and booleans.
const COMPUTE_DTYPES: [DType; 5] = [DType::BFloat, DType::Double, DType::Int32, DType::UInt64, DType::Bool];
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
/// Minimum number of operators with a kernel; fewer mean that the table is incomplete.
const LEAST_OPERATORS: usize = 150;

/// Returns the compute capabilities (90 for 9.0) that NVRTC compiles for.
///
/// # Errors
/// NVRTC is missing.
pub fn capabilities() -> Result<Vec<i32>> {
    nvrtc::capabilities()
}

/// Compiles every `step`-th instance from `first` on for a compute capability.
///
/// # Errors
/// An instance cannot be generated or does not compile.
pub fn compile(capability: i32, first: usize, step: usize) -> Result<()> {
    let source = source(first, step).map_err(|it| ExecutorError::Internal(it.to_string()))?;
    let cubin = nvrtc::compile(&source, capability, "an instance")?;
    if cubin.starts_with(b"\x7fELF") {
        Ok(())
    } else {
        Err(ExecutorError::Internal(format!("NVRTC returned no machine code for {capability}")))
    }
}

/// Returns the source of every `step`-th instance from `first` on.
fn source(first: usize, step: usize) -> Result<String, Unsupported> {
    let mut kernels = Kernels::default();
    steps(&mut kernels)?;
    combinations(&mut kernels)?;
    packets(&mut kernels)?;
    peer_memory(&mut kernels)?;
    epilogues::epilogues(&mut kernels)?;
    attentions(&mut kernels)?;
    routines(&mut kernels)?;
    let source = kernels.sample(first, step).source();
    if source.contains("void,") {
        Err("an element type has no name in the kernels".into())
    } else {
        Ok(source)
    }
}

/// Returns a view at an address that allows the widest access.
pub(super) fn aligned_view(dtype: DType, view: &View) -> DeviceView<'_> {
    DeviceView { address: 4096, dtype, view }
}

/// Returns the launch of a single operation.
pub(super) fn single_op_launch(
    function: ScalarFunction,
    args: &[ElementwiseArg],
    out: &DeviceView,
) -> Result<Option<Launch>, Unsupported> {
    elementwise_launch(&[ElementwiseOp::new(function, args.to_vec(), *out)])
}

/// Returns a reduction and its result.
pub(super) fn reduction(op: ReduceOp, input: &View, axes: &[usize]) -> (Reduce, View) {
    let kept = (0..input.shape.len()).filter(|it| !axes.contains(it)).map(|it| input.shape[it]);
    let out = View::contiguous(1, kept.collect());
    (Reduce { op, init: Number::Int(0), input: input.clone(), axes: axes.to_vec(), out: out.clone() }, out)
}

fn add(kernels: &mut Kernels, launch: Option<Launch>) {
    if let Some(it) = launch {
        kernels.number(&it.kernel);
    }
}

/// Adds operators, conversions, copies, fills, and operations that use the result of an earlier one.
fn steps(kernels: &mut Kernels) -> Result<(), Unsupported> {
    let (dense, turned) = (
        View::contiguous(0, vec![4, 64]),
        View { buffer: 0, offset: 0, shape: vec![4, 64], strides: vec![1, 4] },
    );
    let repeated = View { buffer: 0, offset: 0, shape: vec![4, 64], strides: vec![1, 0] };
    let mut operators = 0;
    for op in OPS.iter().map(|row| row.op) {
        for dtype in COMPUTE_DTYPES {
            let args: Vec<ElementwiseArg> =
                (0..3).map(|_| ElementwiseArg::View(aligned_view(dtype, &dense))).collect();
            match single_op_launch(ScalarFunction::Op(op), &args, &aligned_view(dtype, &dense)) {
                Ok(launch) => {
                    operators += 1;
                    add(kernels, launch);
                }
                Err(Unsupported::Operator { op: refused, .. }) if refused == op => (),
                Err(other) => {
                    return Err(format!("`{}` is not named as the reason: {other}", op.name()).into());
                }
            }
        }
    }
    if operators <= LEAST_OPERATORS {
        return Err(format!("only {operators} operators have kernels").into());
    }
    for from in DTYPES {
        for to in DTYPES {
            add(
                kernels,
                single_op_launch(
                    ScalarFunction::Convert,
                    &[ElementwiseArg::View(aligned_view(from, &dense))],
                    &aligned_view(to, &dense),
                )?,
            );
        }
        for view in [&turned, &repeated] {
            add(
                kernels,
                single_op_launch(
                    ScalarFunction::Convert,
                    &[ElementwiseArg::View(aligned_view(from, view))],
                    &aligned_view(from, &dense),
                )?,
            );
        }
        add(
            kernels,
            single_op_launch(
                ScalarFunction::Convert,
                &[ElementwiseArg::Number(Number::Float(0.5))],
                &aligned_view(from, &dense),
            )?,
        );
        let row = View::contiguous(0, vec![256]);
        let numbers = [ElementwiseArg::Number(Number::Int(1)), ElementwiseArg::Number(Number::Int(2))];
        add(kernels, single_op_launch(ScalarFunction::Iota, &numbers, &aligned_view(from, &row))?);
    }
    // Operations that use an earlier result, as numbers and as bits.
    for dtype in DTYPES {
        let (from, between, copy) = (
            aligned_view(DType::BFloat, &dense),
            aligned_view(dtype, &dense),
            View { buffer: 1, ..dense.clone() },
        );
        let copy = DeviceView { address: 1 << 20, dtype, view: &copy };
        let out = DeviceView { address: 2 << 20, dtype: DType::Half, view: &dense };
        let step =
            |from, to| ElementwiseOp::new(ScalarFunction::Convert, vec![ElementwiseArg::View(from)], to);
        let launch = elementwise_launch(&[
            ElementwiseOp { is_stored: false, ..step(DeviceView { address: 3 << 20, ..from }, between) },
            step(between, copy),
            step(copy, out),
        ])?;
        add(kernels, launch);
    }
    Ok(())
}

/// Adds collectives that exchange packets: reductions and copies of halves and of single elements, in both
/// formats.
fn packets(kernels: &mut Kernels) -> Result<(), Unsupported> {
    for dtype in DTYPES {
        for (op, format, count) in REDUCTIONS
            .into_iter()
            .map(Some)
            .chain([None])
            .flat_map(|op| [PacketFormat::Ll, PacketFormat::Ll128].map(|format| (op, format)))
            .flat_map(|(op, format)| [(op, format, 64), (op, format, 63)])
        {
            let own = Source::Memory(4096);
            let send = Item { sources: vec![own], outputs: Vec::new(), packets: vec![8192; 3], count };
            let mut sources = vec![Source::Packets(1 << 20); 3];
            if op.is_some() {
                sources.insert(1, own);
            } else {
                sources.truncate(1);
            }
            let receive = Item { sources, outputs: vec![4096], packets: Vec::new(), count };
            let it = PacketCollective {
                format,
                dtype,
                op,
                items: vec![send, receive.clone(), receive],
                epoch: 1 << 20,
                flags_per_run: 1,
                flag: 1,
            };
            if let Ok(launch) = packet_launch(&it) {
                add(kernels, Some(launch));
            } else if op.is_none() {
                return Err(format!("copies of `{}` have no kernel", dtype.short_name()).into());
            }
        }
    }
    Ok(())
}

/// Adds collectives over peer memory: reductions of three inputs to three outputs, one copy to three outputs, and
/// three copies. Each instance has accesses of 16 bytes, and accesses of one element for the rest.
fn peer_memory(kernels: &mut Kernels) -> Result<(), Unsupported> {
    let view = View::contiguous(0, vec![67]);
    let reductions = COMPUTE_DTYPES.into_iter().flat_map(|dtype| REDUCTIONS.map(|op| (dtype, Some(op))));
    // Over the element types and operations, each kind of results has each end.
    let mut ends = [
        EndSignals::OfBlocks { needs_fence: true },
        EndSignals::OfBlocks { needs_fence: false },
        EndSignals::OfLastBlock,
    ]
    .into_iter()
    .cycle();
    for (dtype, op) in reductions.chain(DTYPES.map(|dtype| (dtype, None))) {
        let result = |inputs: usize, outputs: usize| PeerResult {
            inputs: vec![aligned_view(dtype, &view); inputs],
            outputs: vec![aligned_view(dtype, &view); outputs],
        };
        let works = match op {
            Some(_) => vec![vec![result(3, 3)]],
            None => vec![vec![result(1, 3)], vec![result(1, 1), result(1, 1), result(1, 1)]],
        };
        for results in works {
            let end = ends.next().unwrap_or(EndSignals::OfLastBlock);
            match peer_memory_launch(&peer_collective(op, results, end), 1 << 20) {
                Ok(launch) => add(kernels, Some(launch)),
                Err(_) if op.is_some() => (),
                Err(message) => return Err(message),
            }
        }
    }
    Ok(())
}

/// Returns a collective with two start signals.
pub(super) fn peer_collective(
    op: Option<ReduceOp>,
    results: Vec<PeerResult<'_>>,
    end: EndSignals,
) -> PeerCollective<'_> {
    let (start_signals, none) = (vec![1, 2], Vec::new);
    let (start_waits, end_signals, end_waits) = (none(), none(), none());
    PeerCollective { op, results, start_signals, start_waits, end_signals, end_waits, end_words: 2, end }
}

/// Adds attentions of both element types, with and without the causal mask, with rows of 64 and 128 elements.
fn attentions(kernels: &mut Kernels) -> Result<(), Unsupported> {
    for (dtype, columns) in [DType::BFloat, DType::Half].into_iter().flat_map(|it| [(it, 64), (it, 128)]) {
        let view = View::contiguous(0, vec![2, 64, columns]);
        let at = |address: u64| DeviceView { address: address << 20, dtype, view: &view };
        let (query, key, value, out) = (at(1), at(2), at(3), at(4));
        for is_causal in [false, true] {
            let it = AttentionCall { query, key, value, out, logsumexp: None, scale: 0.125, is_causal };
            add(kernels, Some(attention_launch(&it)?));
        }
        let [query, rows] = [8, 2048].map(|it| View::contiguous(0, vec![64, it, columns]));
        let at = |address: u64, view| DeviceView { address: address << 20, dtype, view };
        let (query, key, value, out) = (at(1, &query), at(2, &rows), at(3, &rows), at(4, &query));
        let it = AttentionCall { query, key, value, out, logsumexp: None, scale: 0.125, is_causal: false };
        add(kernels, Some(few_rows(&it)?.with_memory(1 << 30, 1 << 29)));
    }
    Ok(())
}

/// Adds routines of every form, copies in tiles and copies of shifted rows.
fn routines(kernels: &mut Kernels) -> Result<(), Unsupported> {
    let view = |shape: &[usize]| View::contiguous(0, shape.to_vec());
    let one_index = |length| View { strides: vec![0, 1], ..view(&[64, length]) };
    for dtype in COMPUTE_DTYPES {
        let mut routine = |kind, inputs: &[(DType, &View)], outs: &[(DType, &View)]| {
            let inputs: Vec<DeviceView> =
                inputs.iter().map(|(dtype, view)| aligned_view(*dtype, view)).collect();
            let outs: Vec<DeviceView> = outs.iter().map(|(dtype, view)| aligned_view(*dtype, view)).collect();
            routine_launch(kind, &inputs, &outs, 1 << 20).map(|it| add(kernels, it))
        };
        let (few, long, wide) = (view(&[64, 8]), view(&[64, 300]), view(&[600, 64]));
        let (all, one) = (view(&[64, 512]), one_index(512));
        for index in [&all, &one] {
            for first in [None, Some(2)] {
                routine(
                    RoutineKind::Gather { dim: 1, first },
                    &[(dtype, &long), (DType::Int64, index)],
                    &[(dtype, &all)],
                )?;
            }
        }
        for accumulates in [false, true] {
            for (dim, index) in [(1, &all), (1, &few), (1, &one), (0, &all)] {
                let operands = [(dtype, &all), (DType::Int64, index), (dtype, index)];
                routine(RoutineKind::Scatter { dim, accumulates }, &operands, &[(dtype, &all)])?;
            }
        }
        if dtype == DType::Bool {
            continue;
        }
        for is_descending in [false, true] {
            for (length, kept) in [(128, 8), (500, 2), (1000, 1000), (2000, 2000), (3000, 3000)] {
                let (line, top) = (view(&[4, length]), view(&[4, kept]));
                let outs = [(dtype, &top), (DType::Int64, &top)];
                routine(RoutineKind::Sort { dim: 1, is_descending }, &[(dtype, &line)], &outs)?;
            }
        }
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::FMin] {
            for (dim, it) in [(1, &few), (1, &long), (0, &few), (0, &wide)] {
                routine(RoutineKind::Scan { dim, op }, &[(dtype, it)], &[(dtype, it)])?;
            }
        }
        let (square, ends) = (view(&[64, 64]), view(&[4]));
        let cube = view(&[4, 64, 64]);
        for (dim, a, b, out) in [
            (GroupedDim::Rows, &square, &cube, &square),
            (GroupedDim::Depth, &square, &square, &cube),
            (GroupedDim::Columns, &cube, &square, &square),
        ] {
            let operands = [(dtype, a), (dtype, b), (DType::Int32, &ends)];
            routine(RoutineKind::GroupedGemm(dim), &operands, &[(dtype, out)])?;
        }
    }
    for dtype in DTYPES {
        // Accesses of 16 bytes, and of one element.
        for rows in [64, 67] {
            let out = view(&[64, rows]);
            let turned = View { strides: vec![1, 64], ..out.clone() };
            let from = ElementwiseArg::View(aligned_view(dtype, &turned));
            add(kernels, single_op_launch(ScalarFunction::Convert, &[from], &aligned_view(dtype, &out))?);
        }
    }
    let (from, to) = (view(&[4, 301]), View { strides: vec![305, 1], ..view(&[4, 301]) });
    let merged = merge_dims_in_any_order(&from.shape, &[&from.strides, &to.strides]);
    let copied = [&from, &to].map(|it| aligned_view(DType::BFloat, it));
    add(kernels, shifted_rows_launch([&copied[0], &copied[1]], &merged));
    Ok(())
}

/// Adds reductions over ranks, reductions of every form, also fused with elementwise operations, and matrix products.
fn combinations(kernels: &mut Kernels) -> Result<(), Unsupported> {
    let dense = View::contiguous(0, vec![4, 64]);
    let (long, high) = (View::contiguous(0, vec![4, 4096]), View::contiguous(0, vec![4096, 256]));
    for dtype in COMPUTE_DTYPES {
        for op in REDUCTIONS {
            let parts: Vec<ElementwiseArg> =
                (0..8).map(|_| ElementwiseArg::View(aligned_view(dtype, &dense))).collect();
            if let Ok(launch) =
                single_op_launch(ScalarFunction::Reduce(op), &parts, &aligned_view(dtype, &dense))
            {
                add(kernels, launch);
            }
            // One thread for each column; several lanes for each row; two passes with several lanes for each
            // column.
            for (input, axis) in [(&dense, 0), (&long, 1), (&high, 0)] {
                let (it, out) = reduction(op, input, &[axis]);
                for launch in
                    reduce_launches(&it, &aligned_view(dtype, input), &aligned_view(dtype, &out), 1 << 20)
                        .unwrap_or_default()
                {
                    add(kernels, Some(launch));
                }
            }
        }
        rows(kernels, dtype);
        let square = View::contiguous(0, vec![8, 8]);
        for bias in [None, Some(aligned_view(dtype, &square))] {
            let [a, b, out] = [(); 3].map(|()| aligned_view(dtype, &square));
            add(kernels, matmul_launch(&a, &b, bias.as_ref(), &out)?);
        }
    }
    Ok(())
}

/// Adds fused reductions of rows, with one lane and with several.
fn rows(kernels: &mut Kernels, dtype: DType) {
    for extent in [8, 1024] {
        let all = View::contiguous(0, vec![4, extent]);
        let repeated = View { buffer: 1, offset: 1, shape: vec![4, extent], strides: vec![1, 0] };
        for op in REDUCTIONS {
            let (it, out) = reduction(op, &all, &[1]);
            let reduced = aligned_view(dtype, &out);
            let reduction =
                RowReduction { reduce: &it, input: aligned_view(dtype, &all), out: reduced, is_stored: true };
            let factor = DeviceView { view: &repeated, ..reduced };
            let args = [aligned_view(dtype, &all), factor].map(ElementwiseArg::View).to_vec();
            let result = DeviceView { address: 1 << 20, ..aligned_view(dtype, &all) };
            let map = ElementwiseOp::new(ScalarFunction::Op(Op::Mul), args, result);
            add(kernels, row_launch(&[RowOp::Reduce(reduction), RowOp::Map(map)]));
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_instance_is_written() -> Result<(), crate::unsupported::Unsupported> {
        super::source(0, 1).map(|_| ())
    }
}
