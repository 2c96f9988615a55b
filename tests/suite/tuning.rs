//! Tests `--tune` and `--tuning` on emulated GPUs, whose algorithm 2 is the fastest of four: what the file contains,
//! which algorithms later runs call, and which files are refused.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};

use crate::timeout::RunWithTimeout;
use crate::{ROOT, emulator};

mod pipelines;
mod refused;

/// A program in which each of two ranks computes two products.
const PROGRAM: &str = "\
%tensor T0_g_float[iS0{8}, iS1{16}] (DeviceMesh{0 1})
%tensor T1_g_float[ideviceIdx.x12{2}, iS13{16}, iS3{16}] (DeviceMesh{0 1})
%tensor T2_g_float[iS4{12}, ideviceIdx.x14{2}, iS15{16}] (DeviceMesh{0 1})
%tensor T3_g_float[iS6{8}, ideviceIdx.x16{2}, iS17{16}] (DeviceMesh{0 1})
%tensor T4_g_float[iS8{8}, ideviceIdx.x18{2}, iS19{16}] (DeviceMesh{0 1})
%tensor T5_g_float[iS10{8}, iS11{12}] (DeviceMesh{0 1})
%HostIrContainer { (T0, T1, T2) -> (T5) :
  T3 = linear(T0, T1)
  T4 = relu(T3);
  T5 = linear(T4, T2)
} // %HostIrContainer

Domains:
  T1: logical(iS2{32}, iS3{16}), outer_split(iS2{32}, 2) -> (ideviceIdx.x12{2}, iS13{16})
  T2: logical(iS4{12}, iS5{32}), outer_split(iS5{32}, 2) -> (ideviceIdx.x14{2}, iS15{16})
  T3: logical(iS6{8}, iS7{32}), outer_split(iS7{32}, 2) -> (ideviceIdx.x16{2}, iS17{16})
  T4: logical(iS8{8}, iS9{32}), outer_split(iS9{32}, 2) -> (ideviceIdx.x18{2}, iS19{16})
";
/// Its products.
const KEYS: [&str; 2] = [
    "8x12x16 f32->f32 a(ld 16) b(transposed, ld 16) out(ld 12) align(256 256 256)",
    "8x16x16 f32->f32 a(ld 16) b(transposed, ld 16) out(ld 16) relu align(256 256 256)",
];

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let trials = [
        Trial::test("tuning::the_fastest_algorithms_are_stored_and_used", the_fastest_are_stored_and_used),
        Trial::test("tuning::graphs_are_measured_too", graphs_are_measured_too),
        Trial::test("tuning::other_products_keep_their_entries", other_products_keep_their_entries),
        Trial::test(
            "tuning::a_table_of_another_machine_is_refused",
            refused::a_table_of_another_machine_is_refused,
        ),
        Trial::test("tuning::what_is_no_table_is_refused", refused::what_is_no_table_is_refused),
        Trial::test("tuning::a_table_is_a_regular_file", refused::a_table_is_a_regular_file),
        Trial::test("tuning::a_table_has_a_name", refused::a_table_has_a_name),
        Trial::test("tuning::other_results_have_other_files", refused::other_results_have_other_files),
        Trial::test("tuning::only_rank_0_reads_the_table", refused::only_rank_0_reads_the_table),
        Trial::test("tuning::ranks_have_equal_machines", refused::ranks_have_equal_machines),
        Trial::test("tuning::ranks_may_have_different_products", ranks_may_have_different_products),
        Trial::test("tuning::algorithms_that_fail_are_left_out", algorithms_that_fail_are_left_out),
        Trial::test("tuning::wrong_results_are_not_stored", refused::wrong_results_are_not_stored),
        Trial::test("tuning::the_fastest_pipeline_is_named", pipelines::the_fastest_pipeline_is_named),
        Trial::test(
            "tuning::the_fastest_pipeline_is_stored_and_applied",
            pipelines::the_fastest_pipeline_is_stored_and_applied,
        ),
        Trial::test("tuning::wrong_results_fail", pipelines::wrong_results_fail),
        Trial::test(
            "tuning::errors_of_the_program_are_reported_once",
            pipelines::errors_of_the_program_are_reported_once,
        ),
        Trial::test(
            "tuning::errors_of_other_options_are_reported_once",
            pipelines::errors_of_other_options_are_reported_once,
        ),
        Trial::test(
            "tuning::a_pipeline_is_located_in_its_option",
            pipelines::a_pipeline_is_located_in_its_option,
        ),
        Trial::test("tuning::other_jobs_may_write_the_table", pipelines::other_jobs_may_write_the_table),
        Trial::test(
            "tuning::other_options_apply_to_all_pipelines",
            pipelines::other_options_apply_to_all_pipelines,
        ),
        Trial::test(
            "tuning::a_failure_of_the_second_round_is_reported",
            pipelines::a_failure_of_the_second_round_is_reported,
        ),
        Trial::test("tuning::a_lost_rank_leaves_a_table", pipelines::a_lost_rank_leaves_a_table),
        Trial::test("tuning::a_program_of_a_batch_does_not_tune_the_next", a_program_does_not_tune_the_next),
    ];
    trials.into_iter().map(|it| it.with_ignored_flag(emulator::is_missing())).collect()
}

