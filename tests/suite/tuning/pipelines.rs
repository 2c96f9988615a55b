//! Tests `--tune-passes` on emulated GPUs, on which each matrix product takes at least five milliseconds: a pipeline that
//! makes more of them is slower.

use std::{fs, process::Output};

use libtest_mimic::Failed;
use serde_json::Value;

use super::{Tuned, check, text};

/// A program in which each of two ranks has a part of the sum of a product.
const PROGRAM: &str = "tests/cases/overlap/allocate-before.hir";

fn tune(it: &Tuned, arguments: &[&str]) -> Result<Output, Failed> {
    let common = ["--ranks", "2", "-n", "3"];
    it.run(PROGRAM, &[&common[..], arguments].concat(), &[("HIR_EMULATED_ALGORITHM_DELAY", "5000")])
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

/// One product takes less time than two, and two take less than four. A pipeline that does not apply is refused.
pub fn the_fastest_pipeline_is_named() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let json = it.path("pipelines.json").display().to_string();
    let chunks = "@overlap-linear-allreduce{overlap.count=4|2,assign-streams.count=1}";
    let refused = "@lower,chunk{axis=T9.0}";
    for graph in [&[][..], &["-G"]] {
        let arguments = ["--expect=sim", "--tune-passes", chunks, "--tune-passes", "@lower", "-J", &json];
        let output = tune(&it, &[&arguments[..], &["--tune-passes", refused], graph].concat())?;
        let (said, rows) = (text(&output.stdout), rows(&text(&output.stdout)));
        let order: Vec<&str> = rows.iter().map(|it| it.1.as_str()).collect();
        let with_chunks = |count: usize| chunks.replace("4|2", &count.to_string());
        let expected = ["@lower".to_owned(), with_chunks(2), with_chunks(4), refused.to_owned()];
        check(order == expected, &output)?;
        let slower =
            |at: usize| rows[at].0.is_some_and(|it| it.iter().all(|it| *it > 5000.0 * f64::from(1 << at)));
        check((0..3).all(slower) && rows[3].0.is_none(), &output)?;
        let verdict = "[SUCCESS] the fastest of 3 pipelines: --passes '@lower'; refused: 1\n";
        check(output.status.success() && said.ends_with(verdict), &output)?;
        check(text(&output.stderr).contains("T9") && !said.contains("no output was compared"), &output)?;
        let found: Value = serde_json::from_str(&fs::read_to_string(&json)?)?;
        let pipelines = found["pipelines"].as_array().ok_or("no pipelines")?;
        let codes: Vec<Option<u64>> = pipelines.iter().map(|it| it["exit_code"].as_u64()).collect();
        check(found["ranks"] == 2 && codes == [Some(0), Some(0), Some(0), Some(2)], &output)
            .map_err(|_| Failed::from(format!("{found:#}")))?;
        check(pipelines[0]["passes"] == with_chunks(4), &output)?;
    }
    Ok(())
}

/// A pipeline whose outputs are wrong is not the fastest one, and the job fails.
pub fn wrong_results_fail() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let output = tune(&it, &["--expect=T2=4x2xf32=1 2 3 4 5 6 7 8", "--tune-passes", "@lower"])?;
    let said = text(&output.stdout);
    let verdict = "[FAILED] exit code 3 with --passes '@lower'\n";
    check(output.status.code() == Some(3) && said.ends_with(verdict), &output)?;
    check(said.contains("[FAILED] T2: element"), &output)
}

/// Pipelines follow `--passes`, and a success says whether outputs were compared.
pub fn other_options_apply_to_all_pipelines() -> Result<(), Failed> {
    let it = Tuned::new()?;
    let output = tune(&it, &["--passes", "@lower", "--tune-passes", "remove-dead-code|canonicalize", "-q"])?;
    let said = text(&output.stdout);
    check(output.status.success() && rows(&said).len() == 2, &output)?;
    check(said.lines().all(|it| !it.starts_with('#')), &output)?;
    let output = tune(&it, &["--tune-passes", "@lower"])?;
    let said = text(&output.stdout);
    check(said.contains("# no output was compared: add"), &output)?;
    let unwritable = it.path("no/such/folder.json").display().to_string();
    let output = tune(&it, &["--tune-passes", "@lower", "-J", &unwritable])?;
    check(output.status.code() == Some(6) && text(&output.stderr).contains("cannot write"), &output)
}
