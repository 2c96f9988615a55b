//! Tests `--tune-passes` on emulated GPUs, on which each matrix product takes some time: a pipeline that makes more of
//! them is slower.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Output, Stdio},
};

use libtest_mimic::Failed;
use serde_json::Value;

use super::{Tuned, check, text};
use crate::ranks::{LIMIT, end, port, rank};

/// Microseconds that a product takes at least: more than what other processes of a busy machine delay.
const DELAY: &str = "20000";
/// A program in which each of two ranks has a part of the sum of a product.
const PROGRAM: &str = "tests/cases/overlap/allocate-before.hir";

/// A program that launches one kernel.
const NO_PRODUCT: &str = "tests/cases/cuda/no-gpu.hir";

/// The output of a job that ends before the first pipeline.
const NOTHING_MEASURED: &str = "[FAILED] no pipeline was measured\n";

fn tune(it: &Tuned, arguments: &[&str]) -> Result<Output, Failed> {
    let common = ["--ranks", "2", "-n", "3"];
    it.run(PROGRAM, &[&common[..], arguments].concat(), &[("HIR_EMULATED_ALGORITHM_DELAY", DELAY)])
}

/// The rows of the table: the two times, or what happened instead, and the pipeline.
fn rows(said: &str) -> Vec<(Option<[f64; 2]>, String)> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [first, second, _, passes] = words[..] else { return None };
        let times = first.parse().ok().zip(second.parse().ok()).map(|(first, second)| [first, second]);
        Some((times, passes.to_owned()))
    };
    said.lines().filter(|it| it.starts_with("  ")).filter_map(row).collect()
}

/// Returns true if a table has only the time of the first round of a pipeline.
fn measured_once(said: &str, passes: &str) -> bool {
    let mut rows =
        said.lines().filter_map(|it| it.strip_suffix(&format!("            -        -  {passes}")));
    rows.any(|it| it.trim().parse::<f64>().is_ok())
}

/// One product takes less time than two, and two take less than four. A pipeline that does not apply is refused, and the
/// job succeeds all the same.
pub fn the_fastest_pipeline_is_named() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let json = it.path("pipelines.json").display().to_string();
    let chunks = "@overlap-linear-allreduce{overlap.count=4|2,assign-streams.count=1}";
    let refused = "@lower,chunk{axis=T9.0}";
    for (issue, is_graph) in [(&["--step-by-step"][..], false), (&[], true)] {
        let arguments = ["--expect=sim", "--tune-passes", refused, "--tune-passes", chunks, "-J", &json];
        let output = tune(&it, &[&arguments[..], &["--tune-passes", "@lower"], issue].concat())?;
        let said = text(&output.stdout);
        let (_, table) = said.split_once("# pipelines: ").ok_or_else(|| said.clone())?;
        let rows = rows(table);
        let order: Vec<&str> = rows.iter().map(|it| it.1.as_str()).collect();
        let with_chunks = |count: usize| chunks.replace("4|2", &count.to_string());
        let expected = ["@lower".to_owned(), with_chunks(2), with_chunks(4), refused.to_owned()];
        check(order == expected, &output)?;
        let delay: f64 = DELAY.parse()?;
        let slower =
            |at: usize| rows[at].0.is_some_and(|it| it.iter().all(|it| *it > delay * f64::from(1 << at)));
        check((0..3).all(slower) && rows[3].0.is_none(), &output)?;
        let verdict =
            "[SUCCESS] the fastest of 3 pipelines is --passes '@lower'; outputs as expected; 1 refused\n";
        check(output.status.success() && said.ends_with(verdict), &output)?;
        check(text(&output.stderr).matches("no tensor has the axis `T9.0`").count() == 1, &output)?;
        let found: Value = serde_json::from_str(&fs::read_to_string(&json)?)?;
        let pipelines = found["pipelines"].as_array().ok_or("no pipelines")?;
        let codes: Vec<Option<u64>> = pipelines.iter().map(|it| it["exit_code"].as_u64()).collect();
        let is_right = found["ranks"] == 2 && found["graph"] == is_graph && found["exit_code"] == 0;
        check(is_right && codes == [Some(2), Some(0), Some(0), Some(0)], &output)
            .map_err(|_| Failed::from(format!("{found:#}")))?;
        check(pipelines[1]["passes"] == with_chunks(4), &output)?;
    }
    Ok(())
}