/// A folder with a table.
struct Tuned {
    folder: tempfile::TempDir,
}

impl Tuned {
    fn new() -> Result<Self, Failed> {
        let it = Self { folder: tempfile::tempdir()? };
        fs::write(it.program(), PROGRAM)?;
        Ok(it)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path of `PROGRAM`.
    fn program(&self) -> String {
        self.path("program.hir").display().to_string()
    }

    /// Returns the path of the table.
    fn table(&self) -> String {
        self.path("table.json").display().to_string()
    }

    fn read(&self) -> Result<Value, Failed> {
        Ok(serde_json::from_str(&fs::read_to_string(self.table())?)?)
    }

    /// Writes the table with one change.
    fn change(&self, change: impl FnOnce(&mut Value)) -> Result<(), Failed> {
        let mut table = self.read()?;
        change(&mut table);
        Ok(fs::write(self.table(), table.to_string())?)
    }

    /// Returns the command that runs a program with these arguments.
    fn command(&self, program: &str, arguments: &[&str]) -> Result<Command, Failed> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
        command.args([program, "--device=cuda", "--check=off", "-w", "1"]).args(arguments);
        command.current_dir(ROOT).env_clear().envs(emulator::environment()?);
        Ok(command)
    }

    /// Runs a program with these arguments.
    fn run(&self, program: &str, arguments: &[&str], settings: &[(&str, &str)]) -> Result<Output, Failed> {
        let mut command = self.command(program, arguments)?;
        Ok(command.envs(settings.iter().copied()).output_with_timeout()?)
    }

    /// Tunes `PROGRAM` on two ranks.
    fn tune(&self, arguments: &[&str], settings: &[(&str, &str)]) -> Result<Output, Failed> {
        let table = self.table();
        let common = ["--passes", "@lower", "--ranks", "2", "--expect=sim", "-n", "5", "--tune", &table];
        let delay = [("HIR_EMULATED_ALGORITHM_DELAY", "5000")];
        self.run(&self.program(), &[&common[..], arguments].concat(), &[&delay[..], settings].concat())
    }

    /// Runs `PROGRAM` on two ranks with the table, and logs the algorithms.
    fn use_table(&self, arguments: &[&str]) -> Result<Output, Failed> {
        let table = self.table();
        let common = ["--passes", "@lower", "--ranks", "2", "--expect=sim", "--tuning", &table];
        self.run(&self.program(), &[&common[..], arguments].concat(), &[("HIR_EMULATED_ALGORITHM_LOG", "1")])
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn check(holds: bool, output: &Output) -> Result<(), Failed> {
    if holds {
        Ok(())
    } else {
        Err(format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr)).into())
    }
}

/// Returns the emulator's number of the algorithm of an entry: two bytes behind 34 others.
fn number(entry: &Value) -> Option<u64> {
    u64::from_str_radix(entry["algorithm"].as_str().filter(|it| it.len() == 128)?.get(68..70)?, 16).ok()
}

/// Returns the numbers of the algorithms that a run with `HIR_EMULATED_ALGORITHM_LOG` calls, in order.
fn called(log: &str) -> Vec<u64> {
    let calls = log.lines().filter_map(|it| it.split("emulated cuBLASLt: algorithm ").nth(1));
    calls.filter_map(|it| it.parse().ok()).collect()
}

/// Returns the entries of a table: product, number of the algorithm, and both times.
fn entries(table: &Value) -> Vec<(String, Option<u64>, f64, f64)> {
    let entry = |it: &Value| {
        let time = |key: &str| it[key].as_f64().unwrap_or(-1.0);
        (it["product"].as_str().unwrap_or_default().to_owned(), number(it), time("first_us"), time("best_us"))
    };
    table["products"].as_array().into_iter().flatten().map(entry).collect()
}

/// Returns true if the table has the two products of `PROGRAM`, with algorithm 2 and a gain.
fn is_tuned(table: &Value) -> bool {
    let entries = entries(table);
    let keys: Vec<&str> = entries.iter().map(|it| it.0.as_str()).collect();
    keys == KEYS
        && entries.iter().all(|(_, number, first, best)| *number == Some(2) && 0.0 < *best && best < first)
}

