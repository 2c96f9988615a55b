//! Finds the instructions of an attention, and fuses them into one kernel that keeps the scores in registers.
//!
//! They are those of `plan/attention.rs`, consecutive on one stream:
//!
//! ```text
//! scores  = q · kᵀ                      largest = maxima of the rows of scores
//! scores  = scores · scale              scores  = exp(scores - largest)
//! scores  = where(mask, scores, -∞)     sums    = sums of the rows of scores
//!                                       weights = scores / sums
//! out     = weights · v                 logsumexp = largest + log(sums)
//! ```
//!
//! The mask is optional, and has to be the causal one; so is the last line. Nothing else may access the intermediate
//! results. The scores are of type `float`, so that the kernel rounds nothing that the instructions do not round.

use grammar::{dtype::DType, ops::Op};
use rustc_hash::FxHashSet;

use super::uses::UseAnalysis;
use crate::{
    cuda::{
        error::CudaError,
        kernels::{AttentionCall, DeviceView, Launch, attention_launch},
    },
    plan::{Arg, BufferNo, Gemm, InstKind, Number, Plan, ReduceOp, View},
};

/// The compute capability whose instructions the kernel uses.
pub(super) const CAPABILITY: i32 = 90;

/// The instructions of an attention.
struct AttentionMatch<'a> {
    /// Indices in `Plan::code`, in order.
    insts: Vec<u32>,
    query: &'a View,
    key: View,
    value: &'a View,
    out: &'a View,
    logsumexp: Option<&'a View>,
    scale: f64,
    is_causal: bool,
    /// The buffers of the scores, the weights, the maxima and the sums.
    temporaries: [BufferNo; 4],
}

/// An attention that is one kernel.
pub(super) struct FusedAttention {
    /// Indices in `Plan::code`, in order.
    pub insts: Vec<u32>,
    pub launch: Launch,
}

/// Returns the attentions that are one kernel each, and for each other one the index of its first instruction and why
/// the kernel does not compute it. `locate` maps views of this rank's memory.
pub(super) fn fused_attentions(
    plan: &Plan,
    uses: &UseAnalysis,
    locate: &impl Fn(&View) -> Result<(u64, DType), CudaError>,
) -> (Vec<FusedAttention>, Vec<(u32, String)>) {
    let matches = attentions(plan, uses);
    let insts: FxHashSet<u32> = matches.iter().flat_map(|it| it.insts.iter().copied()).collect();
    // One attention may use the intermediate results of another one as its operands.
    let operands: FxHashSet<BufferNo> =
        matches.iter().flat_map(AttentionMatch::operands_and_results).collect();
    // Each attention writes its intermediate results before it reads them.
    let is_private = |buffer: &BufferNo| uses.is_private_to(&insts, *buffer) && !operands.contains(buffer);
    let (mut fused, mut unfused) = (Vec::new(), Vec::new());
    for it in &matches {
        let launch = match it.temporaries.iter().all(is_private) {
            true => it.launch(locate),
            false => Err("another statement accesses its scores".to_owned()),
        };
        match launch {
            Ok(launch) => fused.push(FusedAttention { insts: it.insts.clone(), launch }),
            Err(why) => unfused.push((it.insts[0], why)),
        }
    }
    (fused, unfused)
}

/// Returns the attentions of a plan.
fn attentions<'a>(plan: &'a Plan, uses: &UseAnalysis) -> Vec<AttentionMatch<'a>> {
    let mut streams: Vec<Vec<u32>> = vec![Vec::new(); plan.streams.len()];
    for (at, inst) in (0..).zip(&plan.code) {
        if inst.kind.does_nothing_on_stream() {
            continue;
        }
        if let Some(stream) = streams.get_mut(inst.stream as usize) {
            stream.push(at);
        }
    }
    let mut found = Vec::new();
    for stream in &streams {
        let mut rest = &stream[..];
        while let [_, behind @ ..] = rest {
            match attention_at(plan, uses, rest) {
                Some(it) => {
                    rest = &rest[it.insts.len()..];
                    found.push(it);
                }
                None => rest = behind,
            }
        }
    }
    found
}

