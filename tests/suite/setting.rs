//! What the environment sets for the tests: their numbers, such as `HIR_SEED`, and whether recorded texts are written anew.

use std::{fs, path::Path};

use libtest_mimic::Failed;

use super::ROOT;

/// Returns the number in a variable of the environment.
pub fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

/// Returns the number in a variable of the environment, or the one of a run without it.
pub fn number_or(name: &str, default: usize) -> usize {
    number(name).unwrap_or(default)
}

/// Returns whether recorded texts are written anew.
pub fn updates() -> bool {
    std::env::var("INSTA_UPDATE").is_ok_and(|it| it == "always")
}

/// Compares a text with the recorded one, or records it. `file` is in the repository.
pub fn compare(file: &str, found: &str) -> Result<(), Failed> {
    compare_rows(file, found, |_| true)
}

/// Compares a text with those rows of the recorded one that `is_compared` names, or records it.
pub fn compare_rows(
    file: &str,
    found: &str,
    mut is_compared: impl FnMut(&str) -> bool,
) -> Result<(), Failed> {
    let path = Path::new(ROOT).join(file);
    let recorded = fs::read_to_string(&path).unwrap_or_default();
    let recorded: String = recorded.split_inclusive('\n').filter(|it| is_compared(it)).collect();
    if found == recorded {
        return Ok(());
    }
    if updates() {
        fs::create_dir_all(path.parent().ok_or("no folder")?)?;
        return Ok(fs::write(&path, found)?);
    }
    let diff = similar::TextDiff::from_lines(&recorded, found);
    Err(diff.unified_diff().context_radius(0).header(file, "now").to_string().into())
}
