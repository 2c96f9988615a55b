//! The file of a table of algorithms. Its keys and units are in `docs/exit-codes.md`.

use std::{fmt::Write, path::Path};

use grammar::escape_control;
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use super::pipelines::TunedProgram;
use hir_executor::{Machine, MatmulAlgorithm};

/// The version of the format. Version 1 has no pipelines.
const VERSION: u32 = 2;
/// Maximum size of a file in bytes.
pub(super) const MAX_BYTES: u64 = 16 << 20;

/// Algorithms and pipelines that were measured on one kind of machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TuningTable {
    version: u32,
    pub machine: Machine,
    /// Number of ranks with which products were measured last.
    pub ranks: usize,
    pub products: Vec<Entry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pipelines: Vec<PipelineEntry>,
}

/// The algorithm of a product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    /// Identifies the product.
    pub product: String,
    #[serde(with = "hexadecimal")]
    pub algorithm: MatmulAlgorithm,
    /// Microseconds of the whole program with the algorithm that cuBLASLt expects to be the fastest.
    pub first_us: f64,
    /// Microseconds of the whole program with this algorithm.
    pub best_us: f64,
}

/// The fastest of several pipelines of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PipelineEntry {
    pub program: TunedProgram,
    /// The pipeline, as `--passes` takes it.
    pub passes: String,
    /// Microseconds of a run on the slowest rank with the first pipeline that was measured.
    pub first_us: f64,
    /// Microseconds of a run on the slowest rank with this pipeline.
    pub best_us: f64,
}

/// Why the contents of a file are not a table, in words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadTable(String);

impl<T: Into<String>> From<T> for BadTable {
    fn from(fault: T) -> Self {
        Self(fault.into())
    }
}

/// The only key that every version of the format has.
#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

impl TuningTable {
    /// Returns a table without entries.
    pub fn new(machine: Machine, ranks: usize) -> Self {
        Self { version: VERSION, machine, ranks, products: Vec::new(), pipelines: Vec::new() }
    }

    /// Reads the contents of a file. `path` is its name in messages.
    ///
    /// # Errors
    /// The contents are not a table, or one of another version. The message names the place.
    pub fn parse(path: &Path, text: &str) -> Result<Self, BadTable> {
        let shown = path.display();
        let wrong = |fault: &serde_json::Error| {
            let message = fault.to_string();
            let message = escape_control(message.split(" at line ").next().unwrap_or_default());
            format!(
                "`{shown}:{}:{}` is not a table that `--tune` writes: {message}",
                fault.line(),
                fault.column()
            )
        };
        let head: Versioned = serde_json::from_str(text).map_err(|it| wrong(&it))?;
        if !(1..=u64::from(VERSION)).contains(&head.version) {
            return Err(format!(
                "`{shown}` has version {}, and this hir-run reads versions 1 to {VERSION}: measure again with `--tune`",
                head.version
            ).into());
        }
        let mut table: Self = serde_json::from_str(text).map_err(|it| wrong(&it))?;
        if table.version == 1 && !table.pipelines.is_empty() {
            return Err(format!(
                "`{shown}` has version 1, which has no `pipelines`: measure again with `--tune`"
            )
            .into());
        }
        table.version = VERSION;
        let mut seen = FxHashSet::default();
        let twice = table.products.iter().map(|it| &it.product).find(|it| !seen.insert(*it));
        if let Some(product) = twice {
            return Err(
                format!("`{shown}` has two entries of the product `{}`", escape_control(product)).into()
            );
        }
        let mut programs = table.pipelines.iter().enumerate();
        let twice = programs
            .find(|(at, it)| table.pipelines[..*at].iter().any(|other| it.program.runs_like(&other.program)));
        match twice {
            Some((_, it)) => {
                let name = escape_control(&it.program.name);
                Err(format!("`{shown}` has two pipelines of the program `{name}`").into())
            }
            None => Ok(table),
        }
    }

    /// Returns the contents of a file.
    pub fn text(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

/// Returns microseconds rounded to nanoseconds, as the table has them.
pub fn rounded(microseconds: f64) -> f64 {
    (microseconds * 1e3).round() / 1e3
}

/// Returns the first value in which two machines differ: its name, that of the first and that of the second.
pub(super) fn difference<'a>(
    first: &'a Machine,
    second: &'a Machine,
) -> Option<(&'static str, &'a str, &'a str)> {
    let values = [
        ("GPU", &first.gpu, &second.gpu),
        ("CUDA version of the driver", &first.driver, &second.driver),
        ("version of cuBLASLt", &first.cublaslt, &second.cublaslt),
    ];
    let (name, first, second) = values.into_iter().find(|(_, first, second)| first != second)?;
    Some((name, first.as_str(), second.as_str()))
}

/// Algorithms as 128 hexadecimal digits: 64 bytes.
mod hexadecimal {
    use serde::{Deserializer, Serializer, de::Error};

    use super::*;

