//! Parses the header of a `.npy` file as `numpy.save` writes it: a magic string, a version, a length, and a
//! Python dictionary with the keys `descr`, `fortran_order` and `shape`.
//!
//! Only dictionaries of this form are accepted, and each size in them is checked before it is used. Source:
//! numpy's format specification, `numpy.lib.format`.

/// The first bytes of a file.
const MAGIC: &[u8] = b"\x93NUMPY";
/// Maximum size of the dictionary in bytes: numpy's default (`max_header_size`).
const MAX_LENGTH: usize = 10_000;
/// Maximum number of dimensions of an array, as in numpy.
pub(super) const MAX_DIMENSIONS: usize = 64;
/// Maximum number of characters of an element type in a message.
const MAX_SHOWN: usize = 40;

/// What is wrong with a header, in words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct BadHeader(String);

impl<T: Into<String>> From<T> for BadHeader {
    fn from(fault: T) -> Self {
        Self(fault.into())
    }
}

/// The contents of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header<'t> {
    /// The element type, such as `<f4`.
    pub descr: &'t str,
    /// Extents, slowest first unless `fortran_order`.
    pub shape: Vec<usize>,
    /// Their product.
    pub elements: usize,
    /// Whether the first dimension is the fastest one.
    pub fortran_order: bool,
    /// What follows the header.
    pub data: &'t [u8],
}

/// Returns the header of an array in C order, as `numpy.save` writes it: the elements begin at a multiple of 64 bytes.
pub(super) fn text(descr: &str, shape: &[usize]) -> Vec<u8> {
    let extents: String = shape.iter().map(|it| format!("{it}, ")).collect();
    let extents = if shape.len() > 1 { extents.trim_end_matches(", ") } else { extents.trim_end() };
    let dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({extents}), }}");
    let length = (MAGIC.len() + 4 + dict.len() + 1).next_multiple_of(64) - MAGIC.len() - 4;
    // 64 dimensions of 20 digits fit in 16 bits.
    let stated = (length as u16).to_le_bytes();
    [MAGIC, &[1, 0], &stated, format!("{dict:0$}\n", length - 1).as_bytes()].concat()
}

/// Parses the header at the beginning of a file.
pub(super) fn parse(bytes: &[u8]) -> Result<Header<'_>, BadHeader> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("it does not begin with the magic string of an npy file")?;
    let (version, rest) = rest.split_at_checked(2).ok_or("the file is truncated")?;
    let width = match version {
        [1, 0] => 2,
        [2 | 3, 0] => 4,
        _ => return Err(format!("npy version {}.{} is not supported", version[0], version[1]).into()),
    };
    let (length, rest) = rest.split_at_checked(width).ok_or("the file is truncated")?;
    let length = length.iter().rev().fold(0usize, |sum, it| sum << 8 | usize::from(*it));
    if length > MAX_LENGTH {
        return Err(format!("its header has {length} bytes; the limit is {MAX_LENGTH}").into());
    }
    let (text, data) = rest.split_at_checked(length).ok_or("the file is truncated")?;
    let text = std::str::from_utf8(text).map_err(|_| "its header is not valid UTF-8")?;
    DictParser { rest: text, data }.header()
}

/// A parser of the dictionary.
struct DictParser<'t> {
    rest: &'t str,
    data: &'t [u8],
}

impl<'t> DictParser<'t> {
    fn header(mut self) -> Result<Header<'t>, BadHeader> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        self.expect('{')?;
        while !self.take('}') {
            let key = self.string()?;
            self.expect(':')?;
            let first = match key {
                "descr" => descr.replace(self.descr()?).is_none(),
                "fortran_order" => fortran_order.replace(self.boolean()?).is_none(),
                "shape" => shape.replace(self.shape()?).is_none(),
                _ => return Err(format!("its header has the unknown key `{}`", shortened(key)).into()),
            };
            if !first {
                return Err(format!("its header has the key `{key}` twice").into());
            }
            if !self.take(',') {
                self.expect('}')?;
                break;
            }
        }
        if !self.rest.trim().is_empty() {
            return Err(self.fault("the end of the header"));
        }
        let lacks = |key: &str| format!("its header has no key `{key}`");
        let shape = shape.ok_or_else(|| lacks("shape"))?;
        // As in numpy, the other extents of an empty array must fit as well.
        let space = shape.iter().filter(|it| **it > 0).try_fold(1usize, |all, it| all.checked_mul(*it));
        if space.is_none_or(|it| it > isize::MAX as usize) {
            return Err(format!("its shape {shape:?} has more elements than memory can hold").into());
        }
        let fortran_order = fortran_order.ok_or_else(|| lacks("fortran_order"))?;
        let descr = descr.ok_or_else(|| lacks("descr"))?;
        Ok(Header { descr, elements: shape.iter().product(), shape, fortran_order, data: self.data })
    }

