//! Programs that PyTorch and JAX handed over, with the values that these frameworks computed: `tests/recorded`, which
//! `python/tests/record_programs.py` writes. Each one is checked and run as it is, lowered, and overlapped, and its outputs have to be those
//! of the framework, within the tolerance of values that are given.

use std::{fs, path::Path, process::Command};

use libtest_mimic::{Failed, Trial};

use super::{ROOT, files, shown};
use crate::timeout::RunWithTimeout;

/// Passes that run before a program does.
const PIPELINES: [Option<&str>; 3] = [None, Some("@lower"), Some("@overlap{}")];
/// Minimum number of programs. More of them are lost only by mistake.
const PROGRAMS: usize = 18;

/// Returns a trial for each program.
pub fn trials() -> Vec<Trial> {
    let folder = Path::new(ROOT).join("tests/recorded");
    let programs = [files(&folder, "hir"), files(&folder, "mlir")].concat();
    let count = programs.len();
    let complete = move || match count {
        0..PROGRAMS => Err(format!("{count} recorded programs, not {PROGRAMS}").into()),
        PROGRAMS.. => Ok(()),
    };
    let mut trials = vec![Trial::test("recorded::programs_are_complete", complete)];
    for path in programs {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        trials.push(Trial::test(format!("recorded::{name}"), move || agrees(&path)));
    }
    trials
}

/// Runs a program with each pipeline.
fn agrees(path: &Path) -> Result<(), Failed> {
    let values = path.with_extension("safetensors");
    let mut arguments = vec![shown(path)];
    for key in keys(&values)? {
        let (kind, tensor) = key.split_once('.').ok_or("a value is named `in.` or `out.` and a tensor")?;
        let option = if kind == "in" { "--input" } else { "--expect" };
        arguments.extend([option.to_owned(), format!("{tensor}=@{}#{key}", shown(&values))]);
    }
    for passes in PIPELINES {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
        command.current_dir(ROOT).args(&arguments);
        if let Some(passes) = passes {
            command.args(["--passes", passes]);
        }
        let output = command.output_with_timeout()?;
        if !output.status.success() {
            let text = [output.stdout, output.stderr].concat();
            let passes = passes.unwrap_or("no passes");
            return Err(format!("with {passes}:\n{}", String::from_utf8_lossy(&text)).into());
        }
    }
    Ok(())
}

/// Returns the names of the tensors of a safetensors file: the keys of its JSON header, behind the header's length in 8 bytes.
fn keys(path: &Path) -> Result<Vec<String>, Failed> {
    let bytes = fs::read(path)?;
    let (length, rest) = bytes.split_first_chunk().ok_or("the file has no header")?;
    let header = rest.get(..u64::from_le_bytes(*length) as usize).ok_or("the header is cut off")?;
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header)?;
    Ok(header.keys().cloned().collect())
}
