//! Checks that all ranks are about to run the same job.
//!
//! Every rank has a manifest: sections of text such as the version, the options, the programs, and digests of
//! the input files. The ranks exchange digests of the sections first. Only for the first section that
//! differs, two ranks exchange the text.

use serde::{Deserialize, Serialize};

use super::{Result, channel::Channel};

/// The description of the job that a rank is about to run: titled texts. Ranks that agree have the same
/// sections in the same order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobManifest {
    sections: Vec<Section>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Section {
    /// Title of the section, as in `the programs`.
    title: String,
    /// Source of the text on this rank, as in `a.hir`. It may differ between ranks.
    origin: String,
    text: String,
}

/// Number of lines of context around a difference.
const CONTEXT_LINES: usize = 2;
/// Maximum number of lines of a difference that are printed.
const MAX_DIFF_LINES: usize = 60;
/// Maximum size of a text that is compared line by line, in bytes.
const MAX_DIFF_BYTES: usize = 16 << 20;

impl Section {
    fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(self.title.len() as u64).to_le_bytes());
        hasher.update(self.title.as_bytes());
        hasher.update(self.text.as_bytes());
        *hasher.finalize().as_bytes()
    }

    /// Returns the section as it is sent to other ranks: a text of more than `MAX_DIFF_BYTES` is replaced by
    /// its size.
    fn without_large_text(&self) -> Self {
        match self.text.len() {
            ..=MAX_DIFF_BYTES => self.clone(),
            bytes => Self { text: format!("({bytes} bytes)\n"), ..self.clone() },
        }
    }
}

impl JobManifest {
    /// Adds a text that must be the same on all ranks. Its `origin` may differ.
    pub fn add(&mut self, what: &str, origin: &str, text: String) {
        self.sections.push(Section { title: what.to_owned(), origin: origin.to_owned(), text });
    }

    fn digests(&self) -> Vec<[u8; 32]> {
        self.sections.iter().map(Section::digest).collect()
    }
}

/// Compares the manifests of all ranks. Returns `None` if they agree, else a description of the difference,
/// which is the same text on all ranks.
///
/// # Errors
/// Fails like `Channel::all_gather`.
pub fn compare_manifests(channel: &Channel, mine: &JobManifest) -> Result<Option<String>> {
    let digests = channel.all_gather_values(&mine.digests())?;
    let Some((at, ranks)) = first_difference(&digests) else { return Ok(None) };
    let is_asked = channel.rank == 0 || ranks.first() == Some(&channel.rank);
    let section =
        mine.sections.get(at).filter(|_| is_asked).map(Section::without_large_text).unwrap_or_default();
    let sections = channel.all_gather_values(&section)?;
    let [zero, other] = [0, ranks[0]].map(|rank| sections.get(rank).cloned().unwrap_or_default());
    Ok(Some(describe_difference(&zero, &other, &ranks)))
}

/// Returns the index of the first section that is not the same on all ranks, and the ranks (at least one)
/// whose section differs from that of rank 0.
fn first_difference(digests: &[Vec<[u8; 32]>]) -> Option<(usize, Vec<usize>)> {
    let longest = digests.iter().map(Vec::len).max()?;
    (0..longest).find_map(|at| {
        let differs = |rank: &usize| digests[*rank].get(at) != digests[0].get(at);
        let ranks: Vec<usize> = (1..digests.len()).filter(differs).collect();
        (!ranks.is_empty()).then_some((at, ranks))
    })
}

/// Describes how a section of rank 0 differs from that of the first of `ranks`.
fn describe_difference(zero: &Section, other: &Section, ranks: &[usize]) -> String {
    let what = if zero.title.is_empty() { &other.title } else { &zero.title };
    let named: Vec<String> = ranks.iter().map(usize::to_string).collect();
    let diff = similar::TextDiff::from_lines(zero.text.as_str(), other.text.as_str());
    let header = |rank: usize, origin: &str| match origin {
        "" => format!("rank {rank}"),
        origin => format!("rank {rank}: {origin}"),
    };
    let mut unified = diff.unified_diff();
    let first = ranks.first().copied().unwrap_or(0);
    let (mine, theirs) = (header(0, &zero.origin), header(first, &other.origin));
    let unified = unified.context_radius(CONTEXT_LINES).header(&mine, &theirs).to_string();
    let mut lines: Vec<&str> = unified.lines().filter(|it| !it.starts_with("\\ No newline")).collect();
    let more = lines.len().saturating_sub(MAX_DIFF_LINES);
    lines.truncate(MAX_DIFF_LINES);
    let tail = if more > 0 { format!("\n… {more} more lines") } else { String::new() };
    format!(
        "the ranks do not run the same job: {what} of rank{} {} differ from rank 0's\n{}{tail}",
        if ranks.len() == 1 { "" } else { "s" },
        named.join(", "),
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(file: &str, program: &str) -> JobManifest {
        let mut it = JobManifest::default();
        it.add("the versions", "", "hir 1".to_owned());
        it.add("the programs", file, program.to_owned());
        it
    }

    #[test]
    fn a_difference_is_shown_and_file_names_are_none() {
        let (a, b) = (manifest("a.hir", "x\ny\nz\n"), manifest("b.hir", "x\nY\nz\n"));
        assert_eq!(a.digests(), manifest("other.hir", "x\ny\nz\n").digests());
        let found = first_difference(&[a.digests(), b.digests(), a.digests(), b.digests()]);
        assert_eq!(found, Some((1, vec![1, 3])));
        let text = describe_difference(&a.sections[1], &b.sections[1], &[1, 3]);
        let wanted = "the ranks do not run the same job: the programs of ranks 1, 3 differ from rank 0's\n\
                      --- rank 0: a.hir\n+++ rank 1: b.hir\n@@ -1,3 +1,3 @@\n x\n-y\n+Y\n z";
        assert_eq!(text, wanted);
        // The other rank has one more section.
        let mut longer = a.clone();
        longer.add("the references", "r.hir", "r\n".to_owned());
        assert_eq!(first_difference(&[a.digests(), longer.digests()]), Some((2, vec![1])));
        assert_eq!(first_difference(&[a.digests(), a.digests()]), None);
    }
}