/// A pipeline whose outputs are wrong is not the fastest one, does not run again, and fails the job.
pub fn wrong_results_fail() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let unwritable = it.path("no/such/folder.json").display().to_string();
    let wrong =
        ["--expect=T2=4x2xf32=1 2 3 4 5 6 7 8", "--tune-passes", "@lower|@overlap", "-J", &unwritable];
    let output = tune(&it, &[&wrong[..], &["--tune", &it.table()]].concat())?;
    check(!it.path("table.json").exists(), &output)?;
    let said = text(&output.stdout);
    let verdict = "[FAILED] 2 of 2 pipelines failed, the first is --passes '@lower': wrong result\n";
    check(output.status.code() == Some(3) && said.ends_with(verdict), &output)?;
    check(said.matches("[FAILED] T2: element").count() == 2 && said.contains("# cannot write"), &output)
}

/// `--tune` stores the fastest pipeline, and `--tuning` applies it to the same program, which no GPU runs without passes.
pub fn the_fastest_pipeline_is_stored_and_applied() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let file = it.table();
    let pipelines = "@overlap-linear-allreduce{overlap.count=4}|@lower";
    let measure = ["--tune-passes", pipelines, "--tune", &file, "--expect=sim"];
    for (count, issue) in [&[][..], &["--step-by-step"]].into_iter().enumerate() {
        let output = tune(&it, &[&measure[..], issue].concat())?;
        let said = text(&output.stdout);
        let note = format!(
            "the fastest pipeline of this program is stored, {count} other pipelines kept; it takes "
        );
        check(output.status.success() && said.contains(&note), &output)?;
        check(!said.contains("algorithms of matrix products, measured"), &output)?;
    }
    let table = it.read()?;
    let entries = table["pipelines"].as_array().ok_or("no pipelines")?;
    let is_right = |(entry, graph): (&Value, bool)| {
        let (first, best) = (entry["first_us"].as_f64(), entry["best_us"].as_f64());
        let program = &entry["program"];
        entry["passes"] == "@lower" && first > best && program["ranks"] == 2 && program["graph"] == graph
    };
    if table["products"] != serde_json::json!([]) || !entries.iter().zip([false, true]).all(is_right) {
        return Err(format!("{table:#}").into());
    }
    // A graph and a run step by step have an entry each. With `--passes` or another setting none applies.
    let applied = "has for this program is applied: @lower\n";
    let other = "has a pipeline of this program for 2 ranks, step by step, but this run is for 2 ranks, one graph, --set \
                 numberOfStreams=2: it is not applied\n";
    let expected = [
        (&["--tuning", &file][..], applied, Some(0)),
        (&["--tuning", &file, "--step-by-step", "-n", "1"], applied, Some(0)),
        (&["--tuning", &file, "--passes", "@lower"], "an entry for 0 of 1 matrix product", Some(0)),
        (&["--tuning", &file, "--set", "numberOfStreams=2"], other, Some(1)),
        (&[], "", Some(1)),
    ];
    for (arguments, words, code) in expected {
        let output = it.run(PROGRAM, &[&["--ranks", "2", "--expect=sim"], arguments].concat(), &[])?;
        check(text(&output.stdout).contains(words) && output.status.code() == code, &output)?;
    }
    // Comments do not matter.
    let changed = it.path("allocate-before.hir").display().to_string();
    let source = fs::read_to_string(std::path::Path::new(crate::ROOT).join(PROGRAM))?;
    fs::write(&changed, format!("// A comment.\n{source}"))?;
    let output = it.run(&changed, &["--ranks", "2", "--tuning", &file], &[])?;
    check(text(&output.stdout).contains(applied), &output)?;
    // A pass may have another name since. The error says where the pipeline is from; `--passes` replaces it.
    let passes = |name: &str| {
        let name = name.to_owned();
        it.change(|table| table["pipelines"][1]["passes"] = name.into())
    };
    passes("former-name")?;
    let refused = "has the pipeline `former-name` for `tests/cases/overlap/allocate-before.hir`, which this hir-run does not \
                   accept: unknown pass `former-name`: measure again with `--tune-passes`, or give other passes";
    let output = it.run(PROGRAM, &["--ranks", "2", "--tuning", &file], &[])?;
    check(output.status.code() == Some(6) && text(&output.stderr).matches(refused).count() == 1, &output)?;
    let output = it.run(PROGRAM, &["--ranks", "2", "--tuning", &file, "--passes", "@lower"], &[])?;
    check(output.status.success(), &output)?;
    passes("\u{1b}[2J")?;
    let output = it.run(PROGRAM, &["--ranks", "2", "--tuning", &file], &[])?;
    let message = "has the pipeline `\\u{1b}[2J` for ";
    check(text(&output.stderr).contains(message) && !output.stderr.contains(&0x1b), &output)?;
    passes("chunk{axis=T9.0}")?;
    let output = it.run(PROGRAM, &["--ranks", "2", "--tuning", &file], &[])?;
    check(output.status.code() == Some(2) && text(&output.stderr).contains("[ pipeline in "), &output)?;
    passes("@lower")?;
    it.change(|table| table["machine"]["gpu"] = "another".into())?;
    let output = it.run(PROGRAM, &["--ranks", "2", "--tuning", &file], &[])?;
    check(output.status.code() == Some(6), &output)?;
    let output = tune(&it, &measure)?;
    let dropped = text(&output.stdout).matches("; its 2 entries are dropped\n").count();
    check(output.status.success() && dropped == 1, &output)?;
    // A table that cannot be read or written is found before anything is measured.
    fs::write(&file, [0xff])?;
    let missing = it.path("no/such/table.json").display().to_string();
    // No process can create a file in this folder.
    let unwritable = "/proc/table.json".to_owned();
    let tables = [
        (&file, "it is not UTF-8 text"),
        (&missing, "there is no folder"),
        (&unwritable, "no new file can be created in /proc"),
    ];
    for (path, fault) in tables {
        let output = tune(&it, &["--tune-passes", pipelines, "--tune", path])?;
        check(output.status.code() == Some(6) && text(&output.stdout) == NOTHING_MEASURED, &output)?;
        check(text(&output.stderr).matches(fault).count() == 1, &output)?;
    }
    Ok(())
}

