//! Finds the tensors that a text spells in full, by number, without reading the text again for each question.

use std::ops::Range;

use rustc_hash::FxHashMap;

/// Where each `T7_…` begins for the first time in the part of a text that was read so far.
#[derive(Default)]
pub(super) struct SpelledTensors {
    first: FxHashMap<u32, usize>,
    /// The part of the text that was read.
    read: Range<usize>,
}

impl SpelledTensors {
    /// Returns whether a part of a text spells the tensor with this number in full.
    pub(super) fn has(&mut self, text: &str, number: u32, part: Range<u32>) -> bool {
        let (start, end) = (part.start as usize, part.end as usize);
        if self.read.start != start {
            *self = Self { read: start..start, ..Self::default() };
        }
        let bytes = text.as_bytes();
        while self.read.end < end.min(bytes.len()) {
            let at = self.read.end;
            self.read.end += 1;
            let is_start = at == start || !is_word(bytes[at - 1]);
            if bytes[at] == b'T'
                && is_start
                && let Some(number) = number_at(bytes, at + 1)
            {
                self.first.entry(number).or_insert(at);
            }
        }
        self.first.get(&number).is_some_and(|at| at + format!("T{number}_").len() <= end)
    }
}

/// Returns the number at an offset if `_` follows it.
fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    let rest = bytes.get(at..)?;
    let digits = rest.iter().take_while(|it| it.is_ascii_digit()).count();
    let (digits, rest) = rest.split_at(digits);
    let is_canonical = digits.first() != Some(&b'0') || digits.len() == 1;
    if rest.first() != Some(&b'_') || !is_canonical {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}
