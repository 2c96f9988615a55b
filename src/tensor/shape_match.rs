//! Matches the shape of a tensor in a file with the shapes that the program's tensor may have.
//!
//! A whole tensor may have its logical shape or its printed shape: the loop domain in the order of the text,
//! with device axes and without reduction axes. One rank's shard may have its local logical shape or its
//! local printed shape, in which a device axis has extent 1 or is absent. A broadcast axis of extent 1 may be
//! absent; an expanded broadcast axis may have extent 1, and its elements are repeated. Any other shape is
//! rejected, even if it has the same number of elements.

use std::fmt;

use crate::data::NdArray;
use hir_plan::{IoBinding, View};

/// The part of a tensor that a file contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The whole tensor.
    Whole,
    /// One rank's shard.
    Local,
}

/// The error for a file whose shape is not one of the accepted shapes.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapeMismatch {
    name: String,
    found: Vec<usize>,
    wanted: String,
    hint: Option<Hint>,
}

/// The probable contents of a file whose shape is not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hint {
    Transposed,
    Flattened,
    Reshaped,
    UnitAxes,
    WholeTensor,
    OneRank,
}

/// An axis of an accepted shape.
#[derive(Clone, Copy, Debug)]
struct FileAxis {
    /// The extent in the file.
    extent: usize,
    /// The corresponding axis of `AcceptedShape::target`.
    target: usize,
    /// Whether the file may omit the axis; its extent is then 1.
    is_optional: bool,
}

/// An accepted shape.
#[derive(Clone, Debug)]
struct AcceptedShape {
    /// The axes of the file.
    axes: Vec<FileAxis>,
    /// The extents of the same elements in the program's row-major order.
    target: Vec<usize>,
}

/// Converts a tensor of a file to its logical shape: the shape of the whole tensor, or of the shard of the
/// port's rank.
///
/// # Errors
/// Rejects shapes that the tensor may not have.
pub fn to_logical(tensor: NdArray, port: &IoBinding, scope: Scope) -> Result<NdArray, ShapeMismatch> {
    let forms = accepted_shapes(port, scope);
    let Some(view) = forms.iter().find_map(|form| form.view(&tensor.shape)) else {
        return Err(mismatch(tensor.shape, port, scope, &forms));
    };
    let shape = match scope {
        Scope::Whole => port.shard.layout.shape.clone(),
        Scope::Local => port.shard.layout.local_shape(),
    };
    let data =
        if view == View::contiguous(0, view.shape.clone()) { tensor.data } else { tensor.data.gather(&view) };
    Ok(NdArray { shape, data })
}

/// Returns whether one shape results from the other by splitting or merging adjacent dimensions, ignoring
/// extents of 1.
///
/// Outputs of compared programs may differ in this way, because a pass may make a split explicit.
pub fn is_regrouping(one: &[usize], other: &[usize]) -> bool {
    if one == other {
        return true;
    }
    if one.contains(&0) || other.contains(&0) {
        return one.contains(&0) && other.contains(&0);
    }
    let without_units = |shape: &[usize]| {
        let kept: Vec<usize> = shape.iter().copied().filter(|it| *it != 1).collect();
        kept.into_iter()
    };
    let (mut ones, mut others) = (without_units(one), without_units(other));
    loop {
        let (mut mine, mut theirs) = match (ones.next(), others.next()) {
            (None, None) => return true,
            (Some(a), Some(b)) => (a, b),
            (Some(_), None) | (None, Some(_)) => return false,
        };
        // Until both sizes are equal, at least one side must consist of a single dimension.
        let (mut splits_mine, mut splits_theirs) = (false, false);
        while mine != theirs {
            let (less, rest, is_split) = if mine < theirs {
                (&mut mine, &mut ones, &mut splits_mine)
            } else {
                (&mut theirs, &mut others, &mut splits_theirs)
            };
            let Some(next) = rest.next() else { return false };
            *less = less.saturating_mul(next);
            *is_split = true;
        }
        if splits_mine && splits_theirs {
            return false;
        }
    }
}

/// Returns whether two shapes differ only in the order of their extents.
pub fn is_permutation(one: &[usize], other: &[usize]) -> bool {
    let sorted = |shape: &[usize]| {
        let mut shape = shape.to_vec();
        shape.sort_unstable();
        shape
    };
    one != other && sorted(one) == sorted(other)
}

