//! Checks the output of timed and repeated runs on emulated GPUs: the JSON of a timed run, a race that only
//! shows with delays, which products run on cuBLASLt, and which compute the `relu` of their result.

use std::{fs, path::Path, process::Command};

use libtest_mimic::{Failed, Trial};

use super::{ROOT, emulator};
use crate::timeout::RunWithTimeout;

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let trials = [
        Trial::test("measured::json_holds_every_run", json_holds_every_run),
        Trial::test("measured::runs_are_replayed_or_say_why_not", runs_are_replayed_or_say_why_not),
        Trial::test(
            "measured::pipelines_say_why_they_are_not_captured",
            pipelines_say_why_they_are_not_captured,
        ),
        Trial::test("measured::other_bits_of_timed_runs_are_wrong", other_bits_of_timed_runs_are_wrong),
        Trial::test("measured::delays_show_a_race", || delays_show_a_race("delayed-race.hir")),
        Trial::test("measured::delays_show_data_of_the_run_before", || {
            delays_show_a_race("data-of-the-run-before.hir")
        }),
        Trial::test("measured::products_of_any_strides_run_on_cublaslt", products_run_on_cublaslt),
        Trial::test("measured::a_product_computes_its_relu", a_product_computes_its_relu),
        Trial::test("measured::fused_reductions_have_the_same_bits", fused_reductions_have_the_same_bits),
        Trial::test("measured::collectives_are_tuned", collectives_are_tuned),
    ];
    trials.into_iter().map(|it| it.with_ignored_flag(emulator::is_missing())).collect()
}

fn hir_run(arguments: &[&str]) -> Result<Command, Failed> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
    command.current_dir(ROOT).args(arguments).env_clear().envs(emulator::environment()?);
    Ok(command)
}

/// Every algorithm of every collective is measured and compared, and the results can be read again.
fn collectives_are_tuned() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let tune = |arguments: &[&str]| -> Result<(String, String), Failed> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hir"));
        command.current_dir(folder.path()).args(["tune", "collectives", "--quick", "-q", "-o", "rules"]);
        let output =
            command.args(arguments).env_clear().envs(emulator::environment()?).output_with_timeout()?;
        if !output.status.success() || !output.stderr.is_empty() {
            return Err(format!("{output:?}").into());
        }
        Ok((String::from_utf8(output.stdout)?, fs::read_to_string(path("rules"))?))
    };
    let measured = tune(&["--keep", "results", "--nccl-tuner", "tuner"])?;
    if tune(&["--results", "results"])? != measured {
        return Err("other rules from the same results".into());
    }
    let (report, rules) = measured;
    let lines: Vec<&str> = report.lines().collect();
    let (times, bits): (Vec<&str>, Vec<&str>) = lines.into_iter().partition(|it| it.contains("/2 8K: "));
    let tuner = fs::read_to_string(path("tuner"))?;
    let fields = tuner.lines().skip(1).all(|it| it.split(',').count() == 10);
    let same = bits.iter().all(|it| it.starts_with("bits of ") && it.contains(" the same"));
    // The fastest algorithm may also be the one with guaranteed bits: then it has one rule.
    if (times.len(), bits.len(), fields, same) != (4, 22, true, true) || !rules.contains("Allreduce/2=") {
        return Err(format!("{report}\n{rules}\n{tuner}").into());
    }
    other_bits_are_reported(folder.path())?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir"));
    command.current_dir(folder.path()).args(["tune", "collectives", "--quick", "--results", "nothing"]);
    let output = command.env_clear().envs(emulator::environment()?).output_with_timeout()?;
    let message = "`nothing` has no results of `hir tune`; run it with `--keep nothing`";
    if output.status.code() != Some(6) || !String::from_utf8_lossy(&output.stderr).contains(message) {
        return Err(format!("{output:?}").into());
    }
    Ok(())
}

