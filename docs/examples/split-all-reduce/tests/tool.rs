//! The tool is hir with two more passes.

use std::{
    error::Error,
    process::{Command, Output},
};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../mlp-tensor-parallel.hir");

fn tool(arguments: &[&str]) -> Result<(Output, String), Box<dyn Error>> {
    let output = Command::new(env!("CARGO_BIN_EXE_split-all-reduce")).args(arguments).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok((output, text))
}

#[test]
fn the_tool_runs_checks_and_lists_the_passes() -> Result<(), Box<dyn Error>> {
    let (_, list) = tool(&["opt", "--list-passes"])?;
    assert!(
        list.contains("\n  split-all-reduce") && list.contains("\n  remove-unused-allocations"),
        "{list}"
    );
    let passes = "@lower,split-all-reduce,remove-unused-allocations";
    for verify in ["--verify-each=check", "--verify-each=semantic"] {
        let (output, text) = tool(&["opt", PROGRAM, "--passes", passes, verify])?;
        assert!(output.status.success() && text.contains("ReduceScatter"), "{output:?}");
        assert!(!text.contains("Allreduce"), "{text}");
    }
    let (output, _) = tool(&["opt", PROGRAM, "--passes", "split-all-reduce{no=1}"])?;
    assert_eq!(output.status.code(), Some(2));
    Ok(())
}
