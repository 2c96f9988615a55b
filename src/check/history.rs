//! Stores the accesses to a buffer and finds those that may overlap a given footprint. If every iteration of
//! a loop accesses its own row or column, an access is compared with only a few others.

use super::overlap::Footprint;

/// Accesses indexed by the elements that they touch.
#[derive(Debug)]
pub struct AccessHistory<A> {
    /// Accesses to columns, by the width of the matrix, each with its range of columns. Width 0 holds all
    /// other accesses, each with its first and last element. Sorted: most buffers have one width and one class.
    groups: Vec<(usize, Spans<A>)>,
}

impl<A> Default for AccessHistory<A> {
    fn default() -> Self {
        Self { groups: Vec::new() }
    }
}

impl<A> AccessHistory<A> {
    /// Adds an access.
    pub fn push(&mut self, at: &Footprint, access: A) {
        let (width, (first, last)) = match at.columns(at.width) {
            Some(columns) => (at.width, columns),
            None => (0, (at.first, at.last)),
        };
        entry(&mut self.groups, width).push(first, last, access);
    }

    /// Calls `is_kept` for all accesses that may overlap `at`, and removes those for which it returns false.
    pub fn retain(&mut self, at: &Footprint, mut is_kept: impl FnMut(&A) -> bool) {
        for (width, spans) in &mut self.groups {
            let (first, last) = match width {
                0 => (at.first, at.last),
                _ => at.columns(*width).unwrap_or((0, usize::MAX)),
            };
            spans.retain(first, last, &mut is_kept);
        }
    }
}

/// Returns the value of a key in a sorted list, which gets a new one if there is none.
fn entry<K: Ord, V: Default>(all: &mut Vec<(K, V)>, key: K) -> &mut V {
    let at = all.partition_point(|it| it.0 < key);
    if all.get(at).is_none_or(|it| it.0 != key) {
        all.insert(at, (key, V::default()));
    }
    &mut all[at].1
}

/// Accesses indexed by inclusive intervals.
#[derive(Debug)]
struct Spans<A> {
    /// Entries by size class, sorted by `first`. Intervals of class `c` satisfy `last - first < 2^c`. Most
    /// buffers have few accesses and loops usually add them in order, so a sorted list is smaller than a tree
    /// and not slower.
    classes: Vec<(u32, Vec<Entry<A>>)>,
}

#[derive(Debug)]
struct Entry<A> {
    first: usize,
    last: usize,
    access: A,
}

impl<A> Default for Spans<A> {
    fn default() -> Self {
        Self { classes: Vec::new() }
    }
}

impl<A> Spans<A> {
    fn push(&mut self, first: usize, last: usize, access: A) {
        let class = usize::BITS - (last - first).leading_zeros();
        let entries = entry(&mut self.classes, class);
        let at = entries.partition_point(|it| it.first <= first);
        entries.insert(at, Entry { first, last, access });
    }

    /// Calls `is_kept` for all accesses whose interval overlaps `first..=last`, and removes those for which
    /// it returns false.
    fn retain(&mut self, first: usize, last: usize, is_kept: &mut impl FnMut(&A) -> bool) {
        for (class, entries) in &mut self.classes {
            let reach = 1_usize.checked_shl(*class).unwrap_or(usize::MAX);
            let from = entries.partition_point(|it| it.first < first.saturating_sub(reach));
            let to = entries.partition_point(|it| it.first <= last);
            let (mut first_gone, mut others) = (None, Vec::new());
            for (at, it) in entries[from..to].iter().enumerate().filter(|(_, it)| first <= it.last) {
                if is_kept(&it.access) {
                    continue;
                }
                match first_gone {
                    None => first_gone = Some(from + at),
                    Some(_) => others.push(from + at),
                }
            }
            match first_gone {
                None => (),
                Some(only) if others.is_empty() => drop(entries.remove(only)),
                Some(only) => {
                    let mut gone = [only].into_iter().chain(others).peekable();
                    let mut at = 0;
                    entries.retain(|_| {
                        at += 1;
                        gone.next_if_eq(&(at - 1)).is_none()
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hir_plan::View;
    use hir_tensor::generate::split_mix;

    #[test]
    fn it_finds_what_overlaps() {
        let mut state = 5;
        let mut below = |n: u64| (split_mix(&mut state) % n) as usize;
        let mut overlapping = 0;
        for _ in 0..300 {
            let mut history = AccessHistory::default();
            // Footprints by number; `None` if removed or empty.
            let mut known: Vec<Option<Footprint>> = Vec::new();
            for number in 0..60 {
                let dims = below(3);
                let strides = [1, 8, 8, 24, 3];
                let view = View {
                    buffer: 0,
                    offset: below(40),
                    shape: (0..dims).map(|_| 1 + below(4)).collect(),
                    strides: (0..dims).map(|_| strides[below(5)]).collect(),
                };
                let Some(at) = Footprint::of(&view) else { continue };
                let mut found = Vec::new();
                history.retain(&at, |it: &usize| {
                    found.push(*it);
                    !it.is_multiple_of(3)
                });
                // Accesses that `retain` does not visit must not overlap.
                for (other, it) in
                    known.iter().enumerate().filter_map(|(other, it)| Some((other, it.as_ref()?)))
                {
                    if it.overlaps(&at) {
                        assert!(found.contains(&other), "{it:?} {at:?}");
                        overlapping += 1;
                    }
                }
                found.iter().filter(|it| it.is_multiple_of(3)).for_each(|it| known[*it] = None);
                history.push(&at, number);
                known.resize(number, None);
                known.push(Some(at));
            }
        }
        assert!(overlapping > 10_000, "{overlapping}");
    }
}