/// An algorithm of hir whose bits differ is in no rule; the command then fails, but writes its report and its files.
fn other_bits_are_reported(folder: &Path) -> Result<(), Failed> {
    let batch = fs::read_to_string(folder.join("results/2/batch.txt"))?;
    let compared = batch.lines().enumerate().filter(|(_, it)| it.contains(" --stress "));
    // The first one is an all-reduce with NCCL, the second one that with one-shot.
    let number = compared.map(|it| it.0).nth(1).ok_or("no comparison")?;
    let path = folder.join(format!("results/2/{number}.json"));
    let mut result: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
    result["exit_code"] = serde_json::json!(3);
    fs::write(&path, result.to_string())?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir"));
    command.current_dir(folder).args(["tune", "collectives", "--quick", "-q", "-o", "others"]);
    command.args(["--results", "results"]).env_clear().envs(emulator::environment()?);
    let output = command.output_with_timeout()?;
    let rules = fs::read_to_string(folder.join("others"))?;
    let expected = "bits of Allreduce/2 with one-shot differ between runs or ranks in 1 of 1 comparisons\n";
    let report = String::from_utf8_lossy(&output.stdout);
    let is_left_out = rules.contains("Allreduce/2=") && !rules.contains("Allreduce/2=one-shot;");
    if output.status.code() == Some(3) && report.contains(expected) && is_left_out {
        Ok(())
    } else {
        Err(format!("{output:?}\n{rules}").into())
    }
}

fn json_holds_every_run() -> Result<(), Failed> {
    let path = format!("{}/measured.json", env!("CARGO_TARGET_TMPDIR"));
    let program = "tests/cases/launch/loop.hir";
    let arguments = [program, "--ranks", "4", "--device=cuda", "-w", "1", "-n", "5", "-G", "-J", &path];
    let output = hir_run(&arguments)?.output_with_timeout()?;
    if !output.status.success() {
        return Err(format!("{output:?}").into());
    }
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
    let number = |key: &str| json[key].as_f64().ok_or_else(|| format!("no number `{key}` in {json:#}"));
    let runs: Vec<f64> =
        json["runs_us"].as_array().into_iter().flatten().filter_map(|it| it.as_f64()).collect();
    let (least, most) =
        (runs.iter().copied().fold(f64::INFINITY, f64::min), runs.iter().copied().fold(0.0, f64::max));
    let (min, median, p99, max) =
        (number("min_us")?, number("median_us")?, number("p99_us")?, number("max_us")?);
    let holds = json["program"] == serde_json::json!([program])
        && json["ranks"] == 4
        && runs.len() == 5
        && (min, max) == (least, most)
        && 0.0 < min
        && min <= median
        && median <= p99
        && p99 <= max
        && number("graph_nodes")? >= 1.0
        && json["lines"].as_array().is_some_and(|lines| !lines.is_empty());
    // The printed table must contain the same number.
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    if holds && table.contains(&format!("{median:.2}")) {
        Ok(())
    } else {
        Err(format!("{json:#}\n{table}").into())
    }
}

