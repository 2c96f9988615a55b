//! Checks that the README's two commands and the Python package share their builds: what one compiled, another compiles
//! only again if its packages need other features. And that the committed parser belongs to its grammar.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use libtest_mimic::{Failed, Trial};

use super::ROOT;

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("cargo_run_cargo_test_and_the_python_package_need_equal_features", equal_features),
        Trial::test("the_parser_is_generated_from_the_grammar", parser_is_fresh),
    ]
}

/// Returns the packages that a command compiles for the target, each with its version and features.
fn packages(arguments: &[&str]) -> Result<BTreeSet<String>, Failed> {
    let cargo = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--prefix=none", "--no-dedupe", "--format={p} [{f}]"])
        .args(arguments)
        .current_dir(ROOT)
        .output()?;
    if !cargo.status.success() {
        return Err(format!("cargo tree:\n{}", String::from_utf8_lossy(&cargo.stderr)).into());
    }
    let lines = String::from_utf8(cargo.stdout)?;
    Ok(lines.lines().map(str::to_owned).collect())
}

fn equal_features() -> Result<(), Failed> {
    let mut run = packages(&["--package=hir", "--edges=normal"])?;
    run.extend(packages(&["--package=hir-python", "--edges=normal"])?);
    let test = packages(&["--workspace", "--edges=normal,dev"])?;
    let name = |it: &str| it.split(" [").next().map(str::to_owned);
    let test_names: BTreeSet<_> = test.iter().map(|it| name(it)).collect();
    let other: Vec<&str> = run.difference(&test).map(String::as_str).collect();
    let missing = run.iter().filter(|it| !test_names.contains(&name(it))).count();
    if run.len() < 50 || missing > 0 {
        return Err(format!(
            "{} packages of `cargo run` and the Python package, {missing} not of `cargo test`",
            run.len()
        )
        .into());
    }
    if other.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the tests need more features, declare them in src/equal_builds/Cargo.toml:\n{}",
        other.join("\n")
    )
    .into())
}

fn parser_is_fresh() -> Result<(), Failed> {
    let source = Path::new(ROOT).join("src/syntax");
    let grammar = fs::read_to_string(source.join("syntax.lalrpop"))?;
    let parser = fs::read_to_string(source.join("syntax.rs"))?;
    let (head, generated) = parser.split_once('\n').unwrap_or_default();
    let hash = blake3::hash((grammar + generated).as_bytes());
    if head == format!("// blake3 of syntax.lalrpop and the text below: {hash}") {
        return Ok(());
    }
    let command = "cargo run --manifest-path grammar/generate-parser/Cargo.toml";
    Err(format!("the grammar or the parser has changed: generate the parser with `{command}`").into())
}
