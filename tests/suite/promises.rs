//! `docs/failures.md` names the tests that show what it promises: each of them exists.

use std::{collections::HashSet, fs, path::Path};

use libtest_mimic::{Failed, Trial};

use super::{ROOT, files};

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
    let rows: Vec<&str> = text.lines().filter(|it| it.starts_with("| ")).skip(2).collect();
    for row in &rows {
        let tests = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
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