    pub fn serialize<S: Serializer>(it: &MatmulAlgorithm, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::new();
        it.0.iter().flat_map(|word| word.to_le_bytes()).for_each(|byte| _ = write!(text, "{byte:02x}"));
        serializer.serialize_str(&text)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<MatmulAlgorithm, D::Error> {
        let text = String::deserialize(deserializer)?;
        decode(&text).ok_or_else(|| D::Error::custom("an algorithm is 128 hexadecimal digits"))
    }

    fn decode(text: &str) -> Option<MatmulAlgorithm> {
        if text.len() != 128 || !text.bytes().all(|it| it.is_ascii_hexdigit()) {
            return None;
        }
        let mut words = [0; 8];
        for (word, digits) in words.iter_mut().zip(text.as_bytes().as_chunks::<16>().0) {
            let digits = std::str::from_utf8(digits).ok()?;
            *word = u64::from_str_radix(digits, 16).ok()?.swap_bytes();
        }
        Some(MatmulAlgorithm(words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TuningTable {
        let machine = Machine {
            gpu: "NVIDIA H200".to_owned(),
            driver: "13.0".to_owned(),
            cublaslt: "13.0.2".to_owned(),
        };
        let mut table = TuningTable::new(machine, 4);
        table.products.push(Entry {
            product: "1x2x3 bf16->bf16".to_owned(),
            algorithm: MatmulAlgorithm([0x0102_0304_0506_0708, 1, 2, 3, 4, 5, 6, u64::MAX]),
            first_us: 10.5,
            best_us: 9.25,
        });
        let program = TunedProgram {
            digest: "00ff".to_owned(),
            name: "f.hir".to_owned(),
            settings: String::new(),
            ranks: 4,
            graph: true,
        };
        table.pipelines.push(PipelineEntry {
            program,
            passes: "@lower".to_owned(),
            first_us: 2.0,
            best_us: 1.0,
        });
        table
    }

    fn parse(text: &str) -> Result<TuningTable, String> {
        TuningTable::parse(Path::new("t.json"), text).map_err(|it| it.to_string())
    }

    #[test]
    fn a_table_is_read_as_it_was_written() -> serde_json::Result<()> {
        let text = table().text()?;
        assert!(text.contains("\"08070605040302010100000000000000"), "{text}");
        assert_eq!(parse(&text), Ok(table()));
        Ok(())
    }

    #[test]
    fn what_is_no_table_is_refused_with_its_place() -> serde_json::Result<()> {
        let text = table().text()?;
        let error_of = |text: &str| parse(text).err().unwrap_or_default();
        let begins = "`t.json:1:0` is not a table that `--tune` writes: EOF";
        assert!(error_of("").starts_with(begins), "{}", error_of(""));
        for end in 0..text.len() - 2 {
            assert!(error_of(&text[..end]).contains("is not a table that `--tune` writes"), "{end}");
        }
        let later = text.replace("\"version\": 2", "\"version\": 3").replace("\"ranks\"", "\"more\"");
        let message =
            "`t.json` has version 3, and this hir-run reads versions 1 to 2: measure again with `--tune`";
        assert_eq!(error_of(&later), message);
        let first = error_of(&text.replace("\"version\": 2", "\"version\": 1"));
        assert_eq!(first, "`t.json` has version 1, which has no `pipelines`: measure again with `--tune`");
        let unknown = error_of(&text.replace("\"ranks\"", "\"more\""));
        assert!(unknown.starts_with("`t.json:8:8` is not a table"), "{unknown}");
        assert!(unknown.contains("unknown field `more`"), "{unknown}");
        for wrong in [text.replace("\"0807", "\"807"), text.replace("\"0807", "\"080x")] {
            assert!(error_of(&wrong).contains("an algorithm is 128 hexadecimal digits"), "{wrong}");
        }
        let mut twice = table();
        twice.products.push(twice.products[0].clone());
        let message = "`t.json` has two entries of the product `1x2x3 bf16->bf16`";
        assert_eq!(error_of(&twice.text()?), message);
        twice.products.iter_mut().for_each(|it| it.product = "a\u{1b}[2Jb\n".to_owned());
        assert_eq!(error_of(&twice.text()?), "`t.json` has two entries of the product `a\\u{1b}[2Jb\\n`");
        let mut twice = table();
        twice.pipelines.push(PipelineEntry { best_us: 3.0, ..twice.pipelines[0].clone() });
        assert_eq!(error_of(&twice.text()?), "`t.json` has two pipelines of the program `f.hir`");
        Ok(())
    }

    #[test]
    fn the_value_that_differs_is_named() {
        let table = table();
        let named = |change: &dyn Fn(&mut Machine)| {
            let mut here = table.machine.clone();
            change(&mut here);
            difference(&table.machine, &here).map(|it| format!("{} {} {}", it.0, it.1, it.2))
        };
        assert_eq!(named(&|_| ()), None);
        let gpu = named(&|it| it.gpu = "NVIDIA H100".to_owned());
        assert_eq!(gpu.as_deref(), Some("GPU NVIDIA H200 NVIDIA H100"));
        let driver = named(&|it| it.driver = "12.8".to_owned());
        assert_eq!(driver.as_deref(), Some("CUDA version of the driver 13.0 12.8"));
        let library = named(&|it| it.cublaslt = "13.1.0".to_owned());
        assert_eq!(library.as_deref(), Some("version of cuBLASLt 13.0.2 13.1.0"));
    }
}
