//! Checks that the tests that `docs/failures.md` names exist. These tests, and all others about hostile
//! inputs and failing machines, are of one kind: `cargo test --test suite hostile` runs them.

use std::{collections::HashSet, fs, path::Path};

use libtest_mimic::{Failed, Trial};

use super::{ROOT, files};

/// Prefixes of the names of hostile trials, besides those that `docs/failures.md` names.
const HOSTILE: [&str; 13] = [
    "batch::",
    "files::",
    "gpus::",
    "hostile_texts_survive",
    "mutants_survive_",
    "passes_survive_mutants_",
    "ranks::",
    "rendezvous::",
    "replay::",
    "resources::",
    "signals::",
    "stdout::",
    "tests/cases/limits/",
];

/// Marks the trials about hostile inputs and failing machines. A filter also matches the kind of a trial.
pub fn mark_hostile(trials: Vec<Trial>) -> Vec<Trial> {
    let text = fs::read_to_string(Path::new(ROOT).join("docs/failures.md")).unwrap_or_default();
    let promised: HashSet<&str> = rows(&text).flat_map(tests).collect();
    let is_hostile = |name: &str| {
        let case = name.strip_prefix("tests/cases/").unwrap_or(name);
        promised.contains(case) || HOSTILE.iter().any(|it| name.starts_with(it))
    };
    let mark = |it: Trial| if is_hostile(it.name()) { it.with_kind("hostile") } else { it };
    trials.into_iter().map(mark).collect()
}

/// Returns the rows of the table.
fn rows(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|it| it.starts_with("| ")).skip(2)
}

/// Returns the tests that a row names.
fn tests(row: &str) -> impl Iterator<Item = &str> {
    row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default().split('`').skip(1).step_by(2)
}

/// Returns the trial of this file. `names` are those of all other trials.
pub fn trial(names: HashSet<String>) -> Trial {
    Trial::test("every_promise_has_its_tests", move || every_promise_has_its_tests(&names))
}

fn every_promise_has_its_tests(names: &HashSet<String>) -> Result<(), Failed> {
    let sources: String =
        files(&Path::new(ROOT).join("src"), "rs").iter().map(fs::read_to_string).collect::<Result<_, _>>()?;
    let exists = |name: &str| {
        if name.ends_with(".hir") {
            Path::new(ROOT).join("tests/cases").join(name).exists()
        } else {
            names.contains(name) || sources.contains(&format!("fn {name}()"))
        }
    };
    let text = fs::read_to_string(Path::new(ROOT).join("docs/failures.md"))?;
    let rows: Vec<&str> = rows(&text).collect();
    for row in &rows {
        let names: Vec<&str> = tests(row).collect();
        if let Some(lost) = names.iter().find(|it| !exists(it)) {
            return Err(format!("docs/failures.md names the test `{lost}`, which does not exist").into());
        }
        if names.is_empty() {
            return Err(format!("this row names no test: {row}").into());
        }
    }
    if rows.is_empty() { Err("docs/failures.md has no table".into()) } else { Ok(()) }
}
