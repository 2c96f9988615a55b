//! The text of several pipelines.
//!
//! Outside braces, `|` separates whole pipelines; within braces, it separates alternatives of a word:
//! `@lower|@lower,@overlap{count=2|4}` stands for `@lower`, `@lower,@overlap{count=2}` and
//! `@lower,@overlap{count=4}`.
//!
//! Each pipeline knows where its parts are in the text, so that a diagnostic about it can point there.

use grammar::InvalidOption;
use grammar::{Diagnostic, Source, Span};

/// The option whose text stands for several pipelines.
const TUNE_PASSES: &str = "--tune-passes";
/// Maximum number of pipelines.
pub const MAX_PIPELINES: usize = 64;
/// The characters that end a word of a pipeline.
const DELIMITERS: [char; 7] = ['{', '}', ',', ';', ':', '=', '/'];

/// One of the pipelines that a text stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alternative {
    /// The pipeline. Blanks and line breaks are single blanks.
    pub text: String,
    /// The position of each byte of `text` in `all`.
    places: Vec<usize>,
    /// The text of the option, which may stand for other pipelines too.
    all: String,
}

impl Alternative {
    /// Adds a part of the option's text that begins at a position.
    fn push(&mut self, part: &str, at: usize) {
        self.text.push_str(part);
        self.places.extend(at..at + part.len());
    }

    /// Replaces blanks and line breaks by single blanks. `all` is the text of the option.
    fn with_single_blanks(&self, all: &str) -> Self {
        let mut it = Self { all: all.to_owned(), ..Self::default() };
        for ((start, letter), place) in self.text.char_indices().zip(self.letter_places()) {
            if !letter.is_whitespace() {
                it.push(&self.text[start..start + letter.len_utf8()], place);
            } else if !it.text.is_empty() && !it.text.ends_with(' ') {
                it.push(" ", place);
            }
        }
        if it.text.ends_with(' ') {
            it.text.pop();
            it.places.pop();
        }
        it
    }

    /// Returns the position of each character.
    fn letter_places(&self) -> impl Iterator<Item = usize> {
        self.text.char_indices().filter_map(|(at, _)| self.places.get(at).copied())
    }

    /// Returns the option's text as a source, and a diagnostic about the pipeline with positions in it. `start` is the
    /// position of the pipeline in the text that the diagnostic is about.
    pub fn locate(&self, start: usize, mut fault: Diagnostic) -> (Source, Diagnostic) {
        let place = |span: Span| {
            let (first, end) = (span.start as usize, span.end as usize);
            let end = self.place_after(end.saturating_sub(start));
            let first = self.places.get(first.saturating_sub(start)).copied().unwrap_or(end);
            // A caret needs at least one column.
            Span::new(first, end.max(first + 1))
        };
        fault.labels.iter_mut().for_each(|(span, _)| *span = place(*span));
        fault.fixes.iter_mut().for_each(|it| it.span = place(it.span));
        (Source::new(TUNE_PASSES.to_owned(), self.all.clone()), fault)
    }

    /// Returns the end in the option's text of the first `count` bytes.
    fn place_after(&self, count: usize) -> usize {
        let last = count.min(self.places.len()).checked_sub(1).and_then(|it| self.places.get(it));
        last.map_or_else(|| self.places.first().copied().unwrap_or(0), |it| it + 1)
    }
}

/// Returns the pipelines that a text stands for, the alternatives of the first word in the outer loop.
///
/// # Errors
/// A pipeline or an alternative is empty, or there are more than `MAX_PIPELINES`.
fn alternatives(text: &str) -> Result<Vec<Alternative>, InvalidOption> {
    let pipelines = separated(text);
    if pipelines.len() > 1 && pipelines.iter().any(|it| it.1.trim().is_empty()) {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        return Err(format!(
            "`{text}` has an empty pipeline: for the program without passes, add `--tune-passes ''`"
        )
        .into());
    }
    let mut all = Vec::new();
    for (start, it) in pipelines {
        all.extend(expanded(start, it)?.iter().map(|it| it.with_single_blanks(text)));
        if all.len() > MAX_PIPELINES {
            return Err(too_many());
        }
    }
    Ok(all)
}

/// Returns the parts of a text between the `|` outside braces, with their positions.
fn separated(text: &str) -> Vec<(usize, &str)> {
    let mut depth = 0_usize;
    let parts = text.split(|it| {
        match it {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        it == '|' && depth == 0
    });
    let mut next = 0;
    let part = |it| {
        let start = next;
        next += str::len(it) + 1;
        (start, it)
    };
    parts.map(part).collect()
}

/// Returns the pipelines that a text stands for in which words are alternatives. `start` is its position.
fn expanded(start: usize, text: &str) -> Result<Vec<Alternative>, InvalidOption> {
    let mut all = vec![Alternative::default()];
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|it| !it.is_empty()) {
        let end = rest.find(|it: char| DELIMITERS.contains(&it) || it.is_whitespace()).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let words: Vec<&str> = word.split('|').collect();
        if words.len() > 1 && words.contains(&"") {
            return Err(format!(
                "`{word}` has an empty alternative: within braces, `a|b` stands for one of two words, without blanks"
            ).into());
        }
        if all.len() * words.len() > MAX_PIPELINES {
            return Err(too_many());
        }
        let mut next = Vec::with_capacity(all.len() * words.len());
        for begun in &all {
            let mut place = start + at;
            for it in &words {
                let mut longer = begun.clone();
                longer.push(it, place);
                next.push(longer);
                place += it.len() + 1;
            }
        }
        let delimiter = after.chars().next().map_or(0, char::len_utf8);
        next.iter_mut().for_each(|it| it.push(&after[..delimiter], start + at + end));
        (all, at) = (next, at + end + delimiter);
    }
    Ok(all)
}

