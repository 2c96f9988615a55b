//! The bytes of constants in texts: two hexadecimal digits for each byte.

use std::sync::Arc;

/// The bytes whose digits are made at a time.
const CHUNK: usize = 4096;

/// Returns the bytes that the digits behind `0x` are; `None` if they are none.
pub fn bytes_of(digits: &str) -> Option<Arc<[u8]>> {
    let digits = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"))?;
    const_hex::decode(digits).ok().map(Arc::from)
}

/// Returns `0x` and the digits of bytes.
pub(crate) fn digits_of(bytes: &[u8]) -> String {
    let mut text = String::new();
    push_digits(&mut text, bytes);
    text
}

/// Appends `0x` and the digits of bytes.
pub(crate) fn push_digits(text: &mut String, bytes: &[u8]) {
    // Room for what follows, too: a text that is full doubles.
    text.reserve(2 * bytes.len() + bytes.len() / 2);
    text.push_str("0x");
    let mut digits = [0; 2 * CHUNK];
    for chunk in bytes.chunks(CHUNK) {
        let digits = &mut digits[..2 * chunk.len()];
        // The room is what the digits take, and these are ASCII.
        if const_hex::encode_to_slice_upper(chunk, digits).is_ok() {
            text.push_str(str::from_utf8(digits).unwrap_or_default());
        }
    }
}
