//! Matches the axes of two tensors that differ only in the numbers of their axes.

use grammar::{Axis, AxisId, Domains, Program, TensorId, Transform};
use rustc_hash::FxHashMap;

/// Returns the axis of `a` that corresponds to each axis of `b`; `None` if the tensors differ in more than
/// numbers.
pub(super) fn axis_correspondence(
    program: &Program,
    a: TensorId,
    b: TensorId,
) -> Option<FxHashMap<AxisId, AxisId>> {
    let (x, y) = (&program.tensors[a], &program.tensors[b]);
    let alike = (x.memory, x.dtype, &x.mesh, &x.positions, x.unit)
        == (y.memory, y.dtype, &y.mesh, &y.positions, y.unit);
    let axes = |it: &grammar::ir::Tensor| -> Vec<Vec<AxisId>> {
        let Domains { logical, transforms, allocation } = &it.domains;
        let mut lists = vec![it.loop_domain.clone(), logical.clone(), allocation.clone().unwrap_or_default()];
        lists.extend(transforms.iter().map(|step| {
            let (inputs, outputs) = step.axes();
            [inputs, outputs].concat()
        }));
        lists
    };
    let steps = x.domains.transforms.iter().zip(&y.domains.transforms);
    let same_steps = steps.fold(x.domains.transforms.len() == y.domains.transforms.len(), |same, (s, t)| {
        same && match (s, t) {
            (
                Transform::Split { factor: f, outer_split: o, .. },
                Transform::Split { factor: g, outer_split: p, .. },
            ) => (f, o) == (g, p),
            (Transform::Merge { .. }, Transform::Merge { .. })
            | (Transform::Swizzle1D { .. }, Transform::Swizzle1D { .. }) => true,
            (Transform::Split { .. } | Transform::Merge { .. } | Transform::Swizzle1D { .. }, _) => false,
        }
    });
    let (lists, others) = (axes(x), axes(y));
    let sizes = |lists: &[Vec<AxisId>]| lists.iter().map(Vec::len).collect::<Vec<_>>();
    let allocated = x.domains.allocation.is_some() == y.domains.allocation.is_some();
    if !alike || !same_steps || !allocated || sizes(&lists) != sizes(&others) {
        return None;
    }
    let mut map: FxHashMap<AxisId, AxisId> = FxHashMap::default();
    for (to, from) in lists.iter().flatten().zip(others.iter().flatten()) {
        let (p, q) = (&program.axes[*to], &program.axes[*from]);
        if (Axis { number: 0, ..p.clone() }) != (Axis { number: 0, ..q.clone() })
            || *map.entry(*from).or_insert(*to) != *to
        {
            return None;
        }
    }
    Some(map)
}