    /// Parses the element type. Structured types are rejected without parsing.
    fn descr(&mut self) -> Result<&'t str, BadHeader> {
        if self.rest.trim_start().starts_with(['[', '(', '{']) {
            Err(format!(
                "element type {} is not supported: only floats, integers and bools are",
                shortened(self.rest.trim())
            )
            .into())
        } else {
            self.string()
        }
    }

    fn shape(&mut self) -> Result<Vec<usize>, BadHeader> {
        let mut shape = Vec::new();
        self.expect('(')?;
        while !self.take(')') {
            shape.push(self.number()?);
            if shape.len() > MAX_DIMENSIONS {
                return Err(format!("its shape has more than {MAX_DIMENSIONS} dimensions").into());
            }
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(shape)
    }

    fn number(&mut self) -> Result<usize, BadHeader> {
        self.rest = self.rest.trim_start();
        let end = self.rest.find(|it: char| !it.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        if digits.is_empty() {
            return Err(self.fault("an extent"));
        }
        self.rest = rest;
        digits.parse().map_err(|_| format!("its extent {} is too large", shortened(digits)).into())
    }

    fn boolean(&mut self) -> Result<bool, BadHeader> {
        self.rest = self.rest.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err(self.fault("`True` or `False`"))
    }

    /// Parses a string in single or double quotes, without escapes.
    fn string(&mut self) -> Result<&'t str, BadHeader> {
        self.rest = self.rest.trim_start();
        let quote = self.rest.chars().next().filter(|it| matches!(it, '\'' | '"'));
        let inner = quote.and_then(|quote| self.rest[1..].split_once(quote));
        match inner.filter(|(text, _)| !text.contains('\\')) {
            Some((text, rest)) => {
                self.rest = rest;
                Ok(text)
            }
            None => Err(self.fault("a string")),
        }
    }

    fn take(&mut self, wanted: char) -> bool {
        self.rest = self.rest.trim_start();
        let found = self.rest.strip_prefix(wanted);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    fn expect(&mut self, wanted: char) -> Result<(), BadHeader> {
        if self.take(wanted) { Ok(()) } else { Err(self.fault(&format!("`{wanted}`"))) }
    }

    fn fault(&self, wanted: &str) -> BadHeader {
        BadHeader(match self.rest.trim() {
            "" => format!("its header ends where {wanted} is expected"),
            found => format!("its header has `{}` where {wanted} is expected", shortened(found)),
        })
    }
}

/// Returns the start of a text for a message.
pub(super) fn shortened(text: &str) -> String {
    let shown: String = text.chars().take(MAX_SHOWN).collect();
    if shown.len() < text.len() { shown + "…" } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Vec<u8> {
        let length = u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes();
        [&b"\x93NUMPY\x01\x00"[..], &length, text.as_bytes()].concat()
    }

    fn message(text: &str) -> String {
        parse(&file(text)).err().map_or(String::new(), |it| it.to_string())
    }

    #[test]
    fn headers_of_numpy_are_read() {
        let numpy = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }      \n";
        let plain = |shape: &[usize], elements, fortran_order| {
            Ok(Header { descr: "<f4", shape: shape.to_vec(), elements, fortran_order, data: &[] })
        };
        assert_eq!(parse(&file(numpy)), plain(&[2, 3], 6, false));
        let other = "{\"shape\":(7,),\"fortran_order\":True,\"descr\":\"<f4\"}";
        assert_eq!(parse(&file(other)), plain(&[7], 7, true));
        let scalar = "{'descr': '<f4', 'fortran_order': False, 'shape': ()}";
        assert_eq!(parse(&file(scalar)), plain(&[], 1, false));
    }

    #[test]
    fn headers_are_those_of_numpy() {
        let start = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }  ";
        let header = text("<f4", &[2, 3]);
        assert!(header.starts_with(start) && header.ends_with(b" \n") && header.len() == 128);
        for shape in [&[][..], &[7], &[1, 2, 3]] {
            assert_eq!(parse(&text("|b1", shape)).map(|it| it.shape), Ok(shape.to_vec()));
        }
    }

    #[test]
    fn longer_headers_have_other_versions() {
        let dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}\n";
        for version in [2, 3] {
            let length = u32::try_from(dict.len()).unwrap_or_default().to_le_bytes();
            let file = [&b"\x93NUMPY"[..], &[version, 0], &length, dict.as_bytes(), b"12345678"].concat();
            let header = parse(&file).map(|it| (it.shape, it.data));
            assert_eq!(header, Ok((vec![2], &b"12345678"[..])));
        }
        assert_eq!(parse(b"\x93NUMPY\x04\x00"), Err("npy version 4.0 is not supported".into()));
    }

    #[test]
    fn sizes_are_checked() {
        let shaped = |shape: &str| format!("{{'descr': '<f4', 'fortran_order': True, 'shape': {shape}}}");
        let overflow = "its shape [4294967296, 4294967296] has more elements than memory can hold";
        assert_eq!(message(&shaped("(4294967296, 4294967296)")), overflow);
        assert!(message(&shaped("(0, 4294967296, 4294967296)")).contains("more elements than memory"));
        assert_eq!(
            message(&shaped("(99999999999999999999,)")),
            "its extent 99999999999999999999 is too large"
        );
        assert_eq!(
            message(&shaped(&format!("({})", "1,".repeat(65)))),
            "its shape has more than 64 dimensions"
        );
        assert!(message(&shaped("(-1,)")).contains("where an extent is expected"));
        assert!(message(&" ".repeat(10_001)).contains("the limit is 10000"));
    }

    #[test]
    fn nested_types_are_not_taken_apart() {
        let nested = format!("{{'descr': {}, 'shape': ()}}", "[".repeat(4000) + &"]".repeat(4000));
        assert!(message(&nested).starts_with("element type [[[["));
        assert!(message(&nested).len() < 200);
    }
}
