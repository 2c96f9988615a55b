//! Composite element types: `float*`, `Array<float, 4, 1>`, `Tensor<float, 2, 2>`,
//! `struct { float x; int n; }`.
//!
//! They can be read and printed, but not computed with.
//!
//! Invariant: a spelling has one number for the lifetime of the process.

use std::sync::Mutex;

use super::DType;

/// Maximum number of distinct composite types in a process. A type is a small number that can be copied, so
/// its spelling is stored globally.
const MAX_SPELLINGS: usize = 1 << 12;
/// Maximum nesting depth.
const MAX_NESTING: usize = 8;

/// The spellings by number. They are leaked, so that names are `&'static str` as for other types.
static SPELLINGS: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// A composite element type, identified by the number of its spelling.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Composite(u16);

impl Composite {
    /// Returns the type that `text` spells, regardless of its blanks.
    pub(super) fn from_name(text: &str) -> Option<Self> {
        let mut reader = TypeParser { rest: text.trim(), spelled: String::new() };
        reader.element(0)?;
        if !reader.rest.is_empty() {
            return None;
        }
        let mut spellings = SPELLINGS.lock().ok()?;
        let known = spellings.iter().position(|it| *it == reader.spelled);
        let at = match known {
            Some(at) => at,
            None if spellings.len() == MAX_SPELLINGS => return None,
            None => {
                spellings.push(String::leak(reader.spelled));
                spellings.len() - 1
            }
        };
        u16::try_from(at).ok().map(Self)
    }

    /// Returns the printed name.
    pub(super) fn name(self) -> &'static str {
        let spellings = SPELLINGS.lock();
        spellings.ok().and_then(|it| it.get(usize::from(self.0)).copied()).unwrap_or("null_type")
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
}
