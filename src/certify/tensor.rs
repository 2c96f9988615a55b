//! Tensors of field elements, and the places of tensors in buffers.

use ndarray::{ArcArray, Axis, IxDyn, Slice};
use rustc_hash::FxHashSet;

use crate::field::Element;

/// A tensor. Copies share its elements.
pub(crate) type Array<T> = ArcArray<T, IxDyn>;

/// Creates a tensor from its elements in row-major order. Their number has to fit.
pub(crate) fn array<T: Clone + Default>(shape: &[usize], elements: Vec<T>) -> Array<T> {
    ArcArray::from_shape_vec(shape, elements).unwrap_or_default()
}

/// Returns the elements in row-major order in another shape; `None` if their number differs.
pub(crate) fn reshape<T: Clone>(from: &Array<T>, shape: &[usize]) -> Option<Array<T>> {
    from.clone().into_shape_clone(shape).ok()
}

/// The elements of a tensor.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    pub(crate) data: Array<Element>,
    /// A bound for the degree of the elements as polynomials of the inputs and of the values of unknown functions.
    pub(crate) degree: u64,
}

impl Values {
    /// Returns the elements at these places of the tensor, in the shape of the places.
    pub(crate) fn at(&self, places: &Array<usize>) -> Values {
        let data = if is_range(places, self.data.len()) {
            reshape(&self.data, places.shape())
        } else {
            let flat = self.data.as_standard_layout();
            flat.as_slice().map(|flat| places.map(|at| flat[*at]).into_shared())
        };
        Values { data: data.unwrap_or_default(), degree: self.degree }
    }
}

/// Returns whether places are all of `0..len`, in order.
pub(crate) fn is_range(places: &Array<usize>, len: usize) -> bool {
    places.len() == len && places.iter().copied().eq(0..len)
}

/// Elements of a buffer.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct View {
    pub(crate) buffer: usize,
    /// The place of each element. Neighbours along an axis have ascending places, or one place.
    pub(crate) places: Array<usize>,
}

impl View {
    /// Returns the view if the distance of neighbours along each axis is constant; a tensor that is no copy has only such views.
    pub(crate) fn strided(self) -> Option<Self> {
        let is_even = |axis: usize| {
            let [here, next] =
                [Slice::from(..-1), Slice::from(1..)].map(|it| self.places.slice_axis(Axis(axis), it));
            let mut steps = here.iter().zip(&next).map(|(a, b)| b.wrapping_sub(*a));
            let first = steps.next();
            steps.all(|it| Some(it) == first)
        };
        (0..self.places.ndim()).filter(|axis| self.places.shape()[*axis] > 1).all(is_even).then_some(self)
    }

    /// Returns whether two views of one buffer have an element in common. Their first and last places are the lowest and highest ones.
    pub(crate) fn overlaps(&self, other: &View) -> bool {
        let is_before = |a: &View, b: &View| a.places.last() < b.places.first();
        if self.places.is_empty()
            || other.places.is_empty()
            || is_before(self, other)
            || is_before(other, self)
        {
            return false;
        }
        let own: FxHashSet<&usize> = self.places.iter().collect();
        other.places.iter().any(|it| own.contains(it))
    }
}