/// Returns all accepted shapes, the logical shape first.
fn accepted_shapes(port: &IoBinding, scope: Scope) -> Vec<AcceptedShape> {
    let layout = &port.shard.layout;
    let is_broadcast = |dim: usize| port.broadcast.get(dim).copied().unwrap_or(false);
    let local = layout.local_shape();
    let extents = match scope {
        Scope::Whole => &layout.shape,
        Scope::Local => &local,
    };
    let logical = extents.iter().enumerate().map(|(dim, &extent)| {
        let pieces = &layout.pieces[dim];
        let is_device = !pieces.is_empty() && pieces.iter().all(|it| it.coordinate.is_some());
        let may_go = is_broadcast(dim) || is_device && scope == Scope::Local;
        FileAxis { extent, target: dim, is_optional: extent == 1 && may_go }
    });
    let mut forms = vec![AcceptedShape { axes: logical.collect(), target: extents.clone() }];
    if let Some(printed) = &port.printed_axes {
        let mut first = vec![0; layout.pieces.len()];
        let mut target = Vec::new();
        for (dim, pieces) in layout.pieces.iter().enumerate() {
            first[dim] = target.len();
            target.extend(pieces.iter().map(|it| match (scope, it.coordinate) {
                (Scope::Local, Some(_)) => 1,
                (Scope::Local, None) | (Scope::Whole, _) => it.extent,
            }));
        }
        let axes = printed.iter().map(|it| {
            let at = first[it.dim] + it.piece;
            let is_device = layout.pieces[it.dim][it.piece].coordinate.is_some();
            let may_go = is_broadcast(it.dim) || is_device && scope == Scope::Local;
            FileAxis { extent: target[at], target: at, is_optional: target[at] == 1 && may_go }
        });
        forms.push(AcceptedShape { axes: axes.collect(), target: target.clone() });
    }
    // The logical shape with the expanded broadcast axes not expanded.
    if let Some(form) =
        forms.first().filter(|form| form.axes.iter().any(|it| it.extent > 1 && is_broadcast(it.target)))
    {
        let narrow =
            |it: &FileAxis| if is_broadcast(it.target) { FileAxis { extent: 1, ..*it } } else { *it };
        let axes = form.axes.iter().map(narrow).collect();
        forms.push(AcceptedShape { axes, target: form.target.clone() });
    }
    forms
}

impl AcceptedShape {
    /// Returns the file's shape with no axis omitted.
    fn shape(&self) -> Vec<usize> {
        self.axes.iter().map(|it| it.extent).collect()
    }

    /// Returns a view of the elements of `target`, in order, in a file with this shape, or `None` if the
    /// shape does not match.
    ///
    /// Extents of 1 cannot be distinguished from each other: between two other extents, the file must have at
    /// least as many of them as there are required axes of extent 1, and at most as many as there are axes of
    /// extent 1.
    fn view(&self, shape: &[usize]) -> Option<View> {
        let mut strides = vec![0; self.target.len()];
        let file = View::contiguous(0, shape.to_vec());
        let mut dims = shape.iter().zip(&file.strides).peekable();
        let (mut required, mut units) = (0, 0);
        for axis in &self.axes {
            if axis.extent == 1 {
                units += 1;
                required += usize::from(!axis.is_optional);
                continue;
            }
            skip_units(&mut dims, required, units)?;
            (required, units) = (0, 0);
            let (&extent, &stride) = dims.next()?;
            if extent != axis.extent {
                return None;
            }
            strides[axis.target] = stride;
        }
        skip_units(&mut dims, required, units)?;
        dims.next().is_none().then(|| View {
            buffer: 0,
            offset: 0,
            shape: self.target.clone(),
            strides: self.normal(strides),
        })
    }

    /// Replaces the strides of axes of extent 1 by those of a row-major view, so that equivalent views
    /// compare equal.
    fn normal(&self, mut strides: Vec<usize>) -> Vec<usize> {
        let plain = View::contiguous(0, self.target.clone());
        for (at, stride) in strides.iter_mut().enumerate() {
            if self.target[at] == 1 {
                *stride = plain.strides[at];
            }
        }
        strides
    }
}

/// Skips extents of 1; returns `None` unless there are between `required` and `units` of them.
fn skip_units<'a>(
    dims: &mut std::iter::Peekable<impl Iterator<Item = (&'a usize, &'a usize)>>,
    required: usize,
    units: usize,
) -> Option<()> {
    let mut count = 0;
    while dims.next_if(|(extent, _)| **extent == 1).is_some() {
        count += 1;
    }
    (required..=units).contains(&count).then_some(())
}

fn mismatch(found: Vec<usize>, port: &IoBinding, scope: Scope, accepted: &[AcceptedShape]) -> ShapeMismatch {
    let other = match scope {
        Scope::Whole => Scope::Local,
        Scope::Local => Scope::Whole,
    };
    let shapes: Vec<Vec<usize>> = accepted.iter().map(AcceptedShape::shape).collect();
    let any = |holds: &dyn Fn(&[usize]) -> bool| shapes.iter().any(|it| holds(it));
    let count = |shape: &[usize]| shape.iter().fold(1, |product: usize, it| product.saturating_mul(*it));
    let without_units = |shape: &[usize]| shape.iter().copied().filter(|it| *it != 1).collect::<Vec<usize>>();
    let hint = if accepted_shapes(port, other).iter().any(|it| it.view(&found).is_some()) {
        Some(if scope == Scope::Whole { Hint::OneRank } else { Hint::WholeTensor })
    } else if any(&|it| without_units(it) == without_units(&found)) {
        Some(Hint::UnitAxes)
    } else if any(&|it| is_permutation(it, &found)) {
        Some(Hint::Transposed)
    } else if any(&|it| count(it) == count(&found)) {
        Some(if found.len() == 1 { Hint::Flattened } else { Hint::Reshaped })
    } else {
        None
    };
    let wanted = shapes.first().map_or(String::new(), |it| format!("{it:?}"));
    let whose = match scope {
        Scope::Whole => format!("{} has shape {wanted}", port.name),
        Scope::Local => format!("a rank's shard of {} has shape {wanted}", port.name),
    };
    let wanted = match port.printed_axes.as_ref().and(shapes.get(1)).filter(|it| Some(*it) != shapes.first())
    {
        Some(printed) => format!("{whose}, printed as {printed:?}"),
        None => whose,
    };
    ShapeMismatch { name: port.name.clone(), found, wanted, hint }
}