fn the_fastest_are_stored_and_used() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let (plain, tuned) = (it.path("plain.npy"), it.path("tuned.npy"));
    let written = |path: &Path| format!("--output=T5=@{}", path.display());
    let output = it.tune(&[&written(&plain), "--step-by-step"], &[])?;
    let said = text(&output.stdout);
    check(output.status.success() && said.ends_with("equal to the simulator (exact)\n"), &output)?;
    let table = it.read()?;
    check(is_tuned(&table), &output).map_err(|_| Failed::from(format!("{table:#}\n{said}")))?;
    let head = json!({ "gpu": "Emulated GPU", "driver": "13.0", "cublaslt": "13.0.0" });
    check(table["version"] == 2 && table["machine"] == head && table["ranks"] == 2, &output)?;
    for key in KEYS {
        let line = said.lines().find(|it| it.starts_with(&format!("# {key}: "))).unwrap_or_default();
        check(line.contains(" us with the first of 4 algorithms, ") && line.ends_with("number 3"), &output)?;
    }
    check(said.contains("# the whole program: ") && said.contains("% less)\n"), &output)?;
    check(said.contains("issued command by command: the time of the whole program"), &output)?;
    check(said.contains("table.json`: 2 products measured, 0 other entries kept\n"), &output)?;
    let output = it.use_table(&[&written(&tuned)])?;
    let said = text(&output.stdout);
    check(output.status.success() && said.contains("has an entry for 2 of 2 matrix products\n"), &output)?;
    // The first two calls of a rank warm up what cuBLASLt itself chooses.
    let calls = called(&text(&output.stderr));
    check(calls.iter().filter(|it| **it == 0).count() == 4, &output)?;
    check(calls.len() > 8 && calls.iter().all(|it| [0, 2].contains(it)), &output)?;
    check(fs::read(plain)? == fs::read(tuned)?, &output)?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
    command.args([&it.program(), "--device=sim", "--passes", "@lower", "--tuning", &it.table()]);
    let output = command.output_with_timeout()?;
    let note = "table.json` are not used: the simulator has none to choose from\n";
    check(output.status.success() && text(&output.stdout).contains(note), &output)?;
    // A table need not have all products, and may come from a job of another size.
    it.change(|table| {
        table["ranks"] = json!(4);
        table["products"].as_array_mut().into_iter().for_each(|it| it.truncate(1));
    })?;
    let output = it.use_table(&[])?;
    let note = "has an entry for 1 of 2 matrix products; it was measured with 4 ranks\n";
    check(output.status.success() && text(&output.stdout).contains(note), &output)
}

fn graphs_are_measured_too() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let output = it.tune(&[], &[])?;
    let said = text(&output.stdout);
    check(output.status.success() && said.contains("as captured graphs: the time of"), &output)?;
    check(is_tuned(&it.read()?), &output)?;
    // The graph that is timed afterwards has the chosen algorithms: without them no run is shorter than ten milliseconds.
    let row = said.lines().skip_while(|it| !it.contains("timed runs, one graph of")).nth(2);
    let shortest = row.and_then(|it| it.split_whitespace().nth(3)?.parse::<f64>().ok());
    check(shortest.is_some_and(|it| it < 10_000.0), &output)
}

fn other_products_keep_their_entries() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let output = it.tune(&[], &[])?;
    check(output.status.success(), &output)?;
    let before = it.read()?;
    let table = it.table();
    let tune = ["--tune", &table, "-n", "1"];
    let output = it.run("docs/examples/mlp.hir", &tune, &[])?;
    let said = text(&output.stdout);
    let note = "table.json`: 2 products measured, 2 other entries kept\n";
    check(output.status.success() && said.contains(note), &output)?;
    let after = it.read()?;
    let kept = |key: &&str| {
        let of =
            |table: &Value| table["products"].as_array()?.iter().find(|it| it["product"] == **key).cloned();
        of(&before).is_some() && of(&before) == of(&after)
    };
    check(KEYS.iter().all(kept) && entries(&after).len() == 4 && after["ranks"] == 1, &output)?;
    // Entries of another machine are worth nothing here.
    it.change(|table| table["machine"]["gpu"] = json!("NVIDIA H200"))?;
    let output = it.run("docs/examples/mlp.hir", &tune, &[])?;
    let said = text(&output.stdout);
    check(said.contains("the GPU was `NVIDIA H200`, and here it is `Emulated GPU`"), &output)?;
    check(said.contains("; its 4 entries are dropped\n"), &output)?;
    let table = it.read()?;
    check(entries(&table).len() == 2 && table["machine"]["gpu"] == "Emulated GPU", &output)
}

