//! A tool that ends with 0 has written everything that it was asked for.

use std::{fs::File, path::Path, process::Command};

use libtest_mimic::{Failed, Trial};

use super::ROOT;

/// A device that refuses every byte.
const FULL: &str = "/dev/full";

pub fn trials() -> Vec<Trial> {
    let trial = Trial::test("stdout::a_full_device_is_no_success", a_full_device_is_no_success);
    vec![trial.with_ignored_flag(!Path::new(FULL).exists())]
}

fn a_full_device_is_no_success() -> Result<(), Failed> {
    let (run, opt) = (env!("CARGO_BIN_EXE_hir-run"), env!("CARGO_BIN_EXE_hir-opt"));
    let program = "samples/allgather.hir";
    for (tool, arguments) in [
        (run, &[program, "--device=sim"][..]),
        (run, &[program, "--device=sim", "--output", "T1=-"]),
        (run, &[program, "--memory"]),
        (opt, &[program]),
    ] {
        let full = File::options().write(true).open(FULL)?;
        let output = Command::new(tool).args(arguments).current_dir(ROOT).stdout(full).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.code() != Some(6) || !said.contains("cannot write standard output") {
            return Err(format!("{arguments:?} ends with {:?}: {said}", output.status.code()).into());
        }
    }
    Ok(())
}
