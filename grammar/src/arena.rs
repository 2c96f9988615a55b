//! Typed ids and the arenas that they index.
//!
//! Invariant: only the arena that an id indexes creates that id, so indexing cannot fail as long as ids of
//! different programs are not mixed.

use std::{cell::Cell, hash::Hash, marker::PhantomData, mem, ops, sync::Arc};

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

/// The number of elements of a full chunk.
const CHUNK: usize = 64;

/// A growable vector whose elements are indexed by ids of one type. Copies share chunks of elements until one of them changes, since
/// passes copy a program to change few of its statements.
#[derive(Debug)]
pub struct Arena<I, T> {
    /// The chunks of `CHUNK` elements.
    full: Vec<Arc<[T]>>,
    /// The elements behind them, fewer than `CHUNK`.
    last: Vec<T>,
    id: PhantomData<I>,
}

impl<I, T: Clone> Clone for Arena<I, T> {
    fn clone(&self) -> Self {
        count_visits(self.full.len() + self.last.len());
        Self { full: self.full.clone(), last: self.last.clone(), id: PhantomData }
    }
}

impl<I, T: PartialEq> PartialEq for Arena<I, T> {
    fn eq(&self, other: &Self) -> bool {
        let is_equal = |(own, other): (&Arc<[T]>, &Arc<[T]>)| Arc::ptr_eq(own, other) || own == other;
        self.full.len() == other.full.len()
            && self.last == other.last
            && self.full.iter().zip(&other.full).all(is_equal)
    }
}

impl<I, T> Default for Arena<I, T> {
    fn default() -> Self {
        Self { full: Vec::new(), last: Vec::new(), id: PhantomData }
    }
}

impl<I: Id, T> Arena<I, T> {
    /// Appends an element and returns its id.
    pub fn push(&mut self, item: T) -> I {
        let id = I::from_index(self.len());
        self.last.push(item);
        if self.last.len() == CHUNK {
            self.full.push(mem::take(&mut self.last).into());
        }
        id
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.full.len() * CHUNK + self.last.len()
    }

    /// Returns true if the arena contains no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the ids in order of creation.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + use<I, T> {
        count_visits(self.len());
        (0..self.len()).map(I::from_index)
    }

    /// Iterates over the ids and elements in order of creation.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (I, &T)> {
        count_visits(self.len());
        (0..self.len()).map(|index| (I::from_index(index), self.at(index)))
    }

    fn at(&self, index: usize) -> &T {
        match self.full.get(index / CHUNK) {
            Some(chunk) => &chunk[index % CHUNK],
            None => &self.last[index - self.full.len() * CHUNK],
        }
    }
}

impl<I: Id, T> ops::Index<I> for Arena<I, T> {
    type Output = T;

    fn index(&self, id: I) -> &T {
        count_visits(1);
        self.at(id.index())
    }
}

/// Copies the chunk of an element first if it is shared.
impl<I: Id, T: Clone> ops::IndexMut<I> for Arena<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        count_visits(1);
        let index = id.index();
        let behind = self.full.len() * CHUNK;
        match self.full.get_mut(index / CHUNK) {
            Some(chunk) => {
                if cfg!(debug_assertions) && Arc::get_mut(chunk).is_none() {
                    count_visits(CHUNK);
                }
                &mut Arc::make_mut(chunk)[index % CHUNK]
            }
            None => &mut self.last[index - behind],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SymbolId;

    #[test]
    fn a_change_of_a_copy_leaves_the_original() {
        let mut original: Arena<SymbolId, usize> = Arena::default();
        let ids: Vec<SymbolId> = (0..3 * CHUNK + 2).map(|it| original.push(it)).collect();
        for id in &ids {
            let mut copy = original.clone();
            assert_eq!(copy, original);
            copy[*id] += 1;
            assert_ne!(copy, original);
            assert_eq!((copy[*id], original[*id]), (id.index() + 1, id.index()));
            copy[*id] -= 1;
            assert_eq!(copy, original);
            copy.push(0);
            assert_ne!(copy, original);
        }
        assert!(original.iter().eq(ids.iter().map(|id| (*id, &original[*id]))));
        assert_eq!((original.len(), original.is_empty()), (ids.len(), false));
    }
}