/// Runs after the first one replay a graph by default. A plan that makes the host wait cannot be captured: it runs step by
/// step, says so, and is refused with `-G`. All ways give the same outputs.
fn runs_are_replayed_or_say_why_not() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("times.json").display().to_string();
    let why = "line 15: a CUDA graph cannot make the host wait";
    let note = format!(
        "# the plan cannot be replayed as a CUDA graph, so all runs are issued step by step: rank 0: {why}\n"
    );
    let (captured, waits) =
        ("tests/cases/transport/cuda-reduce-scatter.hir", "tests/cases/check/host-wait.hir");
    // Whether a graph is replayed, and the exit code.
    let expected = [
        (captured, &[][..], true, 0),
        (captured, &["-G"], true, 0),
        (captured, &["--step-by-step"], false, 0),
        (waits, &[], false, 0),
        (waits, &["--step-by-step"], false, 0),
        (waits, &["-G"], false, 1),
        (captured, &["-G", "--step-by-step"], false, 2),
    ];
    for (program, issue, is_replayed, code) in expected {
        let ranks = if program == waits { "2" } else { "4" };
        let common = [program, "--ranks", ranks, "--device=cuda", "--expect=sim", "-w", "1", "-n", "2"];
        let more = ["--stress", "3", "--profile-host", "-J", &path];
        let output = hir_run(&[&common[..], &more, issue].concat())?.output_with_timeout()?;
        let wrong = || Failed::from(format!("{program} {issue:?}: {output:?}"));
        let said = String::from_utf8_lossy(&output.stdout);
        if output.status.code() != Some(code) {
            return Err(wrong());
        }
        if code > 0 {
            continue;
        }
        let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
        let is_due = program == waits && issue.is_empty();
        let how = if is_replayed { "2 timed runs, one graph of " } else { "2 timed runs, step by step;" };
        let holds = said.contains(how)
            && said.contains(&note) == is_due
            && json["not_captured"].is_string() == is_due
            && json["graph_nodes"].is_u64() == is_replayed
            && json["host"]["rounds"].as_u64().is_some_and(|it| it > 20)
            && json["host"]["graph_ratio"].is_f64() == is_replayed
            && said.contains("us a replay (at least ") == is_replayed
            && said.contains("# 3 runs with delays: outputs bitwise equal on all ranks\n")
            && said.contains("equal to the simulator");
        if !holds {
            return Err(wrong());
        }
    }
    Ok(())
}

/// Pipelines whose plans cannot be captured are measured step by step and say so. With `-G`, each of them is refused, and the
/// job goes on.
fn pipelines_say_why_they_are_not_captured() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("times.json").display().to_string();
    let program = ["tests/cases/check/host-wait.hir", "--ranks", "2", "--device=cuda", "-w", "0", "-n", "2"];
    let tune = ["--tune-passes", "@lower|canonicalize", "-J", &path];
    for (issue, code) in [(&[][..], 0), (&["-G"], 1)] {
        let output = hir_run(&[&program[..], &tune, issue].concat())?.output_with_timeout()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
        let pipelines = json["pipelines"].as_array().map_or(&[][..], Vec::as_slice);
        let is_right =
            |it: &serde_json::Value| it["exit_code"] == code && it["not_captured"].is_string() == (code == 0);
        let verdict =
            if code == 0 { "the fastest of 2 pipelines" } else { "no pipeline was measured; 2 refused" };
        let holds = output.status.code() == Some(code)
            && pipelines.len() == 2
            && pipelines.iter().all(is_right)
            && said.contains(verdict);
        if !holds {
            return Err(format!("{issue:?}: {json:#}\n{output:?}").into());
        }
    }
    Ok(())
}

/// The outputs of timed runs must have the bits of the first run. This program reads T2 of the run before.
fn other_bits_of_timed_runs_are_wrong() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("program.hir").display().to_string();
    let text = "%HostIrContainer { (T0_g_float[iS0{4}]) -> (T1_g_float[iS1{4}]) :\n  \
         T2_g_float[iS2{4}] = ALLOCATE(mem_type=global, zero_init=false)\n  \
         T1_g_float[iS1{4}] = neg(T2_g_float[iS2{4}])\n  \
         T2_g_float[iS2{4}] = abs(T0_g_float[iS0{4}])\n\
         } // %HostIrContainer\n";
    fs::write(&program, text)?;
    for (issue, how) in [(&[][..], "replayed as a CUDA graph"), (&["--step-by-step"], "issued step by step")]
    {
        let arguments = [&[&program, "--device=cuda", "--check=off", "-w", "1", "-n", "1"], issue].concat();
        let output = hir_run(&arguments)?.output_with_timeout()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let verdict = format!("[FAILED] timed run 1 of 1, {how}: T1: element [0] of rank 0's part is ");
        if output.status.code() != Some(3) || !said.contains(&verdict) {
            return Err(format!("{output:?}").into());
        }
    }
    Ok(())
}

