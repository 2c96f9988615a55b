//! Attentions and their gradients as tasks of a library of the process (`hir_executor::AttentionLibrary`).

use grammar::DType;

use super::{
    Command, ExecutableBuilder, Site,
    attention::{FIRST_SCRATCH, has_separate_results},
};
use crate::{Result, buffer_assignment::Workspace};
use hir_executor::{AttentionLibrary, AttentionTask, DeviceTensor};
use hir_plan::{Attention, AttentionGradient, Computation, InstKind, Plan, View};

impl ExecutableBuilder<'_> {
    /// Lets the library compute an attention or its gradients. Returns false if there is no library, or if it does not compute this one.
    pub(super) fn lower_to_library(
        &mut self,
        site: Site<'_>,
        (attention, gradient): (&Attention, Option<&AttentionGradient>),
    ) -> Result<bool> {
        let locate = |view: &View| self.local_view(view).map(|it| (it.address, it.dtype));
        let Some(task) = task(attention, gradient, locate)? else { return Ok(false) };
        let computation = gradient.map_or(attention as &dyn Computation, |it| it);
        if !has_separate_results(computation, |view| self.local_view(view))? {
            return Ok(false);
        }
        let prepared = self.attention.clone().and_then(|it| {
            let Some(library) = it else { return Ok(None) };
            let bytes = library.prepare(&task).map_err(|it| it.to_string())?;
            Ok(Some((library, bytes)))
        });
        let (library, bytes) = match prepared {
            Ok(Some(it)) => it,
            Ok(None) => return Ok(false),
            Err(why) => {
                if !self.notes.iter().any(|it| it.ends_with(&why)) {
                    self.note(site, format_args!("no library computes the attention: {why}"));
                }
                return Ok(false);
            }
        };
        let mut workspace = self.memory.workspace(site.at as usize);
        if workspace.1 < bytes {
            workspace = (self.scratch_buffer(site, FIRST_SCRATCH, bytes)?, bytes);
        }
        self.first_calls.push(self.commands.len());
        self.push(site, Command::Attention(library, Box::new(AttentionTask { workspace, ..task })));
        if gradient.is_none() && attention.logsumexp.is_some() {
            self.lower_composition(site, (Vec::new(), Vec::new()), |first| {
                attention.finish_logsumexp(first)
            })?;
        }
        Ok(true)
    }
}

/// Returns the memory that a library needs for the attentions of a plan, besides their tensors.
pub(crate) fn workspaces(plan: &Plan, library: Option<&dyn AttentionLibrary>) -> Result<Vec<Workspace>> {
    let mut found = Vec::new();
    let Some(library) = library else { return Ok(found) };
    // The addresses are not known yet, but buffers are aligned.
    let locate = |view: &View| {
        let dtype = plan.dtype_of(view);
        Ok(((view.offset * dtype.size()) as u64, dtype))
    };
    for (inst, it) in plan.code.iter().enumerate() {
        let task = match &it.kind {
            InstKind::Attention(it) => task(it, None, locate)?,
            InstKind::AttentionGradient(it) => task(&it.attention, Some(it), locate)?,
            _ => None,
        };
        let bytes = task.map_or(0, |it| library.prepare(&it).unwrap_or(0));
        if bytes > 0 {
            found.push(Workspace { inst, bytes });
        }
    }
    Ok(found)
}

/// Returns the task; `None` if it is none that libraries know. `locate` returns the address and the element type of a view.
fn task(
    it: &Attention,
    gradient: Option<&AttentionGradient>,
    locate: impl Fn(&View) -> Result<(u64, DType)>,
) -> Result<Option<AttentionTask>> {
    let Attention { query, key, value, out, logsumexp, bias, mask, keep, is_causal, first_row, scale } = it;
    let is_plain = bias.is_none() && mask.is_none() && keep.is_none() && *first_row == 0;
    let rows = |it: &View| it.shape.iter().rev().nth(1).copied();
    if !is_plain || *is_causal && rows(query) != rows(key) || (gradient.is_some() && logsumexp.is_none()) {
        return Ok(None);
    }
    let batch = query.shape.len() - 2;
    let is_shared = |it: &View| batch > 0 && it.shape[batch - 1] > 1 && it.strides[batch - 1] == 0;
    let shares_keys = is_shared(key);
    // Gradients of keys that the program itself repeats are those of each head.
    if is_shared(value) != shares_keys || gradient.is_some_and(|it| it.shares_keys != shares_keys) {
        return Ok(None);
    }
    let heads = 1 + usize::from(shares_keys);
    let keys = |it: &View| if shares_keys { without(it, batch - 1) } else { it.clone() };
    let mut wanted =
        vec![(query.clone(), heads, 2), (keys(key), 1, 2), (keys(value), 1, 2), (out.clone(), heads, 2)];
    wanted.extend(logsumexp.iter().map(|it| (it.clone(), heads, 1)));
    if let Some(it) = gradient {
        let all = [(&it.result, heads), (&it.query, heads), (&it.key, 1), (&it.value, 1)];
        wanted.extend(all.map(|(view, heads)| (view.clone(), heads, 2)));
    }
    let mut tensors = Vec::with_capacity(wanted.len());
    for (view, heads, last) in &wanted {
        let (address, dtype) = locate(view)?;
        let half = matches!(dtype, DType::BFloat | DType::Half);
        let is_known = if *last == 1 { dtype == DType::Float } else { half };
        let Some((shape, strides)) = of_four_dims(view, *heads, *last).filter(|_| is_known) else {
            return Ok(None);
        };
        if !address.is_multiple_of(AttentionTask::ALIGNMENT as u64) || view.is_empty() {
            return Ok(None);
        }
        tensors.push(DeviceTensor { address, dtype, shape, strides });
    }
    let is_gradient = gradient.is_some();
    Ok(Some(AttentionTask { tensors, is_gradient, is_causal: *is_causal, scale: *scale, workspace: (0, 0) }))
}

