//! Typed ids and the arenas that they index.
//!
//! Invariant: only the arena that an id indexes creates that id, so indexing cannot fail as long as ids of
//! different programs are not mixed.

use std::{cell::Cell, hash::Hash, marker::PhantomData, ops};

thread_local! {
    static VISITS: Cell<u64> = const { Cell::new(0) };
}

/// Returns the number of elements of arenas that this thread has looked up, iterated over or copied: the work that a pass does
/// on statements, tensors, axes and scalars. Counted only in a build with debug assertions. Tests compare the counts of
/// programs of different sizes.
pub fn visits() -> u64 {
    VISITS.get()
}

#[inline]
fn count_visits(count: usize) {
    if cfg!(debug_assertions) {
        VISITS.set(VISITS.get() + count as u64);
    }
}

/// A typed `u32` index.
pub trait Id: Copy + Eq + Hash + 'static {
    /// Returns the id of the element at `index`.
    fn from_index(index: usize) -> Self;
    /// Returns the element's position in its arena.
    fn index(self) -> usize;
}

/// Declares typed ids. The `Debug` text of an id is its prefix and its number.
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(std::num::NonZeroU32);

        impl $crate::arena::Id for $name {
            // Stored plus one, so that `Option<Id>` has the size of `Id`.
            fn from_index(index: usize) -> Self {
                Self(std::num::NonZeroU32::MIN.saturating_add(index as u32))
            }

            fn index(self) -> usize {
                self.0.get() as usize - 1
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0.get() - 1)
            }
        }
    )*};
}
pub(crate) use ids;

/// A growable vector whose elements are indexed by ids of one type.
#[derive(Debug, PartialEq)]
pub struct Arena<I, T> {
    items: Vec<T>,
    id: PhantomData<I>,
}

impl<I, T: Clone> Clone for Arena<I, T> {
    fn clone(&self) -> Self {
        count_visits(self.items.len());
        Self { items: self.items.clone(), id: PhantomData }
    }
}

impl<I, T> Default for Arena<I, T> {
    fn default() -> Self {
        Self { items: Vec::new(), id: PhantomData }
    }
}

impl<I: Id, T> Arena<I, T> {
    /// Appends an element and returns its id.
    pub fn push(&mut self, item: T) -> I {
        self.items.push(item);
        I::from_index(self.items.len() - 1)
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns true if the arena contains no elements.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Iterates over the ids in order of creation.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + use<I, T> {
        count_visits(self.items.len());
        (0..self.items.len()).map(I::from_index)
    }

    /// Iterates over the ids and elements in order of creation.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (I, &T)> {
        count_visits(self.items.len());
        self.items.iter().enumerate().map(|(index, item)| (I::from_index(index), item))
    }
}

impl<I: Id, T> ops::Index<I> for Arena<I, T> {
    type Output = T;

    fn index(&self, id: I) -> &T {
        count_visits(1);
        &self.items[id.index()]
    }
}

impl<I: Id, T> ops::IndexMut<I> for Arena<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        count_visits(1);
        &mut self.items[id.index()]
    }
}
