//! Tables that are refused, or not written, and the ranks that agree on it.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use libtest_mimic::Failed;
use serde_json::json;

use super::{KEYS, Tuned, called, check, text};
use crate::ranks::{LIMIT, end, expect, port, rank};

pub(super) fn a_table_of_another_machine_is_refused() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let output = it.tune(&[], &[])?;
    check(output.status.success(), &output)?;
    let whole = it.read()?;
    let values = [
        ("gpu", "NVIDIA H200", "the GPU was `NVIDIA H200`, and here it is `Emulated GPU`"),
        ("gpu", "H\u{1b}[2J\n", "the GPU was `H\\u{1b}[2J\\n`, and here it is `Emulated GPU`"),
        ("driver", "12.8", "the CUDA version of the driver was `12.8`, and here it is `13.0`"),
        ("cublaslt", "13.1.2", "the version of cuBLASLt was `13.1.2`, and here it is `13.0.0`"),
    ];
    // With several pipelines, the table is refused once, before the first one.
    let runs: [&[&str]; 2] = [&[], &["--tune-passes", "canonicalize|common-subexpression"]];
    for ((key, value, message), flags) in values.into_iter().flat_map(|it| runs.map(|flags| (it, flags))) {
        it.change(|table| {
            *table = whole.clone();
            table["machine"][key] = json!(value);
        })?;
        let output = it.use_table(flags)?;
        let errors = text(&output.stderr);
        check(!errors.contains('\u{1b}'), &output)?;
        check(output.status.code() == Some(6) && !text(&output.stdout).contains("[SUCCESS]"), &output)?;
        check(errors.contains(message) && errors.contains(": measure again with `--tune`\n"), &output)?;
        // All ranks agree, so one of them tells it.
        check(errors.matches("was measured on another machine").count() == 1, &output)?;
    }
    // cuBLASLt itself refuses an algorithm that it did not make for this product.
    it.change(|table| {
        *table = whole.clone();
        let digits = "0".repeat(128);
        table["products"][1]["algorithm"] = json!(digits);
    })?;
    let output = it.use_table(&[])?;
    let message =
        format!("cuBLASLt refuses the algorithm of `{}`: rank 0: cublasLtMatmulAlgoCheck failed", KEYS[1]);
    check(output.status.code() == Some(6) && text(&output.stderr).contains(&message), &output)
}

pub(super) fn what_is_no_table_is_refused() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let output = it.tune(&[], &[])?;
    check(output.status.success(), &output)?;
    let whole = fs::read_to_string(it.table())?;
    let later = whole.replace("\"version\": 2", "\"version\": 9");
    let unknown = whole.replace("\"ranks\"", "\"rank\"");
    let control = whole.replace("\"ranks\"", "\"\\u001b[2J\"");
    let contents = [
        ("", "table.json:1:0` is not a table that `--tune` writes: EOF while parsing a value"),
        (&whole[..whole.len() / 2], "` is not a table that `--tune` writes: EOF while parsing"),
        ("x = 1\n", "table.json:1:1` is not a table that `--tune` writes: expected value"),
        ("[1, 2]", "is not a table that `--tune` writes: "),
        (&later, "has version 9, and this hir-run reads versions 1 to 2: measure again with `--tune`"),
        (&control, "unknown field `\\u{1b}[2J`"),
        (&unknown, "table.json:8:8` is not a table that `--tune` writes: unknown field `rank`"),
    ];
    for (content, message) in contents {
        fs::write(it.table(), content)?;
        for output in [it.use_table(&[])?, it.tune(&[], &[])?] {
            let is_refused = output.status.code() == Some(6) && !text(&output.stdout).contains("[SUCCESS]");
            check(is_refused && text(&output.stderr).contains(message), &output)?;
            check(fs::read_to_string(it.table())? == content, &output)?;
        }
    }
    fs::write(it.table(), [0xff, 0xfe])?;
    let output = it.use_table(&[])?;
    check(output.status.code() == Some(6) && text(&output.stderr).contains("not UTF-8 text"), &output)?;
    fs::remove_file(it.table())?;
    let output = it.use_table(&[])?;
    check(output.status.code() == Some(6) && text(&output.stderr).contains("does not exist"), &output)
}

/// A run that opened a FIFO would wait for another process without end.
pub(super) fn a_table_is_a_regular_file() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let (fifo, folder) = (it.path("fifo"), it.path("folder"));
    let made = Command::new("mkfifo").arg(&fifo).status()?;
    fs::create_dir(&folder)?;
    let (fifo, folder) = (fifo.display().to_string(), folder.display().to_string());
    let device = "/dev/null".to_owned();
    for (path, what) in [(&fifo, "a FIFO"), (&folder, "a folder"), (&device, "a device")] {
        let message =
            format!("`{path}` is {what}, but a table is a regular file: give the name of another file\n");
        let jobs: [&[&str]; 3] = [
            &["--tune", path],
            &["--tuning", path],
            &["--tune", path, "--tune-passes", "canonicalize|remove-dead-code"],
        ];
        for job in jobs {
            let output =
                it.run(&it.program(), &[&["--ranks", "2", "--passes", "@lower"], job].concat(), &[])?;
            check(output.status.code() == Some(6) && made.success(), &output)?;
            check(text(&output.stderr).matches(&message).count() == 1, &output)?;
            check(!text(&output.stdout).contains("[SUCCESS]"), &output)?;
        }
    }
    Ok(())
}

/// A table is read and written, so it is neither standard input nor standard output.
pub(super) fn a_table_has_a_name() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let jobs: [&[&str]; 3] =
        [&["--tune", "-"], &["--tuning", "-"], &["--tune", "-", "--tune-passes", "@lower"]];
    for job in jobs {
        let output = it.run(&it.program(), &[&["--ranks", "2"], job].concat(), &[])?;
        check(output.status.code() == Some(2) && prints_only_a_verdict(&output), &output)?;
        check(text(&output.stderr).matches("give the name of a file\n").count() == 1, &output)?;
    }
    Ok(())
}

