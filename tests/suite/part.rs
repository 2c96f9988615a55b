//! Random tests, and tests of many programs in many ways, have eight parts. A run of the suite makes one of them, which the
//! commit selects: successive commits test all. `HIR_PARTS=all` makes all of them.

use std::{process::Command, sync::LazyLock};

use super::ROOT;

/// The number of parts.
pub const PARTS: usize = 8;

/// The part that this run makes; `None` for all of them.
static PART: LazyLock<Option<usize>> = LazyLock::new(|| {
    if std::env::var("HIR_PARTS").is_ok_and(|it| it == "all") {
        return None;
    }
    // Without a repository, the first part runs.
    let commit = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(ROOT).output();
    let digit = commit.ok().and_then(|it| char::from(*it.stdout.first()?).to_digit(16));
    Some(digit.unwrap_or_default() as usize % PARTS)
});

/// Returns whether this run makes the tests with a number, which are distributed over the parts in turns.
pub fn includes(number: usize) -> bool {
    PART.is_none_or(|it| number % PARTS == it)
}

/// Returns whether this run makes all parts.
pub fn includes_all() -> bool {
    PART.is_none()
}

/// Returns the first and the distance of the things that this run tests, of those that all parts test at a distance.
pub fn stride(distance: usize) -> (usize, usize) {
    PART.map_or((0, distance), |it| (it * distance, distance * PARTS))
}
