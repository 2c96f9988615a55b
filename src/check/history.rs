//! Accesses to a buffer, found by the elements that they touch: a loop that gives every iteration a slice of its own is compared with few.

use std::collections::BTreeMap;

/// Accesses with the first and the last element of each.
#[derive(Debug)]
pub struct History<A> {
    /// By size class: accesses that span less than 2^class elements, by first element. Most buffers have few, and loops mostly add them in
    /// order, so that a list is smaller and not slower than a tree.
    classes: BTreeMap<u32, Vec<Entry<A>>>,
}

#[derive(Debug)]
struct Entry<A> {
    first: usize,
    last: usize,
    access: A,
}

impl<A> Default for History<A> {
    fn default() -> Self {
        Self { classes: BTreeMap::new() }
    }
}

impl<A> History<A> {
    /// Adds an access.
    pub fn push(&mut self, first: usize, last: usize, access: A) {
        let class = usize::BITS - (last - first).leading_zeros();
        let entries = self.classes.entry(class).or_default();
        let at = entries.partition_point(|it| it.first <= first);
        entries.insert(at, Entry { first, last, access });
    }

    /// Shows all accesses whose bounds overlap with these; those stay for which the answer is true.
    pub fn retain(&mut self, first: usize, last: usize, mut is_kept: impl FnMut(&A) -> bool) {
        for (class, entries) in &mut self.classes {
            let reach = 1_usize.checked_shl(*class).unwrap_or(usize::MAX);
            let from = entries.partition_point(|it| it.first < first.saturating_sub(reach));
            let mut at = from;
            while let Some(it) = entries.get(at).filter(|it| it.first <= last) {
                if first > it.last || is_kept(&it.access) {
                    at += 1;
                } else {
                    entries.remove(at);
                }
            }
        }
    }

    /// All accesses, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &A> {
        self.classes.values().flatten().map(|it| &it.access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::generate::split_mix;

    #[test]
    fn it_finds_what_overlaps() {
        let mut state = 5;
        let mut below = |n: u64| (split_mix(&mut state) % n) as usize;
        for _ in 0..200 {
            let mut history = History::default();
            let mut known: Vec<(usize, usize)> = Vec::new();
            for _ in 0..60 {
                let first = below(100);
                let last = first + below(2) * below(70) + below(4);
                let mut found = Vec::new();
                let is_kept = |it: &(usize, usize)| it.0 % 3 != 0;
                history.retain(first, last, |it| {
                    found.push(*it);
                    is_kept(it)
                });
                let overlaps = |it: &(usize, usize)| it.0 <= last && first <= it.1;
                let mut wanted: Vec<(usize, usize)> = known.iter().copied().filter(overlaps).collect();
                found.sort_unstable();
                wanted.sort_unstable();
                assert_eq!(found, wanted);
                known.retain(|it| !overlaps(it) || is_kept(it));
                known.push((first, last));
                history.push(first, last, (first, last));
            }
            assert_eq!(history.iter().count(), known.len());
        }
    }
}
