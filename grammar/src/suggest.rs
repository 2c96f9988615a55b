//! What a misspelt word may mean.

/// A longer word is nobody's misspelling: so many letters of it are looked at.
const MAX_WORD_LENGTH: usize = 40;

/// The candidate with the smallest edit distance, capitals or not, if it is near enough to be meant.
pub fn nearest<'c>(name: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let name: String = name.chars().take(MAX_WORD_LENGTH).collect::<String>().to_ascii_lowercase();
    let distance = |other: &str| strsim::levenshtein(&name, &other.to_ascii_lowercase());
    let (near, distance) = candidates.map(|it| (it, distance(it))).min_by_key(|(_, distance)| *distance)?;
    (distance <= 1 + near.len() / 4).then_some(near)
}
