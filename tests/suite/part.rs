//! Random tests, and tests of many programs in many ways, have eight parts. A run of the suite makes the first one, so that every run
//! of a text gives the same result. What takes long has halves of parts. `HIR_PARTS=3` makes another part, and 8 to 15 the second halves: the
//! gate makes one of 1 to 15 that the commit selects, and only reports what fails there. `HIR_PARTS=all` makes all of them.

use std::sync::LazyLock;

/// The number of parts.
pub const PARTS: usize = 8;

/// The number of halves of parts.
const HALVES: usize = 2 * PARTS;

/// The half of a part that this run makes; `None` for all parts.
static HALF: LazyLock<Option<usize>> = LazyLock::new(|| match std::env::var("HIR_PARTS") {
    Ok(it) if it == "all" => None,
    it => Some(it.ok().and_then(|it| it.parse().ok()).unwrap_or(0) % HALVES),
});

/// The part that this run makes; `None` for all of them.
fn part() -> Option<usize> {
    HALF.map(|it| it % PARTS)
}

/// Returns whether this run makes the tests with a number, which are distributed over the parts in turns.
pub fn includes(number: usize) -> bool {
    part().is_none_or(|it| number % PARTS == it)
}

/// Returns whether this run makes all parts.
pub fn includes_all() -> bool {
    HALF.is_none()
}

/// Returns whether this run makes the tests with a number, of which a run makes one in so many.
pub fn includes_one_in(count: usize, number: usize) -> bool {
    part().is_none_or(|it| number % count == it % count)
}

/// Returns the first and the distance of the things that this run tests, of those that all parts test at a distance.
pub fn stride(distance: usize) -> (usize, usize) {
    part().map_or((0, distance), |it| (it * distance, distance * PARTS))
}

/// Returns the same for a half of the part.
pub fn stride_of_half(distance: usize) -> (usize, usize) {
    HALF.map_or((0, distance), |it| (it * distance, distance * HALVES))
}
