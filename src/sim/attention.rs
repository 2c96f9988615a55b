//! Runs an attention, for some rows at a time, and its gradients: computes the instructions that define them on buffers of their own.
//!
//! All operands are read before a result is written, so the views may overlap.

use grammar::DType;

use super::{
    RunNotes,
    kernels::{self, KernelError},
    memory::Memory,
    step::{Memories, Result},
};
use hir_plan::{
    Attention, AttentionComposition, AttentionGradient, Buffer, BufferNo, Computation, InstKind, View,
};
use hir_tensor::dense::DenseTensor;

/// The largest number of scores in memory, unless those of one row are more.
const MAX_SCORES: usize = 1 << 24;

/// Runs the attention on the memory of a rank.
pub(super) fn run(rank: usize, it: &Attention, space: &mut Memories<'_>, notes: &mut RunNotes) -> Result<()> {
    run_in_parts(rank, it, MAX_SCORES, space, notes)
}

/// Computes the gradients of an attention on the memory of a rank.
pub(super) fn run_gradient(
    rank: usize,
    it: &AttentionGradient,
    space: &mut Memories<'_>,
    notes: &mut RunNotes,
) -> Result<()> {
    let Copied { computation: copy, mut buffers } = copied(rank, it, space)?;
    let dtype = space.dtype(rank, &it.attention.query)?;
    let (code, temporaries) = copy.composition(0, dtype, buffers.len() as BufferNo, MAX_SCORES);
    buffers.extend(temporaries);
    let mut private = run_privately(rank, [it, &copy], &buffers, &code, space, notes)?;
    for (to, from) in it.gradients().into_iter().zip(copy.gradients()) {
        let block = Memories::Private(&mut private).load(0, from)?;
        space.store(rank, to, block, notes)?;
    }
    Ok(())
}

fn run_in_parts(
    rank: usize,
    it: &Attention,
    max_scores: usize,
    space: &mut Memories<'_>,
    notes: &mut RunNotes,
) -> Result<()> {
    let mut results = Vec::new();
    for part in it.parts(max_scores) {
        results.extend(run_part(rank, &part, space, notes)?);
    }
    results.into_iter().try_for_each(|(view, block)| space.store(rank, &view, block, notes))
}

/// Returns the results of a part of the rows, each with the view that it belongs to.
fn run_part(
    rank: usize,
    part: &Attention,
    space: &mut Memories<'_>,
    notes: &mut RunNotes,
) -> Result<Vec<(View, DenseTensor)>> {
    let Copied { computation: copy, mut buffers } = copied(rank, part, space)?;
    let dtype = space.dtype(rank, &part.query)?;
    let AttentionComposition { code, buffers: temporaries, weights } =
        copy.composition(dtype, buffers.len() as BufferNo, usize::MAX);
    buffers.extend(temporaries);
    let mut private = run_privately(rank, [part, &copy], &buffers, &code, space, notes)?;
    let private = Memories::Private(&mut private);
    let mut results = Vec::new();
    for (to, from) in part.results().zip(copy.results()) {
        results.push((to.clone(), private.load(0, from)?));
    }
    if let (true, Some((_, out))) = (notes.exactness.shadows, results.first_mut()) {
        let value = private.load(0, &copy.value)?;
        if !kernels::is_finite(&value) {
            kernels::mark_hidden_values(&private.load(0, &weights)?, &value, out);
        }
    }
    Ok(results)
}

/// A computation on buffers of its own.
struct Copied<C> {
    computation: C,
    /// One for each view, contiguous.
    buffers: Vec<Buffer>,
}

