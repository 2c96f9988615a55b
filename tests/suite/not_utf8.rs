//! Checks the positions in a file with bytes that are not UTF-8, and that `--fix` writes these bytes back.

use std::{fs, process::Command};

use libtest_mimic::{Failed, Trial};
use serde_json::Value;

use crate::timeout::RunWithTimeout;

const PROGRAM: &[u8] =
    b"%HostIrContainer { (T0_g_float[iS0{4}]) -> (T1_g_float[iS1{4}]) : // \xff\xfe\xe9\n  \
                         T1_g_float[iS1{4}] = relu T0 // \xf4\x8f\xbf\xbf\n}\n";

pub fn trials() -> Vec<Trial> {
    vec![Trial::test(
        "not_utf8::positions_and_fixes_are_those_of_the_file",
        positions_and_fixes_are_those_of_the_file,
    )]
}

fn positions_and_fixes_are_those_of_the_file() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("a.hir");
    fs::write(&path, PROGRAM)?;
    let run = |flag: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hir-opt"));
        command.arg(&path).arg(flag);
        command.output_with_timeout()
    };
    let found: Value = serde_json::from_slice(&run("--error-format=json")?.stderr)?;
    let fix = &found["fixes"][0];
    let offset = |key: &str| fix[key].as_u64().map_or(0, |it| it as usize);
    let mut edited = PROGRAM[..offset("start")].to_vec();
    edited.extend_from_slice(fix["text"].as_str().unwrap_or_default().as_bytes());
    edited.extend_from_slice(&PROGRAM[offset("end")..]);
    let fixed = run("--fix")?;
    if fixed.stdout == edited && edited.windows(10).any(|it| it == b"relu(T0) /") {
        Ok(())
    } else {
        Err(format!("{found} {}", String::from_utf8_lossy(&fixed.stdout)).into())
    }
}