/// A product on a generic kernel has a note.
fn products_run_on_cublaslt() -> Result<(), Failed> {
    for (program, is_generic) in
        [("tests/cases/ops/matmul-strides.hir", false), ("tests/cases/ops/matmul-integers.hir", true)]
    {
        let output = hir_run(&[program, "--device=cuda", "--expect=sim"])?.output_with_timeout()?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || text.contains("runs on a generic kernel") != is_generic {
            return Err(format!("{output:?}").into());
        }
    }
    Ok(())
}

/// The table of times by line names the line whose command computes another line, too.
fn a_product_computes_its_relu() -> Result<(), Failed> {
    let arguments =
        ["tests/cases/ops/matmul-relu.hir", "--device=cuda", "--expect=sim", "-w", "1", "-n", "2"];
    let output = hir_run(&arguments)?.output_with_timeout()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let relus = text.lines().filter(|it| it.split_whitespace().nth(1) == Some("relu"));
    let fused: Vec<bool> = relus.map(|it| it.contains("in line")).collect();
    // T3, T5, T7, T15, T12, T18.
    if output.status.success() && fused == [true, true, false, true, false, false] {
        Ok(())
    } else {
        Err(format!("{output:?}").into())
    }
}

/// Reductions on a stream of their own are not fused with other instructions.
fn fused_reductions_have_the_same_bits() -> Result<(), Failed> {
    const OUTPUTS: [&str; 8] = ["T12", "T13", "T15", "T23", "T28", "T29", "T31", "T39"];
    let folder = tempfile::tempdir()?;
    let file = |name: &str| format!("{}/{name}", folder.path().display());
    let fused = fs::read_to_string(format!("{ROOT}/tests/cases/ops/rows.hir"))?;
    let mut apart = String::new();
    for line in fused.lines() {
        apart += &match line {
            _ if line.contains("= reduction(") => format!(
                "  SetCurrentStream(Stream 1)\n  Synchronize(Stream s0)\n{line}\n  SetCurrentStream(Stream s0)\n  \
                 Synchronize(Stream 1)\n"
            ),
            _ if line.starts_with("%HostIrContainer") => {
                format!("{line}\n  Stream s0 = GetCurrentStream()\n")
            }
            _ => format!("{line}\n"),
        };
    }
    let (one, other) = (file("fused.hir"), file("apart.hir"));
    fs::write(&one, fused)?;
    fs::write(&other, apart)?;
    let values = OUTPUTS.map(|it| format!("{it}=@{}", file(&format!("{it}.npy"))));
    let with = |option: &'static str| values.iter().flat_map(move |it| [option, it.as_str()]);
    let common = ["--device=cuda", "--inputs", "random", "-w", "1", "-n", "2"];
    let first: Vec<&str> = [one.as_str()].into_iter().chain(common).chain(with("--output")).collect();
    let output = hir_run(&first)?.output_with_timeout()?;
    let is_fused = |output: &std::process::Output| {
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().any(|it| it.contains(" reduce ") && it.contains("in line"))
    };
    if !output.status.success() || !is_fused(&output) {
        return Err(format!("{output:?}").into());
    }
    let exact = ["--rtol", "0", "--atol", "0"];
    let second: Vec<&str> =
        [other.as_str()].into_iter().chain(common).chain(exact).chain(with("--expect")).collect();
    let output = hir_run(&second)?.output_with_timeout()?;
    if output.status.success() && !is_fused(&output) { Ok(()) } else { Err(format!("{output:?}").into()) }
}

fn delays_show_a_race(program: &str) -> Result<(), Failed> {
    let program = format!("tests/cases/cuda/{program}");
    let mut command = hir_run(&[&program, "--device=cuda", "--check=off", "--stress", "200"])?;
    // The emulated streams poll. Without a delay of several polling intervals, one of them may always be
    // first.
    let output = command.env("HIR_EMULATED_DELAY", "3000").output_with_timeout()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let verdict = text.lines().rfind(|it| it.starts_with("[FAILED]")).unwrap_or_default();
    let named = ["with delays: T2: element [", "of rank 0's part"].iter().all(|it| verdict.contains(it));
    if output.status.code() == Some(3) && named { Ok(()) } else { Err(format!("{output:?}").into()) }
}