/// Returns the pipelines that several texts stand for.
///
/// # Errors
/// As for `alternatives`.
pub fn all_alternatives(texts: &[String]) -> Result<Vec<Alternative>, InvalidOption> {
    let mut all: Vec<Alternative> = Vec::new();
    for text in texts {
        all.extend(alternatives(text)?);
        if all.len() > MAX_PIPELINES {
            return Err(too_many());
        }
    }
    Ok(all)
}

fn too_many() -> InvalidOption {
    format!("there are more than {MAX_PIPELINES} pipelines: give fewer alternatives").into()
}

#[cfg(test)]
mod tests {
    use grammar::Code;
    use proptest::prelude::*;

    use super::*;

    fn expanded(text: &str) -> Vec<String> {
        alternatives(text)
            .map_or_else(|it| vec![it.to_string()], |all| all.into_iter().map(|it| it.text).collect())
    }

    #[test]
    fn bars_separate_pipelines_or_words() {
        assert_eq!(expanded("a"), ["a"]);
        assert_eq!(expanded("@lower,b{count=2|4}"), ["@lower,b{count=2}", "@lower,b{count=4}"]);
        assert_eq!(expanded("@a,c | @b{x=1|2},c|d"), ["@a,c", "@b{x=1},c", "@b{x=2},c", "d"]);
        assert_eq!(
            expanded("s{table=Allreduce/2:64K=nccl|one-shot;*=nccl}"),
            ["s{table=Allreduce/2:64K=nccl;*=nccl}", "s{table=Allreduce/2:64K=one-shot;*=nccl}"]
        );
        assert!(expanded("a{x=1||2}")[0].starts_with("`1||2` has an empty alternative: "));
        assert!(expanded("a{x=1 |2}")[0].starts_with("`|2` has an empty alternative: "));
        assert!(expanded("a||b")[0].starts_with("`a||b` has an empty pipeline: "));
        let eight = "1|2|3|4|5|6|7|8";
        assert_eq!(expanded(&format!("a{{x={eight},y={eight}}}")).len(), MAX_PIPELINES);
        let message = "there are more than 64 pipelines: give fewer alternatives";
        assert_eq!(expanded(&format!("a{{x={eight},y={eight},z=1|2}}")), [message]);
    }

    #[test]
    fn texts_have_single_blanks() {
        let texts = ["@lower ".to_owned(), " @lower,\n b|\nc".to_owned()];
        let all: Vec<String> = all_alternatives(&texts).into_iter().flatten().map(|it| it.text).collect();
        assert_eq!(all, ["@lower", "@lower, b", "c"]);
    }

    #[test]
    fn diagnostics_point_into_the_text_of_the_option() {
        let text = " a,\n  b{x=1|22|3,é=4} | c{y=5|6}".to_owned();
        let located = |passes: &str, start: usize, word: &str| {
            let all = alternatives(&text).unwrap_or_default();
            let it = all.iter().find(|it| it.text == passes)?;
            let at = start + it.text.find(word)?;
            let fault = Diagnostic::new(Code::BadOption, Span::new(at, at + word.len()), "", "");
            let (source, fault) = it.locate(start, fault);
            assert_eq!((source.name.as_str(), source.text.as_str()), ("--tune-passes", text.as_str()));
            Some((fault.span().start as usize, fault.span().text(&text).to_owned()))
        };
        let place = |word: &str| text.find(word).map(|at| (at, word.to_owned()));
        assert_eq!(located("a, b{x=22,é=4}", 0, "22"), place("22"));
        assert_eq!(located("a, b{x=3,é=4}", 7, "é=4"), place("é=4"));
        assert_eq!(located("a, b{x=22,é=4}", 3, "x=22"), place("x=1|22"));
        assert_eq!(located("c{y=6}", 0, "6"), place("6"));
        // A position without text.
        assert_eq!(located("c{y=6}", 0, ""), place("c"));
    }

    proptest! {
        /// Without alternatives a text stands for itself, and with them for different pipelines without `|`.
        #[test]
        fn texts_are_kept(text in "[a-c@={},;:/| é]{0,24}") {
            match alternatives(&text) {
                Ok(all) => {
                    let single = text.split_whitespace().collect::<Vec<_>>().join(" ");
                    prop_assert!(text.contains('|') || all.iter().map(|it| &it.text).eq([&single]));
                    for it in all {
                        prop_assert!(!it.text.contains('|') && it.text.len() == it.places.len());
                        let is_same = |(letter, place): (char, usize)| text[place..].starts_with(letter) || letter == ' ';
                        prop_assert!(it.text.chars().zip(it.letter_places()).all(is_same));
                    }
                }
                Err(why) => prop_assert!(why.to_string().contains("empty") || why.to_string().contains("more than")),
            }
        }
    }
}
