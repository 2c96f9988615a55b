//! Masks of written elements.

use hir_plan::View;

use super::strided::{for_each_run, gather};

/// A mask of the elements that have been written.
#[derive(Clone, Debug)]
pub struct WrittenMask {
    len: usize,
    /// One flag for each element; empty if all elements are written.
    flags: Vec<bool>,
    /// The number of unwritten elements.
    unwritten: usize,
}

impl WrittenMask {
    /// Creates a mask of `len` written elements.
    pub fn full(len: usize) -> Self {
        Self { len, flags: Vec::new(), unwritten: 0 }
    }

    /// Creates a mask of `len` unwritten elements.
    pub fn empty(len: usize) -> Self {
        Self { len, flags: vec![false; len], unwritten: len }
    }

    /// Creates a mask from one flag for each element.
    pub fn from_flags(flags: Vec<bool>) -> Self {
        let unwritten = flags.iter().filter(|written| !**written).count();
        match unwritten {
            0 => Self::full(flags.len()),
            _ => Self { len: flags.len(), flags, unwritten },
        }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the mask has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether all elements are written.
    pub fn is_full(&self) -> bool {
        self.unwritten == 0
    }

    /// Returns whether element `i` is written.
    pub fn get(&self, i: usize) -> bool {
        self.is_full() || self.flags[i]
    }

    /// Returns the index of the first unwritten element.
    pub fn first_unwritten(&self) -> Option<usize> {
        self.flags.iter().position(|written| !written)
    }

    /// Returns the number of unwritten elements.
    pub fn unwritten_count(&self) -> usize {
        self.unwritten
    }

    /// Returns the flags of `view` as a dense mask.
    pub fn gather(&self, view: &View) -> Self {
        if self.is_full() { Self::full(view.len()) } else { Self::from_flags(gather(&self.flags, view)) }
    }

    /// Writes dense flags to `view`. The time depends on the size of the view only, except for the first flag
    /// that makes a full mask incomplete.
    pub fn scatter(&mut self, view: &View, from: &Self) {
        if self.is_full() && from.is_full() {
            return;
        }
        if self.is_full() {
            self.flags = vec![true; self.len];
        }
        for_each_run(view, |position, start, count, stride| {
            for at in 0..count {
                let (flag, written) = (&mut self.flags[start + at * stride], from.get(position + at));
                self.unwritten += usize::from(!written);
                self.unwritten -= usize::from(!*flag);
                *flag = written;
            }
        });
        if self.is_full() {
            self.flags = Vec::new();
        }
    }
}

impl PartialEq for WrittenMask {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && (0..self.len).all(|at| self.get(at) == other.get(at))
    }
}