/// Returns the first element of a dimension, without the dimension.
fn without(view: &View, dim: usize) -> View {
    let mut it = view.clone();
    it.shape.remove(dim);
    it.strides.remove(dim);
    it
}

/// Returns extents and strides with one dimension of the batch and one of heads before the last ones. `heads` dimensions become that of heads.
fn of_four_dims(view: &View, heads: usize, last: usize) -> Option<(Vec<usize>, Vec<usize>)> {
    let first = view.shape.len().checked_sub(last)?;
    let split = first.saturating_sub(heads);
    let (mut shape, mut strides) = (Vec::new(), Vec::new());
    for range in [0..split, split..first] {
        let (extent, stride) = joined(&view.shape[range.clone()], &view.strides[range])?;
        shape.push(extent);
        strides.push(stride);
    }
    shape.extend(&view.shape[first..]);
    strides.extend(&view.strides[first..]);
    Some((shape, strides))
}

/// Returns dimensions as one, if their elements are at equal distances.
fn joined(shape: &[usize], strides: &[usize]) -> Option<(usize, usize)> {
    let mut dims = shape.iter().zip(strides).rev().filter(|(extent, _)| **extent != 1);
    let Some((extent, stride)) = dims.next() else { return Some((1, 0)) };
    dims.try_fold((*extent, *stride), |(all, inner), (extent, stride)| {
        (*stride == all * inner).then_some((all * extent, inner))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sequences with six heads of eight rows, on one of two devices of a mesh; two heads of keys.
    fn attention() -> Attention {
        let [query, out] = [0, 1].map(|it| View::contiguous(it, vec![1, 2, 2, 3, 8, 16]));
        let keys = |it| View {
            shape: vec![1, 2, 2, 3, 8, 16],
            strides: vec![512, 256, 128, 0, 16, 1],
            ..View::contiguous(it, vec![])
        };
        let logsumexp = Some(View::contiguous(4, vec![1, 2, 2, 3, 8]));
        let (key, value) = (keys(2), keys(3));
        let (bias, mask, keep) = (None, None, None);
        Attention {
            query,
            key,
            value,
            out,
            logsumexp,
            bias,
            mask,
            keep,
            is_causal: true,
            first_row: 0,
            scale: 0.5,
        }
    }

    fn shapes(it: &Attention, gradient: Option<&AttentionGradient>) -> Option<Vec<Vec<usize>>> {
        let dtype = |it: &View| if it.buffer == 4 { DType::Float } else { DType::BFloat };
        let found = task(it, gradient, |view| Ok((4096, dtype(view)))).ok().flatten()?;
        Some(found.tensors.into_iter().map(|it| it.shape).collect())
    }

    #[test]
    fn dimensions_of_a_mesh_and_of_shared_heads_are_joined() {
        let it = attention();
        let [wide, narrow] = [vec![2, 6, 8, 16], vec![2, 2, 8, 16]];
        let forward = [wide.clone(), narrow.clone(), narrow.clone(), wide.clone(), vec![2, 6, 8]];
        assert_eq!(shapes(&it, None), Some(forward.to_vec()));
        let gradient = AttentionGradient {
            result: it.out.clone(),
            query: it.query.clone(),
            key: View::contiguous(5, vec![1, 2, 2, 8, 16]),
            value: View::contiguous(6, vec![1, 2, 2, 8, 16]),
            attention: it.clone(),
            shares_keys: true,
        };
        let gradients = [wide.clone(), wide, narrow.clone(), narrow];
        assert_eq!(shapes(&it, Some(&gradient)), Some([&forward[..], &gradients].concat()));
    }

    #[test]
    fn other_attentions_are_not_for_libraries() {
        let it = attention();
        let scores = View::contiguous(7, vec![1, 2, 2, 3, 8, 8]);
        let bias = Some(scores.clone());
        let fewer_rows = it.query.narrow(4, 0, 4);
        let apart = View { strides: vec![0, 1000, 300, 128, 16, 1], ..it.query.clone() };
        let of_each_head = View::contiguous(3, it.value.shape.clone());
        for other in [
            Attention { value: of_each_head, ..it.clone() },
            Attention { bias, ..it.clone() },
            Attention { mask: Some(scores), ..it.clone() },
            Attention { first_row: 1, ..it.clone() },
            Attention { query: fewer_rows, ..it.clone() },
            Attention { query: apart, ..it },
        ] {
            assert_eq!(shapes(&other, None), None, "{other:?}");
        }
    }
}
