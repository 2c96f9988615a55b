//! Suggests corrections of misspelled words.

/// Number of characters of a word that are compared; limits the cost for long words.
const MAX_WORD_LENGTH: usize = 40;

/// Returns the candidate with the smallest case-insensitive edit distance to `name`, if it is close enough to
/// be a plausible correction.
pub fn nearest<'c>(name: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let name: String = name.chars().take(MAX_WORD_LENGTH).collect::<String>().to_ascii_lowercase();
    let distance = |other: &str| strsim::levenshtein(&name, &other.to_ascii_lowercase());
    let (near, distance) = candidates.map(|it| (it, distance(it))).min_by_key(|(_, distance)| *distance)?;
    (distance <= 1 + near.len() / 4).then_some(near)
}