/// What no pipeline can mend is reported once.
pub fn errors_of_the_program_are_reported_once() -> Result<(), Failed> {
    let it = Tuned::new()?;
    fs::write(it.program(), super::PROGRAM.replace("relu(T3)", "relu(T9)"))?;
    for (program, code, fault) in [(it.program(), 1, "T9"), (it.table(), 6, "cannot read `")] {
        for ranks in ["1", "2"] {
            let arguments = ["--ranks", ranks, "--tune-passes", "@lower|canonicalize"];
            let output = it.run(&program, &arguments, &[])?;
            check(output.status.code() == Some(code) && text(&output.stdout) == NOTHING_MEASURED, &output)?;
            check(text(&output.stderr).matches("Error: ").count() < 2, &output)?;
            check(text(&output.stderr).contains(fault), &output)?;
        }
    }
    Ok(())
}

/// The options have the fault, not the pipelines.
pub fn errors_of_other_options_are_reported_once() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let missing = it.path("no.npy").display().to_string();
    let (input, expected) = (format!("T0=@{missing}"), format!("T2=@{missing}"));
    let program = it.path("wrong.hir").display().to_string();
    fs::write(&program, super::PROGRAM.replace("relu(T3)", "relu(T9)"))?;
    let part = format!("T2@local=@{}", it.path("part.%r.npy").display());
    let output = it.run(PROGRAM, &["--ranks", "2", "--passes", "@lower", "--output", &part], &[])?;
    check(output.status.success(), &output)?;
    fs::remove_file(it.path("part.1.npy"))?;
    let jobs: [(&[&str], i32, &str); 15] = [
        (&["--ranks", "2", "--expect", &part], 6, "part.1.npy`: No such file"),
        (&["--ranks", "2", "--expect", &expected], 6, "`--expect T2`: cannot read `"),
        (
            &["--ranks", "2", "--expect", "T9=2xf32=1 2"],
            2,
            "`--expect T9`: the program has no such output; it has T2",
        ),
        (&["--ranks", "2", "--expect", "T2=2xf32=1 2"], 2, "has shape [2], but T2 has shape [4, 2]"),
        (&["--ranks", "2", "--expect", "T2=1xi32=1"], 2, "`--expect T2`: "),
        (&["--ranks", "2", "--input", &input], 6, "`--input T0`: cannot read `"),
        (
            &["--ranks", "2", "--input", "T9=2xf32=1 2"],
            2,
            "`--input T9`: the program has no such input; it has T0",
        ),
        (&["--ranks", "2", "--input", "T0=2xf32=1 2"], 2, "has shape [2], but T0 has shape [4, 6]"),
        (&["--ranks", "2", "--reference", &missing], 6, "cannot read `"),
        (&["--ranks", "2", "--reference", &program], 1, "`T9` is not declared"),
        (&["--ranks", "1"], 6, "contains rank 1: start 2 ranks or more (`--ranks 2`), not 1"),
        (&[], 6, "2 ranks on GPUs need 2 processes, but there are 1"),
        (&["--ranks", "2", "--reference", "docs/examples/mlp.hir"], 1, " inputs and the program 2"),
        (&["--ranks", "2", "--tuning", &missing], 6, "cannot read `"),
        (&["--ranks", "3"], 6, "rank 2 on host"),
    ];
    for (job, code, message) in jobs {
        let arguments = [&["--tune-passes", "@lower|canonicalize,@lower"], job].concat();
        let output = it.run(PROGRAM, &arguments, &[("HIR_EMULATED_GPUS", "2")])?;
        check(output.status.code() == Some(code) && text(&output.stdout) == NOTHING_MEASURED, &output)?;
        let errors = text(&output.stderr);
        check(errors.matches(message).count() == 1 && errors.matches("Error: ").count() < 2, &output)?;
    }
    Ok(())
}