/// Matches the instructions of a stream, from the first one of `at`.
fn attention_at<'a>(plan: &'a Plan, uses: &UseAnalysis, at: &[u32]) -> Option<AttentionMatch<'a>> {
    let mut cursor = Cursor { plan, at, position: 0 };
    let first = cursor.gemm()?;
    let scores = &first.out;
    let Number::Float(scale) = cursor.map_with_number(Op::Mul, scores)? else { return None };
    let is_causal = match cursor.map(Op::Where) {
        Some(([Arg::View(mask), Arg::View(it), Arg::Number(Number::Float(lowest))], out))
            if it == scores
                && out == scores
                && *lowest == f64::NEG_INFINITY
                && is_causal(plan, uses, mask, scores) =>
        {
            true
        }
        Some(_) => return None,
        None => false,
    };
    let largest = cursor.reduce_rows(ReduceOp::Max, scores)?;
    cursor.map_with_rows(Op::Sub, scores, largest).filter(|it| *it == scores)?;
    match cursor.map(Op::Exp)? {
        ([Arg::View(it)], out) if it == scores && out == scores => {}
        _ => return None,
    }
    let sums = cursor.reduce_rows(ReduceOp::Sum, scores)?;
    let weights = cursor.map_with_rows(Op::Div, scores, sums)?;
    let second = cursor.gemm().filter(|it| it.a == *weights)?;
    let logsumexp = cursor.logsumexp(largest, sums);
    let dtype = |it: &View| plan.buffers[it.buffer as usize].dtype;
    let temporaries = [scores, weights, largest, sums].map(|it| it.buffer);
    let distinct: FxHashSet<BufferNo> = temporaries.into_iter().collect();
    let is_float = [scores, largest, sums].into_iter().all(|it| dtype(it) == DType::Float);
    let is_rounded = dtype(weights) == dtype(&second.b);
    let sums_are_float = logsumexp.is_none_or(|it| dtype(it) == DType::Float);
    (is_float && is_rounded && sums_are_float && distinct.len() == temporaries.len()).then_some(())?;
    let dims = first.b.shape.len();
    let mut transposed: Vec<usize> = (0..dims).collect();
    transposed.swap(dims - 2, dims - 1);
    Some(AttentionMatch {
        insts: at[..cursor.position].to_vec(),
        query: &first.a,
        key: first.b.permute(&transposed),
        value: &second.b,
        out: &second.out,
        logsumexp,
        scale,
        is_causal,
        temporaries,
    })
}

impl AttentionMatch<'_> {
    fn operands_and_results(&self) -> impl Iterator<Item = BufferNo> {
        let views = [self.query, &self.key, self.value, self.out].into_iter().chain(self.logsumexp);
        views.map(|it| it.buffer)
    }

    /// Returns the launch of the kernel, or why it does not compute this attention.
    fn launch(&self, locate: &impl Fn(&View) -> Result<(u64, DType), CudaError>) -> Result<Launch, String> {
        fn view<'v>(
            it: &'v View,
            locate: &impl Fn(&View) -> Result<(u64, DType), CudaError>,
        ) -> Result<DeviceView<'v>, String> {
            // A view that is not mapped is reported when the instruction is lowered on its own.
            let (address, dtype) = locate(it).map_err(|it| it.to_string())?;
            Ok(DeviceView { address, dtype, view: it })
        }
        attention_launch(&AttentionCall {
            query: view(self.query, locate)?,
            key: view(&self.key, locate)?,
            value: view(self.value, locate)?,
            out: view(self.out, locate)?,
            logsumexp: self.logsumexp.map(|it| view(it, locate)).transpose()?,
            scale: self.scale,
            is_causal: self.is_causal,
        })
    }
}

/// A position in the instructions of a stream. A method that finds what it looks for moves behind it.
struct Cursor<'a, 'l> {
    plan: &'a Plan,
    at: &'l [u32],
    position: usize,
}

