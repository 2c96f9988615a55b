//! Strided views of buffers, and tensors with all their elements.

use std::rc::Rc;

use crate::{field::Element, part::Part};

/// A tensor's elements in row-major order. Ranks that hold equal elements share them.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Values {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Rc<Vec<Element>>,
    /// A bound for the degree of the elements as polynomials of the inputs and of the values of unknown functions.
    pub(crate) degree: u64,
}

impl Values {
    /// Creates a tensor of constants.
    pub(crate) fn new(shape: Vec<usize>, data: Vec<Element>) -> Self {
        Self { shape, data: Rc::new(data), degree: 0 }
    }

    pub(crate) fn view(&self) -> View {
        View::contiguous(0, self.shape.clone())
    }

    /// Returns the elements that a view of this tensor has, in row-major order.
    pub(crate) fn gather(&self, view: &View) -> Values {
        let data = if view.is_whole(self.data.len()) {
            Rc::clone(&self.data)
        } else {
            Rc::new(view.offsets().into_iter().map(|at| self.data[at]).collect())
        };
        Values { shape: view.shape.clone(), data, degree: self.degree }
    }

    /// Returns a part of this tensor, which is whole.
    pub(crate) fn part(&self, part: &Part) -> Values {
        if part.is_whole() {
            return self.clone();
        }
        let data = part.indices().into_iter().map(|at| self.data[at]).collect();
        Values { degree: self.degree, ..Values::new(part.shape(), data) }
    }

    /// Returns whether two tensors have the same elements, at once if they share them.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.shape == other.shape && (Rc::ptr_eq(&self.data, &other.data) || self.data == other.data)
    }
}

/// Elements of a buffer: offset, extents and strides, slowest dimension first.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct View {
    pub(crate) buffer: usize,
    pub(crate) offset: usize,
    pub(crate) shape: Vec<usize>,
    pub(crate) strides: Vec<usize>,
}

impl View {
    pub(crate) fn contiguous(buffer: usize, shape: Vec<usize>) -> Self {
        let mut strides = vec![1; shape.len()];
        for at in (1..shape.len()).rev() {
            strides[at - 1] = strides[at] * shape[at];
        }
        Self { buffer, offset: 0, shape, strides }
    }

    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns whether the view has all `len` elements of its buffer, in order.
    pub(crate) fn is_whole(&self, len: usize) -> bool {
        let plain = Self::contiguous(self.buffer, self.shape.clone());
        let mut strides = self.strides.iter().zip(&plain.strides).zip(&self.shape);
        self.offset == 0 && self.len() == len && strides.all(|((a, b), extent)| a == b || *extent == 1)
    }

    /// Returns the offset of each element, in row-major order.
    pub(crate) fn offsets(&self) -> Vec<usize> {
        let mut found = vec![self.offset];
        for (extent, stride) in self.shape.iter().zip(&self.strides) {
            found = found.iter().flat_map(|base| (0..*extent).map(move |at| base + at * stride)).collect();
        }
        found
    }

    pub(crate) fn select(&self, dim: usize, index: usize) -> View {
        let mut view = self.clone();
        view.offset += index * view.strides.remove(dim);
        view.shape.remove(dim);
        view
    }

    pub(crate) fn narrow(&self, dim: usize, start: usize, len: usize) -> View {
        let mut view = self.clone();
        view.offset += start * view.strides[dim];
        view.shape[dim] = len;
        view
    }

    /// Dimension `i` of the result is dimension `order[i]`.
    pub(crate) fn permute(&self, order: &[usize]) -> View {
        let pick = |from: &[usize]| order.iter().map(|at| from[*at]).collect();
        View { shape: pick(&self.shape), strides: pick(&self.strides), ..*self }
    }

    /// Moves a dimension to the front.
    pub(crate) fn to_front(&self, dim: usize) -> View {
        let others = (0..self.shape.len()).filter(|at| *at != dim);
        self.permute(&std::iter::once(dim).chain(others).collect::<Vec<_>>())
    }

    pub(crate) fn unsqueeze(&self, dim: usize) -> View {
        let mut view = self.clone();
        view.shape.insert(dim, 1);
        view.strides.insert(dim, 0);
        view
    }

    /// Splits a dimension; the index of the part becomes the dimension before it.
    pub(crate) fn split(&self, dim: usize, parts: usize) -> View {
        let mut view = self.clone();
        let (len, stride) = (view.shape[dim] / parts.max(1), view.strides[dim]);
        view.shape.splice(dim..=dim, [parts, len]);
        view.strides.splice(dim..=dim, [stride * len, stride]);
        view
    }

    /// Repeats dimensions of extent 1, and adds those that are missing in front; `None` if another extent differs.
    pub(crate) fn broadcast(&self, shape: &[usize]) -> Option<View> {
        let mut view = self.clone();
        while view.shape.len() < shape.len() {
            view = view.unsqueeze(0);
        }
        for (at, want) in shape.iter().enumerate() {
            match view.shape[at] {
                have if have == *want => (),
                1 => view.strides[at] = 0,
                _ => return None,
            }
        }
        view.shape = shape.to_vec();
        (view.shape.len() == view.strides.len()).then_some(view)
    }

    /// Returns the same elements in another shape; `None` if they have to be copied for that.
    pub(crate) fn reshape(&self, shape: &[usize]) -> Option<View> {
        if shape.iter().product::<usize>() != self.len() {
            return None;
        }
        let plain = Self::contiguous(self.buffer, shape.to_vec());
        let mut strides = plain.strides.clone();
        // Dimensions whose elements follow each other are one. From the last one to the first, each is divided.
        let mut own: Vec<(usize, usize)> = Vec::new();
        for (extent, stride) in self.shape.iter().zip(&self.strides).filter(|it| *it.0 != 1) {
            match own.last_mut() {
                Some(outer) if outer.1 == stride * extent => *outer = (outer.0 * extent, *stride),
                _ => own.push((*extent, *stride)),
            }
        }
        for at in (0..shape.len()).rev().filter(|at| shape[*at] > 1 && self.len() > 0) {
            let (extent, step) = own.pop()?;
            if extent % shape[at] != 0 {
                return None;
            }
            strides[at] = step;
            if extent > shape[at] {
                own.push((extent / shape[at], step * shape[at]));
            }
        }
        Some(View { offset: self.offset, strides, ..plain })
    }
}