/// A pipeline and a pass of `--passes` are located in the texts that the user has written.
pub fn a_pipeline_is_located_in_its_option() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let wrong_axis = "@lower |\n@lower,chunk{count=2|4,axis=T9.0}";
    let wrong_pass = "@lower|canonicalize, unknown";
    let wrong_value = "@lower|@lower,chunk{axis=T0.0,count=2|x|4}";
    let chunk = "chunk{axis=T9.0}";
    let eight = "1|2|3|4|5|6|7|8";
    let many = format!("@lower,chunk{{axis=T0.0,count={eight},first={eight},last=1|2}}");
    let jobs: [(&[&str], &str, usize); 5] = [
        (&["--passes", "canonicalize", "--tune-passes", wrong_axis], "--tune-passes:2:29: error[", 2),
        (&["--tune-passes", wrong_pass], "--tune-passes:1:22: error[", 1),
        (&["--tune-passes", wrong_value], "--tune-passes:1:39: error[", 1),
        (&["--passes", chunk, "--tune-passes", "@lower|canonicalize"], "--passes:1:12: error[", 2),
        (
            &["--tune-passes", &many],
            "hir-run: `--tune-passes`: there are more than 64 pipelines: give fewer alternatives\n",
            1,
        ),
    ];
    for (job, message, count) in jobs {
        let output = tune(&it, &[&["--error-format", "short"], job].concat())?;
        let errors = text(&output.stderr);
        check(errors.matches(message).count() == count && errors.lines().count() == count, &output)?;
    }
    let output = tune(&it, &["--tune-passes", wrong_value])?;
    check(text(&output.stderr).contains(wrong_value) && output.status.code() == Some(2), &output)
}

/// Rank 1 is killed while the second pipeline runs: the time of the first one is printed.
pub fn a_lost_rank_leaves_a_table() -> Result<(), Failed> {
    let port = port()?;
    let pipelines = "canonicalize|remove-dead-code";
    let arguments = ["tests/cases/launch/loop.hir", "--device=cuda", "-n", "1", "--tune-passes", pipelines];
    let start = |at: usize| rank(at, 4, port, &arguments).spawn();
    let mut ranks: Vec<Child> = (0..4).map(start).collect::<Result<_, _>>()?;
    let mut said = BufReader::new(ranks[0].stdout.take().ok_or("no output")?);
    let mut line = String::new();
    while !line.starts_with("# round 1, pipeline 2 of") {
        line.clear();
        if said.read_line(&mut line)? == 0 {
            break;
        }
    }
    ranks[1].kill()?;
    let reader = std::thread::spawn(move || std::io::read_to_string(said));
    let ends = end(ranks, LIMIT)?;
    let rest = reader.join().map_err(|_| "no report")??;
    let is_reported = ends[0].0 == Some(4) && rest.contains("[FAILED] rank 1 is silent");
    if is_reported && measured_once(&rest, "canonicalize") {
        Ok(())
    } else {
        Err(format!("{ends:#?}\n{rest}").into())
    }
}

