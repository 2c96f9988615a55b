//! Random numbers for tests. The same seed gives the same numbers on every machine.

use hir_tensor::generate::split_mix;

/// A SplitMix64 generator with its state.
#[derive(Clone, Default)]
pub struct Rng(pub u64);

impl Rng {
    /// Returns a number below `sides`.
    pub fn below(&mut self, sides: usize) -> usize {
        (split_mix(&mut self.0) % sides.max(1) as u64) as usize
    }

    /// Returns true with a probability of `percent` percent.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Returns a random item, or `None` if there are none.
    pub fn choose<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> Option<&'a T> {
        items.get(self.below(items.len())).copied()
    }

    /// Returns a random item. There must be at least one.
    pub fn choose_cloned<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }

    /// Returns the numbers below `count` in random order.
    pub fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for at in (1..count).rev() {
            order.swap(at, self.below(at + 1));
        }
        order
    }
}