impl<'a> Cursor<'a, '_> {
    fn next<T>(&mut self, matches: impl Fn(&'a InstKind) -> Option<T>) -> Option<T> {
        let found = matches(&self.plan.code[*self.at.get(self.position)? as usize].kind)?;
        self.position += 1;
        Some(found)
    }

    /// A matrix product without a bias.
    fn gemm(&mut self) -> Option<&'a Gemm> {
        self.next(|it| match it {
            InstKind::Gemm(it) if it.bias.is_none() && it.a.shape.len() >= 2 => Some(&**it),
            _ => None,
        })
    }

    fn map(&mut self, op: Op) -> Option<(&'a [Arg], &'a View)> {
        self.next(|it| match it {
            InstKind::Map { op: own, args, out } if *own == op => Some((args.as_slice(), &**out)),
            _ => None,
        })
    }

    /// An operation on a view and a number, in place: returns the number.
    fn map_with_number(&mut self, op: Op, view: &View) -> Option<Number> {
        match self.map(op)? {
            ([Arg::View(it), Arg::Number(number)], out) if it == view && out == view => Some(*number),
            _ => None,
        }
    }

    /// An operation on a view and one value for each row: returns the result, which has the shape of the view.
    fn map_with_rows(&mut self, op: Op, view: &View, rows: &View) -> Option<&'a View> {
        let repeated =
            View { shape: view.shape.clone(), strides: [&rows.strides[..], &[0]].concat(), ..rows.clone() };
        match self.map(op)? {
            ([Arg::View(it), Arg::View(other)], out)
                if it == view && *other == repeated && out.shape == view.shape =>
            {
                Some(out)
            }
            _ => None,
        }
    }

    /// A reduction of the last axis: returns the result.
    fn reduce_rows(&mut self, op: ReduceOp, view: &View) -> Option<&'a View> {
        let neutral = match op {
            ReduceOp::Max => f64::NEG_INFINITY,
            _ => 0.0,
        };
        self.next(|it| match it {
            InstKind::Reduce(it)
                if it.op == op
                    && it.input == *view
                    && it.axes == [view.shape.len() - 1]
                    && matches!(it.init, Number::Float(init) if init == neutral)
                        | matches!(it.init, Number::Int(0) if neutral == 0.0) =>
            {
                Some(&it.out)
            }
            _ => None,
        })
    }

    /// The logarithm of the sums, in place, and its sum with the maxima: returns the result.
    fn logsumexp(&mut self, largest: &View, sums: &View) -> Option<&'a View> {
        let start = self.position;
        let found = match (self.map(Op::Log), self.map(Op::Add)) {
            (Some(([Arg::View(it)], log)), Some(([Arg::View(a), Arg::View(b)], out)))
                if it == sums && log == sums && a == largest && b == sums && out.shape == sums.shape =>
            {
                Some(out)
            }
            _ => None,
        };
        if found.is_none() {
            self.position = start;
        }
        found
    }
}

/// Returns true if a mask of scores is true where the index of the column is at most that of the row, and false elsewhere.
fn is_causal(plan: &Plan, uses: &UseAnalysis, mask: &View, scores: &View) -> bool {
    let ([.., rows, keys], [outer @ .., row, key]) = (&scores.shape[..], &mask.strides[..]) else {
        return false;
    };
    let is_repeated = mask.shape == scores.shape
        && mask.offset == 0
        && outer.iter().zip(&mask.shape).all(|(stride, extent)| *stride == 0 || *extent == 1)
        && (*row == *keys || *rows == 1)
        && (*key == 1 || *keys == 1);
    let writer = |buffer| uses.only_writer(buffer).map(|at| &plan.code[at as usize].kind);
    let Some(InstKind::Map { op: Op::Ge, args, out }) = writer(mask.buffer) else { return false };
    let [Arg::View(by_row), Arg::View(by_column)] = args.as_slice() else { return false };
    let has_strides = |it: &View, expected: [usize; 2]| it.offset == 0 && it.strides == expected;
    let compares_indices = **out == View::contiguous(mask.buffer, vec![*rows, *keys])
        && by_row.buffer == by_column.buffer
        && has_strides(by_row, [1, 0])
        && has_strides(by_column, [0, 1]);
    let is_index = matches!(writer(by_row.buffer), Some(InstKind::Iota { to, start: 0, step: 1 })
        if to.offset == 0 && to.strides == [1]);
    is_repeated && compares_indices && is_index
}
