//! Composite element types: `float*`, `Array<float, 4, 1>`, `Tensor<float, 2, 2>`,
//! `struct { float x; int n; }`.
//!
//! They can be read and printed, but not computed with.
//!
//! Invariant: a spelling has one number for the lifetime of the process. A type is a small number that can be copied, so its spelling is
//! stored globally, for 16 million types. What is stored is at most as long as the texts that were read.

use std::sync::Mutex;

use rustc_hash::FxHashMap;

use super::DType;

/// Maximum nesting depth.
const MAX_NESTING: usize = 8;

/// The spellings by number, and their numbers. They are leaked, so that names are `&'static str` as for other types.
static SPELLINGS: Mutex<Option<Spellings>> = Mutex::new(None);

#[derive(Default)]
struct Spellings {
    texts: Vec<&'static str>,
    numbers: FxHashMap<&'static str, Composite>,
}

/// A composite element type, identified by the number of its spelling, of three bytes: a `DType` has four.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Composite([u8; 3]);

impl Composite {
    /// Returns the type that `text` spells, regardless of its blanks.
    pub(super) fn from_name(text: &str) -> Option<Self> {
        let mut reader = TypeParser { rest: text.trim(), spelled: String::new() };
        reader.element(0)?;
        if !reader.rest.is_empty() {
            return None;
        }
        let mut spellings = SPELLINGS.lock().ok()?;
        let spellings = spellings.get_or_insert_default();
        if let Some(known) = spellings.numbers.get(reader.spelled.as_str()) {
            return Some(*known);
        }
        let [first, second, third, 0] = u32::try_from(spellings.texts.len()).ok()?.to_le_bytes() else {
            return None;
        };
        let it = Self([first, second, third]);
        let text: &'static str = String::leak(reader.spelled);
        spellings.texts.push(text);
        spellings.numbers.insert(text, it);
        Some(it)
    }

    /// Returns the printed name.
    pub(super) fn name(self) -> &'static str {
        let [first, second, third] = self.0;
        let number = u32::from_le_bytes([first, second, third, 0]) as usize;
        let spellings = SPELLINGS.lock();
        let name = |it: &Option<Spellings>| it.as_ref()?.texts.get(number).copied();
        spellings.ok().and_then(|it| name(&it)).unwrap_or("null_type")
    }
}

/// Parses a type and normalizes its spelling to that of nvFuser.
struct TypeParser<'s> {
    rest: &'s str,
    spelled: String,
}

impl TypeParser<'_> {
    fn element(&mut self, depth: usize) -> Option<()> {
        if depth > MAX_NESTING {
            return None;
        }
        if self.word("struct").is_some() {
            self.sign("{", " {")?;
            while self.sign("}", " }").is_none() {
                self.spelled.push(' ');
                self.element(depth + 1)?;
                self.spelled.push(' ');
                self.name()?;
                self.sign(";", ";")?;
            }
        } else if self.word("Array").or_else(|| self.word("Tensor")).is_some() {
            self.sign("<", "<")?;
            self.element(depth + 1)?;
            while self.sign(",", ", ").is_some() {
                self.number()?;
            }
            self.sign(">", ">")?;
        } else {
            self.plain()?;
        }
        while self.sign("*", "*").is_some() {}
        Some(())
    }

    /// Parses a type of the table, or `null_type`.
    fn plain(&mut self) -> Option<()> {
        let names = DType::ALL.iter().map(|it| it.name()).chain(["null_type"]);
        let longest = names.filter(|it| self.rest.starts_with(it)).max_by_key(|it| it.len())?;
        self.word(longest)
    }

    /// Consumes `word`, unless it is only the beginning of a longer word.
    fn word(&mut self, word: &str) -> Option<()> {
        let rest = self.rest.strip_prefix(word)?;
        if rest.starts_with(is_word) {
            return None;
        }
        self.take(rest, word);
        Some(())
    }

    fn sign(&mut self, sign: &str, spelled: &str) -> Option<()> {
        let rest = self.rest.strip_prefix(sign)?;
        self.take(rest, spelled);
        Some(())
    }

    fn name(&mut self) -> Option<()> {
        let rest = self.rest.trim_start_matches(is_word);
        self.taken(rest)
    }

    fn number(&mut self) -> Option<()> {
        let rest = self.rest.trim_start_matches(|it: char| it.is_ascii_digit());
        self.taken(rest)
    }

    /// Consumes the text before `rest` and appends it to the spelling. Returns `None` if it is empty.
    fn taken(&mut self, rest: &str) -> Option<()> {
        let text = self.rest.get(..self.rest.len() - rest.len()).filter(|it| !it.is_empty())?;
        self.spelled.push_str(text);
        self.rest = self.rest.get(text.len()..)?.trim_start();
        Some(())
    }

    fn take(&mut self, rest: &str, spelled: &str) {
        self.spelled.push_str(spelled);
        self.rest = self.rest.get(self.rest.len() - rest.len()..).unwrap_or("").trim_start();
    }
}

fn is_word(it: char) -> bool {
    it.is_ascii_alphanumeric() || it == '_'
}

#[cfg(test)]
mod tests {
    use super::super::DType;

    #[test]
    fn spellings() {
        for (text, name) in [
            ("float*", "float*"),
            ("__bfloat **", "__bfloat**"),
            ("Array<float,4 , 1>", "Array<float, 4, 1>"),
            ("Array<std::complex<float>, 2, 1>*", "Array<std::complex<float>, 2, 1>*"),
            ("Tensor<float, 2, 2>", "Tensor<float, 2, 2>"),
            ("struct{float x;Array<int64_t,2,1> sizes;}", "struct { float x; Array<int64_t, 2, 1> sizes; }"),
            ("struct { }", "struct { }"),
            ("null_type", "null_type"),
        ] {
            assert_eq!(DType::from_name(text).map(DType::name), Some(name), "{text}");
            assert_eq!(DType::from_name(name), DType::from_name(text));
        }
        for text in
            ["", "*", "floats*", "Array<>", "Array<float, >", "struct { float; }", "struct {", "float*x"]
        {
            assert_eq!(DType::from_name(text), None, "{text}");
        }
        assert_eq!(DType::from_name("float"), Some(DType::Float));
        assert_eq!(DType::from_name(&"Array<".repeat(10_000)), None);
    }

    #[test]
    fn no_text_is_refused_because_of_earlier_ones() {
        assert_eq!(size_of::<DType>(), 4);
        for at in 0..100_000 {
            let name = format!("Array<float, {at}, 1>");
            assert_eq!(DType::from_name(&name).map(DType::name), Some(name.as_str()));
        }
    }
}