/// Both ranks compute a product, and one of them another one.
fn ranks_may_have_different_products() -> Result<(), Failed> {
    let program_with = |more: &str| {
        format!(
            "%tensor T0_g_float[iS0{{8}}, iS1{{16}}] (DeviceMesh{{0 1}})\n\
             %tensor T1_g_float[iS2{{16}}, iS3{{16}}] (DeviceMesh{{0 1}})\n\
             %tensor T2_g_float[iS4{{12}}, iS5{{16}}] (DeviceMesh{{0 1}})\n\
             %tensor T3_g_float[iS6{{8}}, iS7{{16}}] (DeviceMesh{{0 1}})\n\
             %tensor T4_g_float[iS8{{8}}, iS9{{16}}] (DeviceMesh{{0 1}})\n\
             %tensor T5_g_float[iS10{{8}}, iS11{{12}}] (DeviceMesh{{0 1}})\n\
             %HostIrContainer {{ (T0, T1, T2) -> (T4) :\n  \
             T3 = linear(T0, T1)\n  \
             T4 = relu(T3);\n{more}\
             }} // %HostIrContainer\n"
        )
    };
    let it = Tuned::new()?;
    let (one, two) = (it.path("one.hir"), it.path("two.hir"));
    fs::write(&one, program_with(""))?;
    fs::write(&two, program_with("  T5 = linear(T4, T2)\n"))?;
    let (one, two, table) = (one.display(), two.display(), it.table());
    for programs in [format!("0={one},1={two}"), format!("0={two},1={one}")] {
        for issue in [&["--step-by-step"][..], &[]] {
            let _ = fs::remove_file(&table);
            let arguments = [&["--ranks", "2", "--expect=sim", "-n", "5", "--tune", &table], issue].concat();
            let program = format!("--program={programs}");
            let output = it.run(&program, &arguments, &[("HIR_EMULATED_ALGORITHM_DELAY", "5000")])?;
            check(output.status.success() && is_tuned(&it.read()?), &output)?;
            let output = it.run(&program, &["--ranks", "2", "--expect=sim", "--tuning", &table], &[])?;
            let note = "has an entry for 2 of 2 matrix products\n";
            check(
                output.status.success() && String::from_utf8_lossy(&output.stdout).contains(note),
                &output,
            )?;
        }
    }
    Ok(())
}

fn algorithms_that_fail_are_left_out() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let output = it.tune(&[], &[("HIR_EMULATED_REFUSED_ALGORITHM", "1")])?;
    let said = text(&output.stdout);
    check(output.status.success() && is_tuned(&it.read()?), &output)?;
    for key in KEYS {
        let note = format!(
            "# {key}: algorithm 2 of 4 is left out: rank 0: cublasLtMatmul failed: CUBLAS_STATUS_NOT"
        );
        let line = format!("# {key}: ");
        let measured =
            said.lines().any(|it| it.starts_with(&line) && it.contains("the first of 3 algorithms"));
        check(said.contains(&note) && measured, &output)?;
    }
    // The first one stays if no other is faster by enough.
    let output = it.tune(&[], &[("HIR_EMULATED_ALGORITHMS", "2")])?;
    let said = text(&output.stdout);
    check(said.matches("with the first of 2 algorithms, which stays\n").count() == 2, &output)?;
    check(said.contains("the whole program keeps the algorithms that cuBLASLt chooses\n"), &output)?;
    let numbers: Vec<Option<u64>> = entries(&it.read()?).into_iter().map(|it| it.1).collect();
    check(output.status.success() && numbers == [Some(0), Some(0)], &output)?;
    // With a single one there is nothing to choose, but the time is known.
    let output = it.tune(&[], &[("HIR_EMULATED_ALGORITHMS", "1")])?;
    check(text(&output.stdout).matches(" us with the only algorithm\n").count() == 2, &output)
}

/// The second program has the same plans, so it keeps those of the first one on the GPU.
fn a_program_does_not_tune_the_next() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let table = it.table();
    let batch = it.path("batch.txt");
    fs::write(
        &batch,
        format!(
            "docs/examples/mlp.hir --tune {table} -n 5\ndocs/examples/mlp.hir\ndocs/examples/mlp.hir --tuning {table}\n"
        ),
    )?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
    command.arg("--batch").arg(&batch).args(["--device=cuda", "--expect=sim"]);
    command.current_dir(ROOT).env_clear().envs(emulator::environment()?);
    // The delay of the other algorithms exceeds what other processes delay.
    command.env("HIR_EMULATED_ALGORITHM_LOG", "1").env("HIR_EMULATED_ALGORITHM_DELAY", "8000");
    let output = command.output_with_timeout()?;
    let said = text(&output.stdout);
    check(output.status.success() && said.matches("[SUCCESS]").count() == 3, &output)?;
    check(said.contains("has an entry for 2 of 2 matrix products\n"), &output)?;
    // The last program first tries the two algorithms of the table.
    check(called(&text(&output.stderr)).ends_with(&[2, 2, 0, 0, 2, 2, 2, 2]), &output)
}
