//! The parts of a task that follow each other, so that the scores that gradients keep in memory are few.

use hir_executor::AttentionTask;

/// The most bytes of scores of a part, unless those of the heads that share keys are more.
const MAX_SCORES: usize = 1 << 30;

/// Returns the parts of a task, which are alike: sequences, and heads that share their keys stay together. An attention is one part.
pub(super) fn of(task: &AttentionTask) -> impl Iterator<Item = AttentionTask> {
    let [sequences, groups] = extents(task);
    let [batch, heads] = if task.is_gradient { extents_of_part(task) } else { [sequences, groups] };
    let starts = (0..sequences).step_by(batch.max(1));
    let starts = starts.flat_map(move |row| (0..groups).step_by(heads.max(1)).map(move |head| [row, head]));
    starts.map(move |start| part(task, start, [batch, heads]))
}

/// Returns the numbers of sequences and of heads with keys of their own.
fn extents(task: &AttentionTask) -> [usize; 2] {
    task.tensors.get(1).map_or([0, 0], |it| [it.shape[0], it.shape[1]])
}

fn extents_of_part(task: &AttentionTask) -> [usize; 2] {
    let [sequences, groups] = extents(task);
    let [query, key, ..] = &task.tensors[..] else { return [sequences, groups] };
    // Each part has to be aligned as the whole is.
    let may_split = |dim: usize| {
        task.tensors.iter().all(|it| {
            let step = it.strides[dim] * if dim == 1 { it.shape[1] / groups.max(1) } else { 1 };
            (step * it.dtype.size()).is_multiple_of(AttentionTask::ALIGNMENT)
        })
    };
    // cuDNN keeps scores of 2 bytes.
    let of_group = query.shape[1] / groups.max(1) * query.shape[2] * key.shape[2] * 2;
    let fitting = |all: usize, bytes: usize| {
        (1..=all).rev().find(|it| all.is_multiple_of(*it) && it * bytes <= MAX_SCORES)
    };
    let batch = if may_split(0) { fitting(sequences, groups * of_group).unwrap_or(1) } else { sequences };
    let fits = batch * groups * of_group <= MAX_SCORES;
    let heads = if fits || !may_split(1) { groups } else { fitting(groups, batch * of_group).unwrap_or(1) };
    [batch, heads]
}

/// Returns the part from a sequence and a group of heads on.
fn part(task: &AttentionTask, start: [usize; 2], extents_of_part: [usize; 2]) -> AttentionTask {
    let mut part = task.clone();
    let [_, groups] = extents(task);
    for it in &mut part.tensors {
        let shared = it.shape[1] / groups.max(1);
        let (start, extents) =
            ([start[0], start[1] * shared], [extents_of_part[0], extents_of_part[1] * shared]);
        let offset: usize = start.iter().zip(&it.strides).map(|(at, stride)| at * stride).sum();
        it.address += (offset * it.dtype.size()) as u64;
        it.shape[..2].copy_from_slice(&extents);
    }
    part
}

#[cfg(test)]
mod tests {
    use grammar::DType;
    use hir_executor::DeviceTensor;

    use super::*;

    /// Gradients of sequences with six heads, of which three share keys, of `rows` rows of 8 elements.
    fn task(sequences: usize, rows: usize) -> AttentionTask {
        let tensor = |heads: usize, dims: &[usize], dtype| {
            let shape = [&[sequences, heads, rows], dims].concat();
            let strides = (0..shape.len()).map(|at| shape[at + 1..].iter().product()).collect();
            DeviceTensor { address: 0, dtype, shape, strides }
        };
        let heads = [6, 2, 2, 6, 6, 6, 6, 2, 2];
        let tensors = heads.iter().enumerate().map(|(at, it)| match at {
            4 => tensor(*it, &[], DType::Float),
            _ => tensor(*it, &[8], DType::BFloat),
        });
        AttentionTask {
            tensors: tensors.collect(),
            is_gradient: true,
            is_causal: false,
            scale: 1.0,
            workspace: (0, 0),
        }
    }

    /// Returns the parts of a task: address, sequences and heads of the query, then of the keys.
    fn parts(task: &AttentionTask) -> Vec<[(u64, usize, usize); 2]> {
        let of = |it: &DeviceTensor| (it.address, it.shape[0], it.shape[1]);
        super::of(task).map(|it| [of(&it.tensors[0]), of(&it.tensors[1])]).collect()
    }

    #[test]
    fn the_scores_of_a_part_are_bounded() {
        assert_eq!(parts(&task(4, 1024)), [[(0, 4, 6), (0, 4, 2)]]);
        // Six heads of 8192 rows have scores of 768 MiB.
        let (query, keys) = (6 * 8192 * 8 * 2, 2 * 8192 * 8 * 2);
        assert_eq!(parts(&task(2, 8192)), [[(0, 1, 6), (0, 1, 2)], [(query, 1, 6), (keys, 1, 2)]]);
        let (query, keys) = (3 * 16384 * 8 * 2, 16384 * 8 * 2);
        assert_eq!(parts(&task(1, 16384)), [[(0, 1, 3), (0, 1, 1)], [(query, 1, 3), (keys, 1, 1)]]);
    }

    #[test]
    fn parts_that_would_not_be_aligned_are_one() {
        assert_eq!(parts(&task(1, 16383)), [[(0, 1, 6), (0, 1, 2)]]);
    }

    #[test]
    fn an_attention_is_one_part() {
        let it = AttentionTask { is_gradient: false, ..task(1, 16384) };
        assert_eq!(parts(&it), [[(0, 1, 6), (0, 1, 2)]]);
    }
}
