//! Allocation of numbers for tensors, axes and work.

/// Exclusive upper bound of the numbers of tensors, axes and work.
pub(crate) const NUMBER_LIMIT: u32 = 1 << 31;

/// Returns a number below 2^31 that begins a long range of unused numbers.
///
/// This is the largest used number plus one or, if the largest used number is 2^30 or more, the beginning of
/// the longest unused range.
pub fn free_number(used: impl Iterator<Item = u32>) -> u32 {
    let mut used: Vec<u32> = used.filter(|it| *it < NUMBER_LIMIT).collect();
    match used.iter().max() {
        None => return 0,
        Some(largest) if *largest < NUMBER_LIMIT / 2 => return largest + 1,
        Some(_) => used.sort_unstable(),
    }
    let ends = used.iter().copied().chain([NUMBER_LIMIT]);
    let starts = std::iter::once(0).chain(used.iter().map(|it| it + 1));
    let longest =
        starts.zip(ends).max_by_key(|(start, end)| (end.saturating_sub(*start), NUMBER_LIMIT - start));
    longest.map_or(0, |(start, _)| start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_below_the_limit() {
        let free = |used: &[u32]| free_number(used.iter().copied());
        assert_eq!(free(&[]), 0);
        assert_eq!(free(&[3, 7]), 8);
        assert_eq!(free(&[NUMBER_LIMIT - 1]), 0);
        assert_eq!(free(&[0, 5, NUMBER_LIMIT - 1]), 6);
        assert_eq!(free(&[0, NUMBER_LIMIT - 1, NUMBER_LIMIT / 2, u32::MAX]), 1);
    }
}
