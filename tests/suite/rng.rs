//! Random numbers for tests: the same seed gives the same numbers everywhere.

use hir::io::generate::split_mix;

/// A SplitMix64 generator with its state.
#[derive(Clone, Default)]
pub struct Rng(pub u64);

impl Rng {
    /// A number below `sides`.
    pub fn below(&mut self, sides: usize) -> usize {
        (split_mix(&mut self.0) % sides.max(1) as u64) as usize
    }

    /// Whether something happens that does so `percent` times in a hundred.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of the items.
    pub fn choose<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> Option<&'a T> {
        items.get(self.below(items.len())).copied()
    }

    /// One of the items, which there have to be.
    pub fn choose_cloned<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }

    /// The numbers below `count` in some order.
    pub fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for at in (1..count).rev() {
            order.swap(at, self.below(at + 1));
        }
        order
    }
}
