//! Checks that every package below hir comes from crates.io and has a license that `deny.toml` allows, and lists those with several versions. It reads the same
//! file as `cargo deny check licenses bans sources`, whose installation takes longer than all other checks together.

use std::{fs, path::Path, process::Command};

use libtest_mimic::{Failed, Trial};
use spdx::{Expression, ParseMode};

use super::{ROOT, setting};

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("dependencies_come_from_crates_io_with_allowed_licenses", check),
        Trial::test("duplicates_of_dependencies_are_those_of_today", duplicates),
    ]
}

/// Compares the packages of which the tools use several versions with the recorded ones.
fn duplicates() -> Result<(), Failed> {
    let cargo = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--offline",
            "--duplicates",
            "--edges=normal",
            "--depth=0",
            "--prefix=none",
        ])
        .current_dir(ROOT)
        .output()?;
    if !cargo.status.success() {
        return Err(format!("cargo tree:\n{}", String::from_utf8_lossy(&cargo.stderr)).into());
    }
    let mut list: Vec<String> =
        String::from_utf8_lossy(&cargo.stdout).lines().map(|it| format!("{it}\n")).collect();
    list.retain(|it| it.len() > 1);
    list.sort_unstable();
    list.dedup();
    setting::compare("tests/suite/duplicates.txt", &list.concat())
}

fn check() -> Result<(), Failed> {
    let deny = fs::read_to_string(Path::new(ROOT).join("deny.toml"))?;
    let list = deny
        .split_once("allow = [")
        .and_then(|(_, rest)| rest.split_once(']'))
        .ok_or("deny.toml allows no license")?
        .0;
    let allowed: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--all-features", "--format-version=1"])
        .current_dir(ROOT)
        .output()?;
    if !cargo.status.success() {
        return Err(format!("cargo metadata:\n{}", String::from_utf8_lossy(&cargo.stderr)).into());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&cargo.stdout)?;
    let packages = metadata["packages"]
        .as_array()
        .filter(|it| !it.is_empty())
        .ok_or("cargo metadata names no package")?;
    let faults: Vec<String> = packages
        .iter()
        .filter_map(|package| {
            let text = |key: &str| package[key].as_str();
            let name =
                format!("{} {}", text("name").unwrap_or_default(), text("version").unwrap_or_default());
            // The packages of this workspace have no source.
            let source = text("source")?;
            let license = Expression::parse_mode(text("license").unwrap_or_default(), ParseMode::LAX);
            let is_allowed =
                license.is_ok_and(|it| it.evaluate(|one| allowed.contains(&one.to_string().as_str())));
            if source != CRATES_IO {
                Some(format!("{name} comes from {source}"))
            } else if is_allowed {
                None
            } else {
                Some(format!("{name} has the license {}, which deny.toml does not allow", package["license"]))
            }
        })
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}
