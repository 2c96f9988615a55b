//! The edits that `--fix` makes in a text, as diagnostics of the text before: what an editor needs to make them.

use grammar::{Code, Diagnostic, Span, count_text};
use similar::{DiffTag, TextDiff};

/// Returns one remark for each range of lines that differs, with the edit that replaces it.
pub fn edits(before: &str, after: &str) -> Vec<Diagnostic> {
    let [old, new] = [before, after].map(|it| it.split_inclusive('\n').collect::<Vec<&str>>());
    let diff = TextDiff::from_slices(&old, &new);
    let offsets = |lines: &[&str]| -> Vec<usize> {
        let ends = lines.iter().scan(0, |end, line| {
            *end += line.len();
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    };
    let (old_at, new_at) = (offsets(&old), offsets(&new));
    let changed = diff.ops().iter().filter(|it| it.tag() != DiffTag::Equal);
    let edit = |op: &similar::DiffOp| {
        let (old_lines, new_lines) = (op.old_range(), op.new_range());
        let span = Span::new(old_at[old_lines.start], old_at[old_lines.end]);
        let text = &after[new_at[new_lines.start]..new_at[new_lines.end]];
        let message = match (old_lines.len(), new_lines.len()) {
            (0, count) => format!("`--fix` inserts {}", count_text(count, "line")),
            (count, 0) => format!("`--fix` removes {}", count_text(count, "line")),
            (count, _) => format!("`--fix` changes {}", count_text(count, "line")),
        };
        Diagnostic::new(Code::Edited, span, message, "").fix(span, text)
    };
    changed.map(edit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edits_of_a_text_give_the_other_one() {
        for (before, after) in
            [("a\nb\nc", "a\nx\ny\nb\n"), ("", "a"), ("a\n", ""), ("a\r\nb\r\n", "b\r\nc\n")]
        {
            let mut text = before.to_owned();
            for it in edits(before, after).iter().rev().flat_map(|it| &it.fixes) {
                text.replace_range(it.span.start as usize..it.span.end as usize, &it.text);
            }
            assert_eq!(text, after);
        }
        assert!(edits("a\n", "a\n").is_empty());
    }
}
