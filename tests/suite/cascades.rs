//! Checks that one mistake in a text gives few errors: seeded edits of one token or line of every program that reads
//! without an error (`mangle`).
//!
//! There are more than 20,000 refused texts. Half of them have one error, and of a hundred, 99 have three at most. An edit that gives more than `LIMIT` errors, twice as many if it replaces all of a name, fails the test. `tests/suite/cascades.txt` records, for each kind of
//! edit, how many texts are refused and how many errors these have; `INSTA_UPDATE=always` writes it again.
//! `HIR_CASCADES=20` (edits of each kind and program) and `HIR_SEED=7` try others. A text that fails is written to
//! the temporary folder, and its name is printed.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use grammar::{codes::Severity, source::Source};
use libtest_mimic::{Failed, Trial};

use crate::{
    ROOT, files,
    mangle::{Corpus, EDITS, Edit, edited},
    rng::Rng,
    setting, shown, small_program,
};

/// Maximum number of errors that one edit may give.
pub const LIMIT: usize = 5;

/// The table.
const TABLE: &str = "tests/suite/cascades.txt";

/// Numbers of texts and errors for one kind of edit.
#[derive(Default)]
struct Count {
    texts: usize,
    refused: usize,
    errors: usize,
    worst: usize,
}

/// Returns the trial of this file. `cases` are the programs to edit.
pub fn trials(cases: &[PathBuf]) -> Vec<Trial> {
    let cases = cases.to_vec();
    vec![Trial::test("cascades::one_edit_gives_few_errors", move || one_edit_gives_few_errors(&cases))]
}

fn one_edit_gives_few_errors(cases: &[PathBuf]) -> Result<(), Failed> {
    let number = |name| setting::number(name).map(|it| it as u64);
    let (each, seed) = (number("HIR_CASCADES"), number("HIR_SEED").unwrap_or(0));
    let corpus = corpus();
    let (mut counts, mut faults) = (BTreeMap::<Edit, Count>::new(), String::new());
    let mut all = Vec::new();
    for path in cases {
        let text = fs::read_to_string(path)?;
        if errors(&text) > 0 {
            continue;
        }
        for edit in EDITS {
            for at in 0..each.unwrap_or(2) {
                let Some(mutant) = mutant(&text, edit, &corpus, seed + at) else { continue };
                let found = errors(&mutant);
                let count = counts.entry(edit).or_default();
                count.texts += 1;
                count.refused += usize::from(found > 0);
                count.errors += found;
                all.extend((found > 0).then_some(found));
                count.worst = count.worst.max(found);
                // What is replaced everywhere is an error at many places of a long program.
                let limit = if matches!(edit, Edit::ReplaceAll(_)) { 2 * LIMIT } else { LIMIT };
                if found > limit {
                    let file = std::env::temp_dir().join(format!("hir-cascade-{:016x}.hir", hash(&mutant)));
                    fs::write(&file, &mutant)?;
                    let _ =
                        writeln!(faults, "{edit:?} of {}: {found} errors: {}", shown(path), file.display());
                }
            }
        }
    }
    all.sort_unstable();
    let quantile = |part: usize| all.get(all.len() * part / 100).copied().unwrap_or(0);
    let are_few = each.is_none() && all.len() < 20_000;
    if are_few || quantile(50) > 1 || quantile(99) > 3 {
        let _ = writeln!(
            faults,
            "of {} refused texts, half have {} errors, and 99 % have {}",
            all.len(),
            quantile(50),
            quantile(99)
        );
    }
    if !faults.is_empty() {
        return Err(faults.into());
    }
    // Other edits than those of the table.
    if each.is_some() || seed > 0 {
        return Ok(());
    }
    setting::compare(TABLE, &table(&counts))
}

/// Returns the tokens and lines that edits insert. Those of the samples and the documentation: they change less often
/// than the cases.
pub fn corpus() -> Corpus {
    let folders = ["samples", "docs/examples"].iter();
    let paths = folders.flat_map(|it| files(&Path::new(ROOT).join(it), "hir"));
    let paths = paths.map(|it| small_program(&it).unwrap_or(it));
    let texts: Vec<String> = paths.map(|it| fs::read_to_string(it).unwrap_or_default()).collect();
    Corpus::of(texts.iter().map(String::as_str))
}

/// Returns a text with an edit. Its seed derives from the text, so that a case has the same edits whatever other
/// cases there are.
fn mutant(text: &str, edit: Edit, corpus: &Corpus, seed: u64) -> Option<String> {
    let kind = EDITS.iter().position(|it| *it == edit).unwrap_or_default() as u64;
    edited(text, edit, corpus, &mut Rng(hash(text) ^ seed ^ (kind << 40)))
}

/// Returns a hash of a text.
pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Returns the number of errors that the tools report about a text.
pub fn errors(text: &str) -> usize {
    let (_, diagnostics) = Source::new("text".to_owned(), text.to_owned()).programs();
    diagnostics.iter().filter(|it| it.severity() == Severity::Error).count()
}

fn table(counts: &BTreeMap<Edit, Count>) -> String {
    let mut text = String::from("edit                    refused   errors of a refused text: mean, worst\n");
    for (edit, it) in counts {
        let refused = 100 * it.refused / it.texts.max(1);
        let mean = it.errors as f64 / it.refused.max(1) as f64;
        let _ = writeln!(text, "{:<24}{refused:>5} %{mean:>10.1}{:>4}", format!("{edit:?}"), it.worst);
    }
    text
}
