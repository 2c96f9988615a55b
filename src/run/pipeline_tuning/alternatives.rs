//! The text of several pipelines.
//!
//! Outside braces, `|` separates whole pipelines; within braces, it separates alternatives of a word:
//! `@lower|@lower,@overlap{count=2|4}` stands for `@lower`, `@lower,@overlap{count=2}` and
//! `@lower,@overlap{count=4}`.

/// Maximum number of pipelines.
pub const MAX_PIPELINES: usize = 64;
/// The characters that end a word of a pipeline.
const DELIMITERS: [char; 7] = ['{', '}', ',', ';', ':', '=', '/'];

/// Returns the pipelines that a text stands for, the alternatives of the first word in the outer loop.
///
/// # Errors
/// A pipeline or an alternative is empty, or there are more than `MAX_PIPELINES`.
fn alternatives(text: &str) -> Result<Vec<String>, String> {
    let pipelines = separated(text);
    if pipelines.len() > 1 && pipelines.contains(&"") {
        return Err(format!(
            "`{text}` has an empty pipeline: for the program without passes, add `--tune-passes ''`"
        ));
    }
    let mut all = Vec::new();
    for it in pipelines {
        all.extend(expanded(it)?);
        if all.len() > MAX_PIPELINES {
            return Err(too_many(text));
        }
    }
    Ok(all)
}

/// Returns the parts of a text between the `|` outside braces.
fn separated(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let parts = text.split(|it| {
        match it {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        it == '|' && depth == 0
    });
    parts.map(str::trim).collect()
}

/// Returns the pipelines that a text stands for in which words are alternatives.
fn expanded(text: &str) -> Result<Vec<String>, String> {
    let mut all = vec![String::new()];
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|it: char| DELIMITERS.contains(&it) || it.is_whitespace()).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let words: Vec<&str> = word.split('|').collect();
        if words.len() > 1 && words.contains(&"") {
            return Err(format!(
                "`{word}` has an empty alternative: within braces, `a|b` stands for one of two words, without blanks"
            ));
        }
        if all.len() * words.len() > MAX_PIPELINES {
            return Err(too_many(text));
        }
        all = all.iter().flat_map(|start| words.iter().map(move |it| format!("{start}{it}"))).collect();
        let delimiter = after.chars().next().map_or(0, char::len_utf8);
        all.iter_mut().for_each(|it| it.push_str(&after[..delimiter]));
        rest = &after[delimiter..];
    }
    Ok(all)
}

/// Returns the pipelines that several texts stand for. Blanks and line breaks become single blanks.
///
/// # Errors
/// As for `alternatives`.
pub fn all_alternatives(texts: &[String]) -> Result<Vec<String>, String> {
    let mut all: Vec<String> = Vec::new();
    for text in texts {
        let text = &text.split_whitespace().collect::<Vec<_>>().join(" ");
        all.extend(alternatives(text)?);
        if all.len() > MAX_PIPELINES {
            return Err(too_many(text));
        }
    }
    Ok(all)
}

fn too_many(text: &str) -> String {
    format!("with `{text}` there are more than {MAX_PIPELINES} pipelines; give fewer alternatives")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expanded(text: &str) -> Vec<String> {
        alternatives(text).unwrap_or_else(|it| vec![it])
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
        assert!(expanded(&format!("a{{x={eight},y={eight},z=1|2}}"))[0].contains("more than 64"));
    }

    #[test]
    fn texts_have_single_blanks() {
        let texts = ["@lower ".to_owned(), " @lower,\n b|\nc".to_owned()];
        assert_eq!(all_alternatives(&texts), Ok(vec!["@lower".into(), "@lower, b".into(), "c".into()]));
    }

    proptest! {
        /// Without alternatives a text stands for itself, and with them for different pipelines without `|`.
        #[test]
        fn texts_are_kept(text in "[a-c@={},;:/| é]{0,24}") {
            match alternatives(&text) {
                Ok(all) => {
                    prop_assert!(text.contains('|') || all == [text.trim()]);
                    prop_assert!(all.iter().all(|it| !it.contains('|')));
                }
                Err(why) => prop_assert!(why.contains("empty") || why.contains("more than")),
            }
        }
    }
}
