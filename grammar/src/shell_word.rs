//! Words of the commands that messages and files propose.

use std::borrow::Cow;

/// Returns a text as one word for a shell: in quotes if it has characters that a shell reads.
pub fn shell_word(text: &str) -> Cow<'_, str> {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "._-/:@".contains(it);
    if !text.is_empty() && text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("'{}'", text.replace('\'', r"'\''")))
}