impl fmt::Display for ShapeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "has shape {:?}, but {}", self.found, self.wanted)?;
        match self.hint {
            None => Ok(()),
            Some(Hint::Transposed) => f.write_str("; is it transposed?"),
            Some(Hint::Flattened) => f.write_str("; is it flattened?"),
            Some(Hint::Reshaped) => f.write_str("; is it reshaped?"),
            Some(Hint::UnitAxes) => f.write_str("; axes of extent 1 are missing, extra or misplaced"),
            Some(Hint::WholeTensor) => {
                write!(f, "; the file contains the whole tensor: use `{}=`", self.name)
            }
            Some(Hint::OneRank) => {
                write!(f, "; the file contains one rank's shard: use `{}@local=`", self.name)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Data;
    use hir_plan::plans_of_text;

    fn port(tensor: &str) -> IoBinding {
        let header = format!("({tensor}) -> ({tensor})");
        let text = format!("%HostIrContainer {{ {header} :\n}} // %HostIrContainer\n");
        plans_of_text(&text, 2).unwrap_or_default()[1].inputs[0].clone()
    }

    fn tensor(shape: &[usize]) -> NdArray {
        NdArray { shape: shape.to_vec(), data: Data::F32(vec![0.0; shape.iter().product()]) }
    }

    fn said(shape: &[usize], port: &IoBinding, scope: Scope) -> String {
        to_logical(tensor(shape), port, scope)
            .map_or_else(|it| it.to_string(), |it| format!("{:?}", it.shape))
    }

    #[test]
    fn only_its_own_shapes_fit_a_tensor() {
        let plain = port("T0_g_float[iS0{4}, iS1{6}]");
        assert_eq!(said(&[4, 6], &plain, Scope::Whole), "[4, 6]");
        for (shape, hint) in [
            (&[6, 4][..], "; is it transposed?"),
            (&[24], "; is it flattened?"),
            (&[2, 12], "; is it reshaped?"),
            (&[1, 4, 6], "; axes of extent 1 are missing, extra or misplaced"),
            (&[4, 5], ""),
        ] {
            assert_eq!(
                said(shape, &plain, Scope::Whole),
                format!("has shape {shape:?}, but T0 has shape [4, 6]{hint}")
            );
        }
    }

    #[test]
    fn parts_and_wholes_are_distinct() {
        let rows = port("T0_g_float[ideviceIdx.x0{2}, iS1{6}] (DeviceMesh{0 1})");
        assert_eq!(said(&[2, 6], &rows, Scope::Whole), "[2, 6]");
        assert_eq!(said(&[1, 6], &rows, Scope::Local), "[1, 6]");
        assert_eq!(said(&[6], &rows, Scope::Local), "[1, 6]");
        let whole = said(&[6], &rows, Scope::Whole);
        assert_eq!(
            whole,
            "has shape [6], but T0 has shape [2, 6]; the file contains one rank's shard: use `T0@local=`"
        );
        let part = said(&[2, 6], &rows, Scope::Local);
        assert_eq!(
            part,
            "has shape [2, 6], but a rank's shard of T0 has shape [1, 6]; the file contains the whole tensor: use `T0=`"
        );
    }

    #[test]
    fn programs_may_split_and_merge_dimensions() {
        for (one, other) in [
            (&[32, 128][..], &[4, 8, 128][..]),
            (&[512], &[16, 32]),
            (&[1, 16, 32], &[16, 1, 32]),
            (&[4, 6], &[2, 2, 6]),
        ] {
            assert!(is_regrouping(one, other) && is_regrouping(other, one), "{one:?} {other:?}");
        }
        for (one, other) in [
            (&[16, 32][..], &[32, 16][..]),
            (&[4, 8, 128], &[8, 4, 128]),
            (&[32, 2, 64], &[4, 8, 64, 4]),
            (&[12, 2], &[8, 3]),
            (&[2, 3], &[2]),
        ] {
            assert!(!is_regrouping(one, other) && !is_regrouping(other, one), "{one:?} {other:?}");
        }
    }
}
