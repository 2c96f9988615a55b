//! Access to strided views.

use hir_plan::View;

/// Visits a view in row-major order as runs: `visit(position in the view, first element, count, stride)`.
/// Adjacent dimensions that form one strided range are visited as one run.
pub fn for_each_run(view: &View, mut visit: impl FnMut(usize, usize, usize, usize)) {
    let mut dims: Vec<(usize, usize)> = Vec::new();
    for (&extent, &stride) in view.shape.iter().zip(&view.strides) {
        match dims.last_mut() {
            _ if extent == 1 => {}
            Some(last) if last.1 == stride * extent => *last = (last.0 * extent, stride),
            _ => dims.push((extent, stride)),
        }
    }
    let (count, stride) = dims.pop().unwrap_or((1, 1));
    let total = view.len();
    let mut digits = vec![0; dims.len()];
    let (mut position, mut start) = (0, view.offset);
    while position < total {
        visit(position, start, count, stride);
        position += count;
        for (digit, &(extent, stride)) in digits.iter_mut().zip(&dims).rev() {
            *digit += 1;
            start += stride;
            if *digit < extent {
                break;
            }
            start -= stride * extent;
            *digit = 0;
        }
    }
}

pub(super) fn gather<T: Copy>(from: &[T], view: &View) -> Vec<T> {
    let mut out = Vec::with_capacity(view.len());
    for_each_run(view, |_, start, count, stride| match stride {
        1 => out.extend_from_slice(&from[start..start + count]),
        _ => out.extend((0..count).map(|at| from[start + at * stride])),
    });
    out
}

pub(super) fn scatter<T: Copy>(to: &mut [T], view: &View, from: &[T]) {
    for_each_run(view, |position, start, count, stride| {
        let part = &from[position..position + count];
        match stride {
            1 => to[start..start + count].copy_from_slice(part),
            _ => part.iter().enumerate().for_each(|(at, &it)| to[start + at * stride] = it),
        }
    });
}
