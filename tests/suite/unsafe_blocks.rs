//! Lists each `unsafe` block of src/cuda with its invariant: the `SAFETY` comment above it. A block without one fails.
//! `INSTA_UPDATE=always` writes the list.

use std::{fmt::Write, fs, path::Path};

use libtest_mimic::{Failed, Trial};

use super::{ROOT, setting, shown};

pub fn trial() -> Trial {
    Trial::test("unsafe_blocks::each_states_its_invariant", each_states_its_invariant)
}

fn each_states_its_invariant() -> Result<(), Failed> {
    let (mut list, mut faults) = (String::new(), String::new());
    let mut folders = vec![Path::new(ROOT).join("src/cuda")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    for file in files {
        let text = fs::read_to_string(&file)?;
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (at, line) in lines.iter().enumerate() {
            let is_block = line.contains("unsafe {") || line.contains("unsafe impl");
            if line.starts_with("//") || !is_block {
                continue;
            }
            // The comment is above the statement.
            let above = lines[..at].iter().rev().take(12).position(|it| it.contains("// SAFETY: "));
            let Some(from) = above.map(|it| at - 1 - it) else {
                let _ = writeln!(faults, "{}:{}: no `// SAFETY: ` above", shown(&file), at + 1);
                continue;
            };
            let comment = lines[from..at].iter().map_while(|it| it.strip_prefix("// "));
            let comment: Vec<&str> = comment.map(|it| it.trim_start_matches("SAFETY: ")).collect();
            let _ = writeln!(list, "{}: {}", shown(&file), comment.join(" "));
        }
    }
    if !faults.is_empty() {
        return Err(faults.into());
    }
    setting::compare("tests/suite/unsafe_blocks.txt", &list)
}
