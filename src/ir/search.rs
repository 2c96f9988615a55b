//! What the searches of hir have in common: propose, judge, keep.
//!
//! A search proposes changes, and judges each within a `Budget`, which is also its trace: how much was judged, and how much was left
//! out. `first_kept` keeps the first proposal that is good enough, `best` the one that costs least, and `while_it_helps` goes on as
//! long as something is kept. What a proposal is, and how good it is, is that of each search.

/// How much a search may do, in units of its own, and what it has done.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    limit: usize,
    spent: usize,
    left_out: usize,
}

impl Budget {
    /// Creates a budget of so many units.
    pub const fn new(limit: usize) -> Self {
        Self { limit, spent: 0, left_out: 0 }
    }

    /// Returns the units that were spent.
    pub const fn spent(&self) -> usize {
        self.spent
    }

    /// Returns the number of proposals that were left out.
    pub const fn left_out(&self) -> usize {
        self.left_out
    }

    /// Returns whether nothing is left.
    pub const fn is_spent(&self) -> bool {
        self.spent >= self.limit
    }

    /// Spends units for a proposal that is judged anyway. Its cost may be known only then.
    pub const fn spend(&mut self, units: usize) {
        self.spent = self.spent.saturating_add(units);
    }

    /// Spends units for a proposal, if anything is left. Returns whether the proposal may be judged.
    pub const fn admits(&mut self, units: usize) -> bool {
        if self.is_spent() {
            self.left_out += 1;
            return false;
        }
        self.spend(units);
        true
    }
}

/// Returns what becomes of the first proposal that is kept.
///
/// # Errors
/// Returns why the first proposal is not kept; `None` if there is none.
pub fn first_kept<P, T, E>(
    proposals: impl IntoIterator<Item = P>,
    mut judge: impl FnMut(P) -> Result<T, E>,
) -> Result<T, Option<E>> {
    let mut first = None;
    for it in proposals {
        match judge(it) {
            Ok(kept) => return Ok(kept),
            Err(reason) => _ = first.get_or_insert(reason),
        }
    }
    Err(first)
}

/// Returns the proposal that costs least, with its cost: the first one of several. A proposal without a cost is not kept.
pub fn best<P>(
    proposals: impl IntoIterator<Item = P>,
    mut cost: impl FnMut(&P) -> Option<f64>,
) -> Option<(P, f64)> {
    let judged = proposals.into_iter().filter_map(|it| cost(&it).map(|cost| (it, cost)));
    judged.min_by(|a, b| a.1.total_cmp(&b.1))
}

/// Repeats a step, which returns whether it has kept a proposal, while it has, at most `most` times.
pub fn while_it_helps(most: usize, mut step: impl FnMut() -> bool) {
    for _ in 0..most {
        if !step() {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_says_what_it_leaves_out() {
        let mut budget = Budget::new(5);
        assert_eq!([2, 4, 1].map(|units| budget.admits(units)), [true, true, false]);
        assert_eq!((budget.spent(), budget.left_out(), budget.is_spent()), (6, 1, true));
    }

    #[test]
    fn the_first_reason_and_the_first_best_are_kept() {
        let judge = |it: i32| if it > 2 { Ok(it) } else { Err(it) };
        assert_eq!(first_kept([1, 2, 3, 4], judge), Ok(3));
        assert_eq!(first_kept([1, 2], judge), Err(Some(1)));
        assert_eq!(first_kept([], judge), Err(None));
        let cost = |it: &(char, f64)| (it.1 > 0.0).then_some(it.1);
        assert_eq!(best([('a', 0.0), ('b', 2.0), ('c', 1.0), ('d', 1.0)], cost), Some((('c', 1.0), 1.0)));
        let mut left = 3;
        while_it_helps(9, || {
            left -= 1;
            left > 0
        });
        assert_eq!(left, 0);
    }
}
