//! Checks that the tables of `hir_driver::tool::usage` agree with the `--help` of each tool.

use std::{collections::BTreeSet, path::Path, process::Command};

use hir_driver::tool::usage::{FLAGS_BY_TOOL, OPTIONAL_VALUE};
use libtest_mimic::{Failed, Trial};

use crate::timeout::RunWithTimeout;

/// The tools with their executables and arguments. What the first three have, all tools for programs have.
const TOOLS: [(&str, &str, &[&str]); 4] = [
    ("hir-opt", env!("CARGO_BIN_EXE_hir-opt"), &[]),
    ("hir-run", env!("CARGO_BIN_EXE_hir-run"), &[]),
    ("hir reduce", env!("CARGO_BIN_EXE_hir"), &["reduce"]),
    ("hir hang", env!("CARGO_BIN_EXE_hir"), &["hang"]),
];

pub fn trials() -> Vec<Trial> {
    vec![Trial::test("usage::tables_of_flags_agree_with_help", tables_of_flags_agree_with_help)]
}

/// The long flags of a tool, and those whose value may be omitted.
struct Flags {
    all: BTreeSet<String>,
    optional: BTreeSet<String>,
}

impl Flags {
    fn of(tool: &str, arguments: &[&str]) -> Result<Self, Failed> {
        let output = Command::new(Path::new(tool)).args(arguments).arg("--help").output_with_timeout()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (mut all, mut optional) = (BTreeSet::new(), BTreeSet::new());
        // The lines that introduce an option: `  -J, --json <FILE>`, `      --check[=<CHECKS>]`.
        let lines = text.lines().map(str::trim_start).filter(|it| it.starts_with('-'));
        for (_, flag) in lines.filter_map(|it| it.split_once("--")) {
            let name: String =
                flag.chars().take_while(|it| it.is_ascii_alphanumeric() || *it == '-').collect();
            if flag[name.len()..].starts_with("[=") {
                optional.insert(format!("--{name}"));
            }
            all.insert(name);
        }
        Ok(Self { all, optional })
    }
}

fn tables_of_flags_agree_with_help() -> Result<(), Failed> {
    let flags = TOOLS.iter().map(|(_, path, arguments)| Flags::of(path, arguments));
    let flags: Vec<Flags> = flags.collect::<Result<_, Failed>>()?;
    for (at, (tool, ..)) in TOOLS.iter().enumerate() {
        let is_common = |flag: &String| flags[..3].iter().all(|it| it.all.contains(flag));
        let own: Vec<&str> = flags[at].all.iter().filter(|it| !is_common(it)).map(String::as_str).collect();
        let table = FLAGS_BY_TOOL.iter().find(|it| it.0 == *tool).map_or("", |it| it.1);
        let table: Vec<&str> = table.split(' ').collect();
        if own != table {
            return Err(format!(
                "the flags of {tool} that not all tools have are {own:?}, in the table {table:?}"
            )
            .into());
        }
    }
    let optional: BTreeSet<&str> = flags.iter().flat_map(|it| &it.optional).map(String::as_str).collect();
    if optional == OPTIONAL_VALUE.split(' ').collect() {
        Ok(())
    } else {
        Err(format!("the values of {optional:?} may be omitted, in the table {OPTIONAL_VALUE:?}").into())
    }
}