/// Returns a computation with a buffer of its own for each view.
fn copied<C: Computation + Clone>(rank: usize, it: &C, space: &Memories<'_>) -> Result<Copied<C>> {
    let (mut buffers, mut fault) = (Vec::new(), None);
    let mut computation = it.clone();
    computation.change_views(&mut |view| {
        let dtype = space.dtype(rank, view).unwrap_or_else(|it| {
            fault = Some(it);
            DType::Float
        });
        buffers.push(Buffer::new("", dtype, view.len()));
        *view = View::contiguous(buffers.len() as BufferNo - 1, view.shape.clone());
    });
    fault.map_or(Ok(Copied { computation, buffers }), Err)
}

/// Runs the instructions that define a computation on a copy of its operands. Returns the memory, which has these buffers.
fn run_privately(
    rank: usize,
    [it, copy]: [&dyn Computation; 2],
    buffers: &[Buffer],
    code: &[InstKind],
    space: &Memories<'_>,
    notes: &mut RunNotes,
) -> Result<Memory> {
    let mut memory = Memory::new(buffers).map_err(KernelError::from)?;
    let mut private = Memories::Private(&mut memory);
    let (mut from, mut to) = (Vec::new(), Vec::new());
    it.visit_views(&mut |view, is_written| from.push((view, is_written)));
    copy.visit_views(&mut |view, _| to.push(view));
    for ((from, _), to) in from.into_iter().zip(to).filter(|((_, is_written), _)| !is_written) {
        let block = space.read(rank, from, notes)?;
        private.store(0, to, block, notes)?;
    }
    code.iter().try_for_each(|kind| private.run(0, kind, notes))?;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the results of a causal attention of 2 × 3 × 5 rows and 7 keys: in parts in memory, and as instructions
    /// with parts of the scores.
    fn results(max_scores: usize) -> Result<[Vec<f64>; 2]> {
        let shapes = [vec![2, 3, 5, 4], vec![2, 3, 7, 4], vec![2, 3, 7, 2], vec![2, 3, 5, 2], vec![2, 3, 5]];
        let [query, key, value, out, logsumexp] =
            [0, 1, 2, 3, 4].map(|number: u32| View::contiguous(number, shapes[number as usize].clone()));
        let mut buffers: Vec<Buffer> =
            shapes.iter().map(|it| Buffer::new("", DType::Float, it.iter().product())).collect();
        let it = Attention {
            query,
            key,
            value,
            bias: None,
            mask: None,
            keep: None,
            is_causal: true,
            first_row: 0,
            scale: 0.5,
            out,
            logsumexp: Some(logsumexp),
        };
        let composition = it.composition(DType::Float, 5, max_scores);
        buffers.extend(composition.buffers);
        let outputs = |code: &[InstKind]| {
            let mut memory = Memory::new(&buffers).map_err(KernelError::from)?;
            let (mut memory, mut notes) = (Memories::Private(&mut memory), RunNotes::default());
            for (start, view) in it.operands().enumerate() {
                let iota = InstKind::Iota {
                    to: Box::new(View::contiguous(view.buffer, vec![view.len()])),
                    start: start as i64 - 60,
                    step: 1,
                };
                memory.run(0, &iota, &mut notes)?;
            }
            match code {
                [] => run_in_parts(0, &it, max_scores, &mut memory, &mut notes)?,
                code => code.iter().try_for_each(|kind| memory.run(0, kind, &mut notes))?,
            }
            let mut all = Vec::new();
            for view in it.results() {
                all.extend(memory.load(0, view)?.data.to_f64());
            }
            Ok::<_, crate::step::StepError>(all)
        };
        Ok([outputs(&[])?, outputs(&composition.code)?])
    }

    #[test]
    fn parts_of_the_rows_have_the_same_results() -> Result<()> {
        let [whole, as_instructions] = results(usize::MAX)?;
        assert_eq!(whole, as_instructions);
        assert!(whole.iter().all(|it| it.is_finite()));
        // One row, two rows, one matrix, several of them.
        for max_scores in [0, 15, 35, 36, 80, 105, 106] {
            assert_eq!(results(max_scores)?, [whole.clone(), whole.clone()], "{max_scores}");
        }
        Ok(())
    }
}
