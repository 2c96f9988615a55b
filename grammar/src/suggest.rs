//! Suggests corrections of misspelled words.

use std::fmt::Display;

use crate::diagnostic::Diagnostic;

/// Number of characters of a word that are compared; limits the cost for long words.
const MAX_WORD_LENGTH: usize = 40;

/// Returns the candidate with the smallest case-insensitive edit distance to `name`, if it is close enough to
/// be a plausible correction.
pub fn nearest<'c>(name: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let name: String = name.chars().take(MAX_WORD_LENGTH).collect::<String>().to_ascii_lowercase();
    // Of several names that differ only in their numbers, none is more likely than the others.
    let is_numbered = |other: &&str| {
        letters(other, |it| !it.is_ascii_digit()).eq(letters(&name, |it| !it.is_ascii_digit()))
            && !other.eq_ignore_ascii_case(&name)
    };
    let candidates: Vec<&str> = candidates.collect();
    let is_ambiguous = candidates.iter().filter(|it| is_numbered(it)).count() > 1;
    let mut best: Option<(&str, usize)> = None;
    let counts = counts(&name);
    for it in candidates.into_iter().filter(|it| !is_ambiguous || !is_numbered(it)) {
        let limit = best.map_or(usize::MAX, |(_, distance)| distance).min(2 + it.len() / 4);
        if least_distance(counts, it) < limit {
            // A swap of two letters is one typing mistake.
            let distance = strsim::osa_distance(&name, &it.to_ascii_lowercase());
            best = if distance < limit { Some((it, distance)) } else { best };
        }
    }
    let (near, distance) = best?;
    (distance < near.len()).then_some(near)
}

fn letters(word: &str, is_kept: impl Fn(&char) -> bool) -> impl Iterator<Item = char> {
    word.chars().filter(is_kept).map(|it| it.to_ascii_lowercase())
}

/// Returns how often a word has each letter; of letters beyond 64, some count as one.
fn counts(word: &str) -> [i32; 64] {
    let mut counts = [0; 64];
    letters(word, |_| true).for_each(|it| counts[it as usize % 64] += 1);
    counts
}

/// Returns a number that the edit distance is not below: how many letters of these a word lacks, or has beside them, in whatever order.
fn least_distance(mut counts: [i32; 64], other: &str) -> usize {
    letters(other, |_| true).for_each(|it| counts[it as usize % 64] -= 1);
    let sum = |sign: i32| counts.iter().map(|it| (it * sign).max(0)).sum::<i32>();
    sum(1).max(sum(-1)) as usize
}

impl Diagnostic {
    /// Adds the help "did you mean …?" if a candidate is close to `name`; otherwise returns the diagnostic
    /// unchanged.
    pub fn suggest<'c>(self, name: &str, candidates: impl Iterator<Item = &'c str>) -> Self {
        match nearest(name, candidates) {
            Some(near) => self.help(format!("did you mean `{near}`?")),
            None => self,
        }
    }
}

/// Returns a text of a file for messages: control characters, which may change what a terminal shows, are escaped.
pub fn escape_control(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() { shown.extend(letter.escape_debug()) } else { shown.push(letter) }
    }
    shown
}

/// Returns a number with what it counts: `1 rank`, `2 ranks`.
pub fn count_text(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Returns an ordinal number: `1st`, `2nd`, `11th`.
pub fn ordinal(number: usize) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        (_, _) => "th",
    };
    format!("{number}{ending}")
}

/// Returns a list for messages: `a`, `a and b`, `a, b and c`; of more than `limit` items, the first ones and
/// the number of the others.
pub fn list_text<I: Display>(items: impl ExactSizeIterator<Item = I>, limit: usize, word: &str) -> String {
    let count = items.len();
    let mut shown: Vec<String> = items.take(limit).map(|it| it.to_string()).collect();
    if count > limit {
        shown.push(format!("{} more", count - limit));
    }
    match shown.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} {word} {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_distance_is_not_above_the_distance() {
        let words = ["relu", "rleu", "Reul", "reluu", "", "rsqrt", "sqrtr", "größe", "grösse", "T1_g"];
        for (a, b) in words.iter().flat_map(|a| words.iter().map(move |b| (*a, *b))) {
            assert!(
                least_distance(counts(a), b) <= strsim::osa_distance(&a.to_lowercase(), &b.to_lowercase()),
                "{a} {b}"
            );
        }
        assert_eq!([least_distance(counts("rsqrt"), "relu"), least_distance(counts("relu"), "rleu")], [4, 0]);
    }

    #[test]
    fn the_first_of_the_nearest_is_suggested() {
        let near = |name: &str| nearest(name, ["abs", "relu", "rely", "T1", "T2", "sqrt"].into_iter());
        assert_eq!(
            [near("rellu"), near("RLEU"), near("relv"), near("sqr"), near("T3"), near("softmax")],
            [Some("relu"), Some("relu"), Some("relu"), Some("sqrt"), None, None]
        );
    }
}
