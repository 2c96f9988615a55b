//! Runs the cases: text files whose first lines are commands (`tests/suite.rs` says which).

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use libtest_mimic::{Failed, Trial};

use crate::{ROOT, check_snapshot, shown, timeout::RunWithTimeout};

/// Returns the trial of a case.
pub fn trial(path: PathBuf) -> Trial {
    let launched = fs::read_to_string(&path).is_ok_and(|it| it.contains(": mpirun "));
    let trial = Trial::test(shown(&path), move || {
        let text = fs::read_to_string(&path).map_err(|fault| fault.to_string())?;
        if !text.starts_with("// RUN: ") {
            return Err("the first line must be `// RUN: hir-opt %s …`, or one of `hir-run` or `hir`".into());
        }
        let name = format!("hir-suite-{}-{}", std::process::id(), shown(&path).replace('/', "-"));
        let scratch = std::env::temp_dir().join(name);
        fs::create_dir_all(&scratch).map_err(|fault| fault.to_string())?;
        let outcome = transcript(&path, &text, &scratch);
        let _ = fs::remove_dir_all(&scratch);
        check_snapshot(&path, &outcome?)
    });
    trial.with_ignored_flag(launched && lacks_mpirun())
}

/// Returns the transcript of the RUN and PASTE lines. Fails if a SAME line prints something else than the
/// first RUN line.
fn transcript(path: &Path, text: &str, scratch: &Path) -> Result<String, Failed> {
    let lines = |key: &'static str| text.lines().filter_map(move |line| line.strip_prefix(key));
    let mut transcript = String::new();
    let mut first = None;
    for command in lines("// RUN: ") {
        let output = run(path, command, scratch)?;
        transcript += &describe(command, &output).replace(&scratch.display().to_string(), "%t");
        first = first.or(Some((command, output)));
    }
    for command in lines("// PASTE: ") {
        let request = first.as_ref().map(|(_, output)| String::from_utf8_lossy(&output.stderr).into_owned());
        let last = request.as_deref().and_then(|it| it.lines().last()).unwrap_or_default();
        let flags = last.strip_prefix("add to the command line: ");
        let flags = flags.ok_or("the output of the first RUN line does not end with flags to add")?;
        let pasted = format!("{command} {flags}");
        transcript += &describe(&pasted, &run(path, &pasted, scratch)?);
    }
    for command in lines("// SAME: ") {
        let output = run(path, command, scratch)?;
        let Some((other, wanted)) = &first else { continue };
        let (wanted, have) =
            (String::from_utf8_lossy(&wanted.stdout), String::from_utf8_lossy(&output.stdout));
        if !output.status.success() {
            return Err(format!("SAME {}", describe(command, &output)).into());
        }
        if have != wanted {
            let diff = similar::TextDiff::from_lines(&wanted, &have);
            let diff = diff.unified_diff().context_radius(2).header(other, command).to_string();
            return Err(format!("the SAME line prints something else than the first RUN line\n{diff}").into());
        }
    }
    Ok(transcript)
}

/// Runs one command, and returns its exit code and output.
fn run(path: &Path, command: &str, scratch: &Path) -> Result<Output, Failed> {
    let folder = path.parent().map(shown).unwrap_or_default();
    let temporary = scratch.display().to_string();
    let program = |word: &str| match word {
        "hir" => env!("CARGO_BIN_EXE_hir").to_owned(),
        "hir-opt" => env!("CARGO_BIN_EXE_hir-opt").to_owned(),
        "hir-run" => env!("CARGO_BIN_EXE_hir-run").to_owned(),
        _ => word.replace("%S", &folder).replace("%s", &shown(path)).replace("%t", &temporary),
    };
    let words = split(command);
    let launched = match words.first().map(String::as_str) {
        Some("hir" | "hir-opt" | "hir-run") => false,
        Some("mpirun") => true,
        other => return Err(format!("unknown command {other:?}").into()),
    };
    let words: Vec<String> = words.iter().map(|it| program(it)).collect();
    // A launcher, a colour setting or a GPU around the tests must not change the output of the tools.
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir(ROOT).env_clear().envs(ENVIRONMENT.iter().copied());
    if launched {
        command.envs(std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "HOME"));
        command.envs(MPIRUN.iter().copied());
    }
    let mut output = command.output_with_timeout().map_err(|fault| format!("{}: {fault}", words[0]))?;
    if launched {
        output.stderr = without_boxes(&output.stderr);
    }
    Ok(output)
}

/// Returns true if tests that need mpirun are ignored.
pub fn lacks_mpirun() -> bool {
    static LACKS: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
        std::env::var("HIR_REQUIRE_MPI").as_deref() != Ok("1")
            && Command::new("mpirun").arg("--version").output_with_timeout().is_err()
    });
    *LACKS
}

/// No colours, and no GPU even on a host with GPUs.
pub const ENVIRONMENT: &[(&str, &str)] =
    &[("NO_COLOR", "1"), ("CUDA_VISIBLE_DEVICES", ""), ("HIR_CUDA", "/no/libcuda.so.1")];

/// Lets Open MPI run as root, run more processes than there are cores, and use only this host.
pub const MPIRUN: &[(&str, &str)] = &[
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("OMPI_MCA_plm", "isolated"),
];

/// Removes the messages of mpirun: boxes between lines of dashes, which name hosts and processes.
fn without_boxes(text: &[u8]) -> Vec<u8> {
    let (mut kept, mut inside) = (String::new(), false);
    for line in String::from_utf8_lossy(text).lines() {
        if line.len() > 60 && line.bytes().all(|it| it == b'-') {
            inside = !inside;
        } else if !inside {
            kept += &format!("{line}\n");
        }
    }
    kept.into_bytes()
}

fn describe(command: &str, output: &Output) -> String {
    let code = output.status.code().map_or("killed".to_owned(), |code| code.to_string());
    let mut text = format!("$ {command}\nexit: {code}\n");
    for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        if !bytes.is_empty() {
            text += &format!("--- {name}\n{}", String::from_utf8_lossy(bytes));
        }
    }
    text + "\n"
}

/// Splits a command line into words.
pub fn split(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for character in command.chars() {
        match character {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            _ => words.iter_mut().last().into_iter().for_each(|word| word.push(character)),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}
