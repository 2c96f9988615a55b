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

/// The side of the squares in which a matrix is transposed, in elements: both its rows and its columns stay in the first cache.
const TILE: usize = 32;

pub(super) fn gather<T: Copy>(from: &[T], view: &View) -> Vec<T> {
    if let ([rows, columns], [1, stride]) = (&view.shape[..], &view.strides[..]) {
        return transposed(from.get(view.offset..).unwrap_or_default(), [*rows, *columns], *stride);
    }
    let mut out = Vec::with_capacity(view.len());
    for_each_run(view, |_, start, count, stride| match stride {
        1 => out.extend_from_slice(&from[start..start + count]),
        _ => out.extend((0..count).map(|at| from[start + at * stride])),
    });
    out
}

/// Returns the elements `from[row + column * stride]`, row by row.
fn transposed<T: Copy>(from: &[T], [rows, columns]: [usize; 2], stride: usize) -> Vec<T> {
    let Some(first) = from.first().filter(|_| rows * columns > 0) else { return Vec::new() };
    let mut out = vec![*first; rows * columns];
    for (at, tile) in out.chunks_mut(TILE * columns).enumerate() {
        for from_column in (0..columns).step_by(TILE) {
            for column in from_column..columns.min(from_column + TILE) {
                let part = &from[at * TILE + column * stride..];
                tile.iter_mut().skip(column).step_by(columns).zip(part).for_each(|(to, it)| *to = *it);
            }
        }
    }
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
