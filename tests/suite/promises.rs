//! `docs/failures.md` names the tests that show what it promises: each of them exists. They, and all others about hostile
//! inputs and failing machines, are of one kind: `cargo test --test suite hostile` runs them.

use std::{collections::HashSet, fs, path::Path};

use libtest_mimic::{Failed, Trial};

use super::{ROOT, files};

/// How the names of hostile trials begin, besides those that `docs/failures.md` names.
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

/// Marks the trials about hostile inputs and failing machines: the kind is part of what a filter is compared with.
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

/// The rows of the table.
fn rows(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|it| it.starts_with("| ")).skip(2)
}

/// The tests that a row names.
fn tests(row: &str) -> impl Iterator<Item = &str> {
    row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default().split('`').skip(1).step_by(2)
}

/// The trial of this file; `names` are those of all others.
pub fn trial(names: HashSet<String>) -> Trial {
    Trial::test("every_promise_has_its_tests", move || every_promise_has_its_tests(&names))
}

fn every_promise_has_its_tests(names: &HashSet<String>) -> Result<(), Failed> {
    let sources: String =
        files(&Path::new(ROOT).join("src"), "rs").iter().map(fs::read_to_string).collect::<Result<_, _>>()?;
    let exists = |name: &str| match name.ends_with(".hir") {
        true => Path::new(ROOT).join("tests/cases").join(name).exists(),
        false => names.contains(name) || sources.contains(&format!("fn {name}()")),
    };
    let text = fs::read_to_string(Path::new(ROOT).join("docs/failures.md"))?;
    let rows: Vec<&str> = rows(&text).collect();
    for row in &rows {
        let names: Vec<&str> = tests(row).collect();
        if let Some(lost) = names.iter().find(|it| !exists(it)) {
            return Err(format!("there is no test `{lost}`, which docs/failures.md names").into());
        }
        if names.is_empty() {
            return Err(format!("no test shows: {row}").into());
        }
    }
    match rows.is_empty() {
        true => Err("docs/failures.md has no table".into()),
        false => Ok(()),
    }
}