/// Two results in one file, however it is written, are refused before anything is measured.
pub(super) fn other_results_have_other_files() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let (file, other) = (it.table(), it.path("./table.json").display().to_string());
    let link = it.path("link.json").display().to_string();
    std::os::unix::fs::symlink(&file, &link)?;
    let jobs: [(&[&str], &str); 5] = [
        (&["--tune", &file, "-J", &file, "-n", "1"], "`--tune` and `-J`"),
        (&["--tune", &file, "-J", &other, "--tune-passes", "@lower"], "`--tune` and `-J`"),
        (&["--tuning", &file, "-J", &link, "-n", "1"], "`--tuning` and `-J`"),
        (&["-J", &file, "--timeline", &file, "-n", "1"], "`-J` and `--timeline`"),
        (&["--timeline", &file, "--timeline", &link], "`--timeline` and `--timeline`"),
    ];
    for (job, options) in jobs {
        let output = it.run(&it.program(), &[&["--ranks", "2"], job].concat(), &[])?;
        check(output.status.code() == Some(2) && prints_only_a_verdict(&output), &output)?;
        let message = format!("{options} name the same file, `");
        check(text(&output.stderr).matches(&message).count() == 1, &output)?;
    }
    let tensor = it.path("t.npy").display().to_string();
    let written = format!("T5=@{tensor}");
    let job = ["--ranks", "2", "--passes", "@lower", "-n", "1", "-J", &tensor, "--output", &written];
    let output = it.run(&it.program(), &job, &[])?;
    check(text(&output.stderr).contains("`-J` and `--output` name the same file, `"), &output)?;
    check(output.status.code() == Some(2) && !Path::new(&tensor).exists(), &output)?;
    // All results may go to a device.
    let job = ["--ranks", "2", "--passes", "@lower", "-n", "1", "-J", "/dev/null", "--output", "T5=-"];
    let output = it.run(&it.program(), &job, &[])?;
    check(output.status.success(), &output)
}

/// Each rank has its own folder. That of rank 1 has another table, or none.
pub(super) fn only_rank_0_reads_the_table() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let output = it.tune(&[], &[])?;
    check(output.status.success(), &output)?;
    let program = it.program();
    for other in [None, Some("no table")] {
        let port = port()?;
        let start = |at: usize| -> Result<_, Failed> {
            let folder = it.path(&format!("rank-{at}"));
            fs::create_dir_all(&folder)?;
            match (at, other) {
                (0, _) => fs::copy(it.table(), folder.join("t.json")).map(|_| ())?,
                (_, Some(content)) => fs::write(folder.join("t.json"), content)?,
                (_, None) => (),
            }
            let arguments = [
                program.as_str(),
                "--passes",
                "@lower",
                "--device=cuda",
                "--expect=sim",
                "--tuning",
                "t.json",
            ];
            let mut command = rank(at, 2, port, &arguments);
            command.current_dir(folder).env("HIR_EMULATED_ALGORITHM_LOG", "1");
            Ok(command.spawn()?)
        };
        let ends = end((0..2).map(start).collect::<Result<_, _>>()?, LIMIT)?;
        expect(ends.iter().all(|it| it.0 == Some(0)), &ends)?;
        expect(ends[0].1.contains("has an entry for 2 of 2 matrix products\n"), &ends)?;
        let calls: Vec<Vec<u64>> = ends.iter().map(|it| called(&it.2)).collect();
        expect(calls[0] == calls[1] && calls[0].ends_with(&[2, 2]), &ends)?;
        expect(calls[0].iter().filter(|it| **it == 0).count() == 2, &ends)?;
    }
    Ok(())
}

/// A table is for one kind of machine, so the ranks of a job must not differ.
pub(super) fn ranks_have_equal_machines() -> Result<(), Failed> {
    let it = Tuned::new()?;
    for option in ["--tune", "--tuning"] {
        let port = port()?;
        let (program, table) = (it.program(), it.table());
        let arguments = [program.as_str(), "--passes", "@lower", "--device=cuda", option, &table];
        let start = |at: usize| {
            rank(at, 2, port, &arguments).env("HIR_EMULATED_NAME", ["NVIDIA H100", "NVIDIA H200"][at]).spawn()
        };
        let ends = end((0..2).map(start).collect::<Result<_, _>>()?, LIMIT)?;
        let message = "the GPU is `NVIDIA H100` on rank 0 and `NVIDIA H200` on rank 1";
        expect(ends.iter().all(|it| it.0 == Some(6)) && ends[0].2.contains(message), &ends)?;
        expect(option == "--tuning" || !Path::new(&table).exists(), &ends)?;
        let output = it.tune(&[], &[])?;
        check(output.status.success(), &output)?;
    }
    Ok(())
}

pub(super) fn wrong_results_are_not_stored() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let output = it.tune(&[], &[("HIR_EMULATED_WRONG_ALGORITHM", "2")])?;
    let said = text(&output.stdout);
    check(output.status.code() == Some(3) && said.contains("[FAILED] T"), &output)?;
    check(said.contains("is not written: the outputs are wrong with these algorithms\n"), &output)?;
    check(!Path::new(&it.table()).exists(), &output)
}

/// Returns true if standard output contains at most one line, the verdict on a command line that does not fit. Several pipelines that
/// are refused before they start have none.
fn prints_only_a_verdict(output: &Output) -> bool {
    let printed = text(&output.stdout);
    printed.lines().count() <= 1 && printed.lines().all(|line| line.starts_with("[FAILED] not run: "))
}