/// Another job writes the table while pipelines are measured: its entries are kept.
pub fn other_jobs_may_write_the_table() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let output = it.tune(&[], &[])?;
    check(output.status.success(), &output)?;
    let file = it.table();
    let arguments = ["--tune-passes", "canonicalize|remove-dead-code", "-n", "1", "--tune", &file];
    let mut job = it.command(NO_PRODUCT, &arguments)?.stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(job.stdout.take().ok_or("no output")?).lines();
    let has_begun =
        |it: std::io::Result<String>| it.is_ok_and(|it| it.starts_with("# round 1, pipeline 2 of"));
    let begun = lines.by_ref().any(has_begun);
    it.change(|table| table["products"].as_array_mut().into_iter().for_each(|it| it.truncate(1)))?;
    let rest: Vec<String> = lines.collect::<Result<_, _>>()?;
    let table = it.read()?;
    let count = |key: &str| table[key].as_array().map(Vec::len);
    if begun && job.wait()?.success() && (count("products"), count("pipelines")) == (Some(1), Some(1)) {
        Ok(())
    } else {
        Err(format!("{rest:#?}\n{table:#}").into())
    }
}

/// Pipelines follow `--passes`, of which each may be empty, and a success says whether outputs were compared.
pub fn other_options_apply_to_all_pipelines() -> Result<(), Failed> {
    let it = Tuned::new()?;
    // The same passes are measured once, however they are written.
    let both = ["--tune-passes", "", "--tune-passes", "canonicalize|canonicalize{}"];
    let output = tune(&it, &[&["--passes", "@lower", "-q"][..], &both].concat())?;
    let said = text(&output.stdout);
    let mut pipelines: Vec<String> = rows(&said).into_iter().map(|it| it.1).collect();
    pipelines.sort();
    check(output.status.success() && pipelines == ["@lower", "@lower,canonicalize"], &output)?;
    check(said.lines().all(|it| !it.starts_with('#')) && said.contains("; no output compared ("), &output)?;
    let unwritable = it.path("no/such/folder.json").display().to_string();
    let output = tune(&it, &["--tune-passes", "@lower", "-J", &unwritable])?;
    check(output.status.code() == Some(6) && text(&output.stderr).contains("cannot write"), &output)?;
    check(text(&output.stdout).contains("1.000  @lower\n"), &output)
}

/// A launch of the second round accesses an invalid address: the error is printed, and what did not run.
pub fn a_failure_of_the_second_round_is_reported() -> Result<(), Failed> {
    let it = Tuned::new()?;
    // A run of this program launches one kernel. The first round has about 1,000 of them, and most of them warm the GPU.
    let arguments = ["--tune-passes", "canonicalize|remove-dead-code", "-n", "1", "--step-by-step"];
    let output = it.run(NO_PRODUCT, &arguments, &[("HIR_EMULATED_FAULT", "1200")])?;
    let said = text(&output.stdout);
    check(output.status.code() == Some(5) && said.contains("# round 2, pipeline 2 of 2: "), &output)?;
    check(text(&output.stderr).contains("CUDA_ERROR_ILLEGAL_ADDRESS"), &output)?;
    check(
        measured_once(&said, "canonicalize")
            && said.contains("failed            -        -  remove-dead-code\n"),
        &output,
    )?;
    check(
        said.ends_with(
            "# the other pipelines are not measured: the state of the job is undefined after this failure\n",
        ),
        &output,
    )?;
    // The last pipeline fails.
    let output = it.run(NO_PRODUCT, &arguments, &[("HIR_EMULATED_FAULT", "1700")])?;
    let said = text(&output.stdout);
    check(output.status.code() == Some(5) && said.contains("# round 2, pipeline 1 of 2: "), &output)?;
    let has_table = said.contains("failed            -        -  canonicalize\n");
    check(has_table && !said.contains("the other pipelines"), &output)
}
