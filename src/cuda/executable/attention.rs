//! Lowers an attention and its gradients: to a task of a library that the process has, to one kernel, which keeps the scores in registers, or to
//! the instructions that define it, with the scores in scratch memory.

use rustc_hash::FxHashSet;

use super::{
    ExecutableBuilder, Site,
    fusion::{FusionRole, FusionScope, fusion_roles},
};
use crate::{
    Result,
    kernels::{AttentionCall, DeviceView, Launch, attention_launch, few_rows},
    unsupported::Unsupported,
};
use hir_plan::{
    Attention, AttentionComposition, AttentionGradient, Buffer, BufferNo, Computation, Inst, InstKind, View,
    ViewOnRank,
};

/// The compute capability whose instructions the kernel of many rows uses, and the first one with those of the kernel of few rows.
const CAPABILITY: i32 = 90;
const TILES_CAPABILITY: i32 = 80;
/// The largest number of scores in memory, unless those of one row are more.
const MAX_SCORES: usize = 1 << 28;
/// The number of the first block of scratch memory; the instructions themselves use those before it.
pub(super) const FIRST_SCRATCH: usize = 4;

impl ExecutableBuilder<'_> {
    pub(super) fn lower_attention(&mut self, site: Site<'_>, it: &Attention) -> Result<()> {
        if self.device.capability >= TILES_CAPABILITY
            && let Ok(found) = launch_of(it, |view| self.local_view(view), few_rows)?
        {
            let (scratch, counters) = match found.counters {
                0 => (0, 0),
                count => (
                    self.scratch_buffer(site, FIRST_SCRATCH, found.scratch_bytes)?,
                    self.counters(site, count)?,
                ),
            };
            self.push_launch(site, Some(found.with_memory(scratch, counters)));
            return Ok(());
        }
        if self.lower_to_library(site, (it, None))? {
            return Ok(());
        }
        if self.device.capability == CAPABILITY {
            match launch(it, |view| self.local_view(view))? {
                Ok(launch) => {
                    self.push_launch(site, Some(launch));
                    return Ok(());
                }
                Err(why) => self.note(
                    site,
                    format_args!("the attention runs as several kernels, with its scores in memory: {why}"),
                ),
            }
        }
        let mut results = SeparateResults::new(self);
        let mut inner = it.clone();
        if !has_separate_results(it, |view| self.local_view(view))? {
            [&mut inner.out]
                .into_iter()
                .chain(&mut inner.logsumexp)
                .try_for_each(|to| results.replace(to))?;
        }
        let dtype = self.local_view(&it.query)?.dtype;
        let SeparateResults { buffers, copies, .. } = results;
        self.lower_composition(site, (buffers, copies), |first| {
            let AttentionComposition { code, buffers, .. } = inner.composition(dtype, first, MAX_SCORES);
            (code, buffers)
        })
    }

    pub(super) fn lower_attention_gradient(&mut self, site: Site<'_>, it: &AttentionGradient) -> Result<()> {
        if self.lower_to_library(site, (&it.attention, Some(it)))? {
            return Ok(());
        }
        self.note(
            site,
            "the gradient of the attention runs as several kernels, with a part of its scores in memory at a time",
        );
        let mut results = SeparateResults::new(self);
        let mut inner = it.clone();
        if !has_separate_results(it, |view| self.local_view(view))? {
            let all = [&mut inner.query, &mut inner.key, &mut inner.value];
            all.into_iter().try_for_each(|to| results.replace(to))?;
        }
        let dtype = self.local_view(&it.attention.query)?.dtype;
        let (SeparateResults { buffers, copies, .. }, rank) = (results, self.plan.rank);
        self.lower_composition(site, (buffers, copies), |first| {
            inner.composition(rank, dtype, first, AttentionGradient::MAX_SCORES)
        })
    }

    /// Lowers the instructions that define an instruction, with their temporary buffers in scratch memory. `compose` returns both, numbered
    /// from the given buffer on: behind those of results, from which copies follow.
    pub(super) fn lower_composition(
        &mut self,
        site: Site<'_>,
        (results, copies): (Vec<Buffer>, Vec<InstKind>),
        compose: impl FnOnce(BufferNo) -> (Vec<InstKind>, Vec<Buffer>),
    ) -> Result<()> {
        let (kinds, temporaries) = compose((self.plan.buffers.len() + results.len()) as BufferNo);
        let code: Vec<Inst> =
            kinds.into_iter().chain(copies).map(|kind| Inst { kind, ..*site.inst }).collect();
        for (number, buffer) in (FIRST_SCRATCH..).zip(results.into_iter().chain(temporaries)) {
            let address = self.scratch_buffer(site, number, buffer.len * buffer.dtype.size())?;
            self.temporaries.push((address, buffer.dtype));
        }
        let buffers = &self.plan.buffers;
        let mut escapes = vec![true; buffers.len()];
        escapes.resize(buffers.len() + self.temporaries.len(), false);
        let temporaries = &self.temporaries;
        let dtype = |it: BufferNo| match buffers.get(it as usize) {
            Some(buffer) => buffer.dtype,
            None => temporaries[it as usize - buffers.len()].1,
        };
        let source = |it: &ViewOnRank| self.source(it);
        let scope = FusionScope {
            rank: self.plan.rank,
            code: &code,
            peer_collectives: &[],
            escapes,
            dtype: &dtype,
            source: &source,
        };
        let roles = fusion_roles(&scope, |view| self.local_view(view));
        for (part, role) in code.iter().zip(roles) {
            // The epilogue of a product is an instruction of the plan.
            let role = match role {
                FusionRole::ProductWithEpilogue(_) | FusionRole::EpilogueOf(_) => FusionRole::Unfused,
                role => role,
            };
            self.lower_with_role(Site { inst: part, ..site }, role, &mut FxHashSet::default())?;
        }
        self.temporaries.clear();
        Ok(())
    }
}

