//! Masks of written elements.

use crate::plan::View;

use super::strided::{for_each_run, gather, scatter};

/// A mask of the elements that have been written.
#[derive(Clone, Debug)]
pub struct WrittenMask {
    len: usize,
    /// One flag for each element; `None`: all elements are written.
    flags: Option<Vec<bool>>,
}

impl WrittenMask {
    /// Creates a mask of `len` written elements.
    pub fn full(len: usize) -> Self {
        Self { len, flags: None }
    }

    /// Creates a mask of `len` unwritten elements.
    pub fn empty(len: usize) -> Self {
        Self { len, flags: (len > 0).then(|| vec![false; len]) }
    }

    /// Creates a mask from one flag for each element.
    pub fn from_flags(flags: Vec<bool>) -> Self {
        Self { len: flags.len(), flags: flags.contains(&false).then_some(flags) }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the mask has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether all elements are written, in constant time.
    pub fn is_full(&self) -> bool {
        self.flags.is_none()
    }

    /// Returns whether element `i` is written.
    pub fn get(&self, i: usize) -> bool {
        self.flags.as_ref().is_none_or(|it| it[i])
    }

    /// Returns the index of the first unwritten element.
    pub fn first_unwritten(&self) -> Option<usize> {
        self.flags.as_ref().and_then(|it| it.iter().position(|written| !written))
    }

    /// Returns the number of unwritten elements.
    pub fn unwritten_count(&self) -> usize {
        self.flags.as_ref().map_or(0, |it| it.iter().filter(|written| !**written).count())
    }

    /// Returns the flags of `view` as a dense mask.
    pub fn gather(&self, view: &View) -> Self {
        match &self.flags {
            None => Self::full(view.len()),
            Some(flags) => Self::from_flags(gather(flags, view)),
        }
    }

    /// Writes dense flags to `view`.
    pub fn scatter(&mut self, view: &View, from: &Self) {
        if self.is_full() && from.is_full() {
            return;
        }
        let mut flags = self.flags.take().unwrap_or_else(|| vec![true; self.len]);
        match &from.flags {
            Some(it) => scatter(&mut flags, view, it),
            None => for_each_run(view, |_, start, count, stride| {
                (0..count).for_each(|at| flags[start + at * stride] = true);
            }),
        }
        *self = Self::from_flags(flags);
    }
}

impl PartialEq for WrittenMask {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && (0..self.len).all(|at| self.get(at) == other.get(at))
    }
}
