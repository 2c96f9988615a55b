//! Findings that a repository knows and does not want to hear of again: the file of `hir check --baseline`.
//!
//! An entry names a statement by its text, not by its line, so that other lines may change. It has a count: one more of the same kind is new.
//! Places of files are those from the folder of the baseline.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use grammar::{Code, Diagnostic, Source};
use hir_process::atomic_file;
use serde::{Deserialize, Serialize};

/// What names findings of one kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
struct Kind {
    file: String,
    code: String,
    /// The line in which the finding begins, without indentation.
    statement: String,
}

#[derive(Deserialize, Serialize)]
struct Entry {
    #[serde(flatten)]
    kind: Kind,
    count: usize,
}

/// The known findings, and those of this run.
#[derive(Debug)]
pub(crate) struct Baseline {
    path: PathBuf,
    known: BTreeMap<Kind, usize>,
    /// All findings are taken, to be written.
    updates: bool,
    found: BTreeMap<Kind, usize>,
    /// Whether each finding is known, by file, code, offset and message: a diagnostic passes several places that ask.
    decided: BTreeMap<(String, &'static str, u32, String), bool>,
}

/// How a baseline and a run differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Findings that the baseline has.
    pub(crate) known: usize,
    /// Findings that it does not have.
    pub(crate) new: usize,
    /// Findings of it that the run did not make, though it looked for them.
    pub(crate) gone: usize,
}

impl Baseline {
    /// Reads a baseline. With `updates`, the file may be absent, and each finding counts as known.
    ///
    /// # Errors
    /// The file cannot be read, or is no baseline.
    pub(crate) fn read(path: &Path, updates: bool) -> io::Result<Self> {
        let entries: Vec<Entry> = match fs::read(path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|it| {
                io::Error::new(io::ErrorKind::InvalidData, format!("it is no baseline: {it}"))
            })?,
            Err(fault) if updates && fault.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(fault) => return Err(fault),
        };
        let known = entries.into_iter().map(|it| (it.kind, it.count)).collect();
        Ok(Self { path: path.to_owned(), known, updates, found: BTreeMap::new(), decided: BTreeMap::new() })
    }

    /// Returns whether a finding is known, and counts it.
    pub(super) fn takes(&mut self, source: &Source, it: &Diagnostic) -> bool {
        let at = it.labels.first().map_or(0, |label| label.0.start);
        let instance = (source.name.clone(), it.code.text(), at, it.message.clone());
        if let Some(known) = self.decided.get(&instance) {
            return *known;
        }
        let statement = source.lines.line_text(source.lines.line(at), &source.text);
        let kind = Kind {
            file: self.place(&source.name),
            code: it.code.text().to_owned(),
            statement: statement.trim().to_owned(),
        };
        let most = self.known.get(&kind).copied().unwrap_or(0);
        let count = self.found.entry(kind).or_default();
        *count += 1;
        let known = self.updates || *count <= most;
        self.decided.insert(instance, known);
        known
    }

    /// Returns how the run differs from the baseline in the files that it has checked. `is_searched` says which codes were looked for.
    pub(crate) fn changes(&self, files: &[PathBuf], is_searched: impl Fn(Code) -> bool) -> Changes {
        let checked = self.checked(files, is_searched);
        let of = |all: &BTreeMap<Kind, usize>, it: &Kind| all.get(it).copied().unwrap_or(0);
        let known: usize = self.found.iter().map(|(kind, count)| of(&self.known, kind).min(*count)).sum();
        let gone = self.known.iter().filter(|(kind, _)| checked(kind));
        Changes {
            known,
            new: self.found.values().sum::<usize>() - known,
            gone: gone.map(|(kind, count)| count.saturating_sub(of(&self.found, kind))).sum(),
        }
    }

    /// Writes the findings of this run, and those of files and codes that it did not look at.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&self, files: &[PathBuf], is_searched: impl Fn(Code) -> bool) -> io::Result<()> {
        let checked = self.checked(files, is_searched);
        let folder = self.path.parent().unwrap_or(Path::new(""));
        let mut all = self.found.clone();
        all.extend(
            self.known
                .clone()
                .into_iter()
                .filter(|(kind, _)| !checked(kind) && folder.join(&kind.file).exists()),
        );
        let entry = |(kind, count)| serde_json::to_string(&Entry { kind, count }).map(|it| format!("  {it}"));
        let lines: Vec<String> = all.into_iter().map(entry).collect::<Result<_, _>>()?;
        let text =
            if lines.is_empty() { "[]\n".to_owned() } else { format!("[\n{}\n]\n", lines.join(",\n")) };
        atomic_file::write(&self.path, text.as_bytes())
    }

    /// Returns whether findings of a kind would have been made.
    fn checked(&self, files: &[PathBuf], is_searched: impl Fn(Code) -> bool) -> impl Fn(&Kind) -> bool {
        let files: Vec<String> = files.iter().map(|it| self.place(&it.display().to_string())).collect();
        move |kind| files.contains(&kind.file) && Code::from_text(&kind.code).is_some_and(&is_searched)
    }

    /// Returns a file as seen from the folder of the baseline, if it is below it.
    fn place(&self, file: &str) -> String {
        let full = |it: &Path| fs::canonicalize(it).unwrap_or_else(|_| it.to_owned());
        let folder =
            full(self.path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new(".")));
        let full = full(Path::new(file));
        full.strip_prefix(folder).unwrap_or(&full).display().to_string().replace('\\', "/")
    }
}