/// Buffers of their own for results that overlap operands or each other. The instructions of a part of the rows write its results before those
/// of the next part read its operands.
struct SeparateResults<'b> {
    builder: &'b ExecutableBuilder<'b>,
    /// Their numbers follow those of the plan.
    buffers: Vec<Buffer>,
    /// Copies from these buffers to where the results belong.
    copies: Vec<InstKind>,
}

impl<'b> SeparateResults<'b> {
    /// Begins with none.
    fn new(builder: &'b ExecutableBuilder<'b>) -> Self {
        Self { builder, buffers: Vec::new(), copies: Vec::new() }
    }

    /// Replaces a result.
    fn replace(&mut self, to: &mut View) -> Result<()> {
        let number = (self.builder.plan.buffers.len() + self.buffers.len()) as BufferNo;
        let from = View::contiguous(number, to.shape.clone());
        let dtype = self.builder.local_view(to)?.dtype;
        self.buffers.push(Buffer::new("result", dtype, from.len()));
        let to = std::mem::replace(to, from.clone());
        let [from, to] = [from, to].map(|view| Box::new(ViewOnRank { rank: self.builder.plan.rank, view }));
        self.copies.push(InstKind::Copy { from, to });
        Ok(())
    }
}

/// Returns true if the results of a computation overlap neither its operands nor each other. `locate` maps views of this rank's memory.
pub(super) fn has_separate_results<'v>(
    it: &'v dyn Computation,
    locate: impl Fn(&'v View) -> Result<DeviceView<'v>>,
) -> Result<bool> {
    let (mut operands, mut results) = (Vec::new(), Vec::new());
    it.visit_views(&mut |view, is_written| if is_written { &mut results } else { &mut operands }.push(view));
    let operands = operands.into_iter().map(&locate).collect::<Result<Vec<_>, _>>()?;
    let results = results.into_iter().map(&locate).collect::<Result<Vec<_>, _>>()?;
    let overlaps = |(at, result): (usize, &DeviceView)| {
        operands.iter().chain(&results[..at]).any(|other| other.may_alias(result))
    };
    Ok(!results.iter().enumerate().any(overlaps))
}

