//! Sets `HIR_VERSION`, the text of `--version`: in release builds with the commit and its date.
//!
//! Other builds leave the commit out: otherwise every commit would build the tools again.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=PROFILE");
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let is_release = std::env::var("PROFILE").is_ok_and(|it| it == "release");
    let commit = if is_release {
        // The log grows with each commit, also with one on a branch.
        let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]);
        log.iter().for_each(|it| println!("cargo::rerun-if-changed={it}"));
        let name = git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]);
        name.zip(git(&["log", "-1", "--format=%cs"])).map(|(name, date)| format!(" ({name} {date})"))
    } else {
        println!("cargo::rerun-if-changed=build.rs");
        Some(" (development build)".to_owned())
    };
    println!("cargo::rustc-env=HIR_VERSION={version}{}", commit.unwrap_or_default());
}

/// Returns what git prints, or `None` if there is no git or no repository.
fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok().filter(|it| it.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
