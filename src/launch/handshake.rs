//! Proof that all ranks are about to do the same thing.
//!
//! Every rank states what it holds: sections of text, such as the version, the options, the programs. Hashes go round
//! first, and the texts only where those differ.

use std::hash::Hasher;

use rustc_hash::FxHasher;

use super::{LaunchError, channel::Channel, wire};

/// What a rank holds: named texts, the same names in the same order on every rank that agrees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statement {
    sections: Vec<Section>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Section {
    /// What it is, `the programs`.
    what: &'static str,
    /// Where this rank has it from, `a.hir`; it may differ.
    origin: String,
    text: String,
}

/// Lines around a difference.
const CONTEXT: usize = 2;
/// Most lines of a difference that are told.
const MAX_LINES: usize = 60;

impl Statement {
    /// Adds a text that all ranks have to hold alike, wherever they have it from.
    pub fn add(&mut self, what: &'static str, origin: &str, text: String) {
        self.sections.push(Section { what, origin: origin.to_owned(), text });
    }

    fn hash(&self) -> Vec<u8> {
        let mut hashers = [FxHasher::default(), FxHasher::default()];
        hashers[1].write_u8(1);
        for it in &self.sections {
            for hasher in &mut hashers {
                hasher.write(it.what.as_bytes());
                hasher.write_usize(it.text.len());
                hasher.write(it.text.as_bytes());
            }
        }
        hashers.iter().flat_map(|it| it.finish().to_le_bytes()).collect()
    }

    fn encode(&self) -> Vec<u8> {
        wire::join(
            self.sections
                .iter()
                .flat_map(|it| [it.what.as_bytes(), it.origin.as_bytes(), it.text.as_bytes()]),
        )
    }
}

/// Compares the statements of all ranks; `None` where they agree, else how they differ, the same text on all ranks.
///
/// # Errors
/// As `Channel::all_gather`.
pub fn agree(channel: &Channel, mine: &Statement) -> Result<Option<String>, LaunchError> {
    let hashes = channel.all_gather(&mine.hash())?;
    if hashes.windows(2).all(|it| it[0] == it[1]) {
        return Ok(None);
    }
    let texts = channel.all_gather(&mine.encode())?;
    Ok(Some(difference(&texts)))
}

/// How the ranks' statements differ: the first section that does, with a diff of rank 0's and the first other one.
fn difference(texts: &[Vec<u8>]) -> String {
    let sections = |bytes: &Vec<u8>| -> Vec<[String; 3]> {
        let parts = wire::split(bytes).unwrap_or_default();
        let text = |at: &Vec<u8>| String::from_utf8_lossy(at).into_owned();
        parts.chunks_exact(3).map(|it| [text(&it[0]), text(&it[1]), text(&it[2])]).collect()
    };
    let all: Vec<Vec<[String; 3]>> = texts.iter().map(sections).collect();
    let none = [String::new(), String::new(), String::new()];
    let longest = all.iter().map(Vec::len).max().unwrap_or(0);
    for at in 0..longest {
        let section = |rank: usize| all[rank].get(at).unwrap_or(&none);
        let [what, origin, text] = section(0);
        let others: Vec<usize> =
            (1..all.len()).filter(|&it| section(it)[2] != *text || section(it)[0] != *what).collect();
        let Some(&first) = others.first() else { continue };
        let [other_what, other_origin, other] = section(first);
        let what = if what.is_empty() { other_what } else { what };
        let named: Vec<String> = others.iter().map(usize::to_string).collect();
        let ranks = if others.len() == 1 { "rank" } else { "ranks" };
        let diff = similar::TextDiff::from_lines(text.as_str(), other.as_str());
        let mut unified = diff.unified_diff();
        let header = |rank: usize, origin: &str| match origin {
            "" => format!("rank {rank}"),
            origin => format!("rank {rank}: {origin}"),
        };
        let (mine, theirs) = (header(0, origin), header(first, other_origin));
        let unified = unified.context_radius(CONTEXT).header(&mine, &theirs).to_string();
        let mut lines: Vec<&str> = unified.lines().filter(|it| !it.starts_with("\\ No newline")).collect();
        let more = lines.len().saturating_sub(MAX_LINES);
        lines.truncate(MAX_LINES);
        let tail = if more > 0 { format!("\n… {more} more lines") } else { String::new() };
        return format!(
            "the ranks do not hold the same job: {what} of {ranks} {} differ from rank 0's\n{}{tail}",
            named.join(", "),
            lines.join("\n")
        );
    }
    // Equal texts with unequal hashes cannot be.
    "the ranks do not hold the same job".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(file: &str, program: &str) -> Statement {
        let mut it = Statement::default();
        it.add("the versions", "", "hir 1".to_owned());
        it.add("the programs", file, program.to_owned());
        it
    }

    #[test]
    fn a_difference_is_shown_and_file_names_are_none() {
        let (a, b) = (statement("a.hir", "x\ny\nz\n"), statement("b.hir", "x\nY\nz\n"));
        assert_eq!(a.hash(), statement("other.hir", "x\ny\nz\n").hash());
        assert_ne!(a.hash(), b.hash());
        let told = difference(&[a.encode(), b.encode(), a.encode(), b.encode()]);
        let wanted = "the ranks do not hold the same job: the programs of ranks 1, 3 differ from rank 0's\n\
                      --- rank 0: a.hir\n+++ rank 1: b.hir\n@@ -1,3 +1,3 @@\n x\n-y\n+Y\n z";
        assert_eq!(told, wanted);
    }
}