/// Returns the launch of the kernel of many rows, or why it does not compute this attention.
fn launch<'v>(
    it: &'v Attention,
    locate: impl Fn(&'v View) -> Result<DeviceView<'v>>,
) -> Result<Result<Launch, Unsupported>> {
    launch_of(it, locate, attention_launch)
}

/// Returns what `kernel` launches, or why it does not compute this attention.
fn launch_of<'v, L>(
    it: &'v Attention,
    locate: impl Fn(&'v View) -> Result<DeviceView<'v>>,
    kernel: impl Fn(&AttentionCall) -> Result<L, Unsupported>,
) -> Result<Result<L, Unsupported>> {
    if it.bias.is_some() {
        return Ok(Err("it has a bias".into()));
    }
    if it.mask.is_some() {
        return Ok(Err("it has a mask of its own".into()));
    }
    if it.keep.is_some() {
        return Ok(Err("it has a dropout".into()));
    }
    if !has_separate_results(it, &locate)? {
        return Ok(Err("a result overlaps an operand".into()));
    }
    Ok(kernel(&AttentionCall {
        query: locate(&it.query)?,
        key: locate(&it.key)?,
        value: locate(&it.value)?,
        out: locate(&it.out)?,
        logsumexp: it.logsumexp.as_ref().map(&locate).transpose()?,
        scale: it.scale,
        is_causal: it.is_causal,
    }))
}

#[cfg(test)]
mod tests {
    use grammar::DType;

    use super::launch;
    use crate::kernels::DeviceView;
    use hir_plan::{Attention, View};

    /// An attention of 2 × 70 rows of 64 elements; the buffers have separate memory.
    fn attention() -> Attention {
        let rows = |buffer| View::contiguous(buffer, vec![2, 70, 64]);
        Attention {
            query: rows(0),
            key: rows(1),
            value: rows(2),
            bias: None,
            mask: None,
            keep: None,
            is_causal: true,
            first_row: 0,
            scale: 0.125,
            out: rows(3),
            logsumexp: Some(View::contiguous(4, vec![2, 70])),
        }
    }

    fn located(view: &View, dtype: DType) -> DeviceView<'_> {
        let address = u64::from(view.buffer + 1) << 24;
        DeviceView { address: address + (view.offset * dtype.size()) as u64, dtype, view }
    }

    /// Returns why an attention on buffers of a type is not one kernel.
    fn why(it: &Attention, dtype: DType) -> Option<String> {
        launch(it, |view| Ok(located(view, dtype)))
            .map_or_else(|it| Some(it.to_string()), |it| it.err().map(|it| it.to_string()))
    }

    #[test]
    fn an_attention_is_one_kernel() {
        let it = attention();
        assert_eq!(why(&it, DType::Half), None);
        assert_eq!(why(&Attention { is_causal: false, logsumexp: None, ..it.clone() }, DType::BFloat), None);
        // The query is a part of wider rows.
        let query = View { offset: 64, strides: vec![70 * 192, 192, 1], ..it.query.clone() };
        assert_eq!(why(&Attention { query: query.clone(), ..it.clone() }, DType::Half), None);
        let unlike = "its operands and its result are not all of type `bf16` or all of type `half`";
        assert_eq!(why(&it, DType::Float).as_deref(), Some(unlike));
        let refuse = |it: Attention, expected: &str| {
            assert_eq!(why(&it, DType::Half).as_deref(), Some(expected));
        };
        let scores = View::contiguous(5, vec![2, 70, 70]);
        refuse(Attention { bias: Some(scores.clone()), ..it.clone() }, "it has a bias");
        refuse(Attention { mask: Some(scores), ..it.clone() }, "it has a mask of its own");
        refuse(Attention { scale: -1.0, ..it.clone() }, "its scale -1 is not positive");
        refuse(Attention { out: it.value.clone(), ..it.clone() }, "a result overlaps an operand");
        let unaligned = View { offset: 3, ..query };
        refuse(
            Attention { query: unaligned, ..it },
            "its rows are not contiguous, or not aligned to 16 bytes",
        );
    }
}
