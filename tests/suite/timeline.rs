//! Checks the files of `hir-run --timeline`: traces, pages and pictures of simulated and emulated runs.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use grammar::span::LineIndex;
use hir_driver::{
    auto::machine::MachineFlag,
    calibrate::evidence::{accuracy, compare},
};
use hir_plan::World;
use hir_plan::timeline::{
    SliceKind, Timeline,
    estimate::{MeasuredTime, measured},
    estimator::Estimator,
    file::TimelineFile,
    overlap::Overlap,
};
use libtest_mimic::{Failed, Trial};
use serde_json::Value;

use super::{ROOT, emulator};
use crate::{pipelines::lowered, rng::Rng, timeout::RunWithTimeout};

/// Programs, and the pipelines that lower them.
pub const LOWERED: &[(&str, &str)] = &[
    ("tests/cases/overlap/ring.hir", "canonicalize"),
    ("tests/cases/overlap/sequence-parallel-mlp.hir", "@overlap{}"),
    ("tests/cases/overlap/allocate-before.hir", "@overlap-linear-allreduce-copy"),
    ("tests/cases/overlap/allocate-before.hir", "@lower,select-algorithms"),
    ("tests/cases/overlap/column-parallel.hir", "@overlap-allgather-linear"),
    ("tests/cases/launch/loop.hir", "canonicalize"),
];
/// Number of times that the clocks of the ranks of each program are set anew.
const CLOCKS: u64 = 20;

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let measured = Trial::test("timeline::of_emulated_gpus", of_emulated_gpus);
    vec![
        Trial::test("timeline::of_a_ring", of_a_ring),
        Trial::test("timeline::of_a_deadlock", of_a_deadlock),
        Trial::test("timeline::of_a_hang", of_a_hang),
        Trial::test("timeline::of_clocks_that_differ", of_clocks_that_differ),
        Trial::test("timeline::shipped_machines_are_as_accurate_as_they_say", shipped_machines_are_accurate),
        measured.with_ignored_flag(emulator::is_missing()),
    ]
}

/// The accuracy that the file of a machine states is that of the estimates of its runs.
fn shipped_machines_are_accurate() -> Result<(), Failed> {
    for name in ["h100", "h200"] {
        let MachineFlag { machine, .. } = name.parse()?;
        let found = accuracy(&compare(&machine));
        if found != machine.accuracy {
            return Err(format!("{name}: {found:?} instead of {:?}", machine.accuracy).into());
        }
    }
    Ok(())
}

/// The files of one run.
pub struct Files {
    /// The Chrome trace.
    pub trace: Value,
    page: String,
    picture: String,
    /// The exit code and standard output.
    exit: Option<i32>,
    printed: String,
}

/// Runs `hir-run` with all three files.
///
/// # Errors
/// Returns an error if a file is missing.
pub fn run(program: &str, arguments: &[&str], environment: &[(String, String)]) -> Result<Files, Failed> {
    let folder = tempfile::tempdir()?;
    let file = |name: &str| -> PathBuf { folder.path().join(name) };
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
    command.current_dir(ROOT).arg(Path::new(ROOT).join(program)).args(arguments).arg("--overlap");
    command.envs(environment.iter().cloned());
    for name in ["t.json", "t.html", "t.svg"] {
        command.arg("--timeline").arg(file(name));
    }
    let out = command.output_with_timeout()?;
    let text =
        |name: &str| fs::read_to_string(file(name)).map_err(|fault| format!("{name}: {fault}: {out:?}"));
    Ok(Files {
        trace: serde_json::from_str(&text("t.json")?)?,
        page: text("t.html")?,
        picture: text("t.svg")?,
        exit: out.status.code(),
        printed: String::from_utf8_lossy(&out.stdout).into_owned(),
    })
}

/// A slice of a trace.
struct Slice {
    name: String,
    /// The rank and the row.
    place: (u64, u64),
    begin: f64,
    end: Option<f64>,
}

/// Returns the slices of a trace after checks that hold for every trace: pieces of work on one row do not
/// overlap, arrows do not lead back in time, and each end of an arrow touches a slice of its row.
fn slices(files: &Files) -> Result<Vec<Slice>, Failed> {
    let events = files.trace["traceEvents"].as_array().ok_or("no events")?;
    let number = |it: &Value, key: &str| it[key].as_f64().ok_or(format!("no `{key}` in {it}"));
    let place = |it: &Value| (it["pid"].as_u64().unwrap_or(u64::MAX), it["tid"].as_u64().unwrap_or(u64::MAX));
    let (mut slices, mut arrows) = (Vec::new(), BTreeMap::<u64, [Option<f64>; 2]>::new());
    let is_slice =
        |it: &&Value| ["X", "B"].contains(&it["ph"].as_str().unwrap_or_default()) && it["cat"] != "while";
    for it in events.iter().filter(is_slice) {
        let begin = number(it, "ts")?;
        let end = if it["ph"] == "X" { Some(begin + number(it, "dur")?) } else { None };
        slices.push(Slice {
            name: it["name"].as_str().unwrap_or_default().to_owned(),
            place: place(it),
            begin,
            end,
        });
    }
    // Times have rounding errors.
    let near = 1e-6;
    for it in events.iter().filter(|it| ["s", "f"].contains(&it["ph"].as_str().unwrap_or_default())) {
        let time = number(it, "ts")?;
        let touches = |slice: &Slice| {
            slice.place == place(it)
                && slice.begin - near <= time
                && slice.end.is_none_or(|end| time <= end + near)
        };
        if !slices.iter().any(touches) {
            return Err(format!("an arrow ends in the air: {it}").into());
        }
        let end = usize::from(it["ph"] == "f");
        arrows.entry(it["id"].as_u64().ok_or("no id")?).or_default()[end] = Some(time);
    }
    for (id, ends) in arrows {
        let [Some(from), Some(to)] = ends else { return Err(format!("arrow {id} has one end").into()) };
        if from > to + near {
            return Err(format!("arrow {id} leads from {from} to {to}").into());
        }
    }
    let mut ends = BTreeMap::<(u64, u64), f64>::new();
    for it in &slices {
        let last = ends.entry(it.place).or_insert(0.0);
        if it.begin < *last - near || it.end.is_some_and(|end| end < it.begin) {
            return Err(
                format!("`{}` begins at {} on {:?}, before {last}", it.name, it.begin, it.place).into()
            );
        }
        *last = it.end.unwrap_or(f64::INFINITY);
    }
    // All three files show the same slices.
    let bars = files.picture.matches("rect class=").count();
    let data: Value = serde_json::from_str(data_of(&files.page))?;
    let listed = data["slices"].as_array().map_or(0, Vec::len);
    if (bars, listed) != (slices.len(), slices.len()) {
        return Err(format!("{} slices, {bars} bars, {listed} in the page", slices.len()).into());
    }
    let without_namespaces = files.page.replace("http://www.w3.org/2000/svg", "");
    if without_namespaces.contains("http") {
        Err("the page refers to another file".into())
    } else {
        Ok(slices)
    }
}

/// Returns the data of a page.
fn data_of(page: &str) -> &str {
    page.split("const data = ").nth(1).and_then(|it| it.split(";\n").next()).unwrap_or_default()
}

fn count(slices: &[Slice], start: &str) -> usize {
    slices.iter().filter(|it| it.name.starts_with(start)).count()
}

/// Each rank of the ring computes 8 products, and copies one block within its memory and 7 from its neighbour.
fn of_a_ring() -> Result<(), Failed> {
    let files = run("tests/cases/overlap/ring.hir", &["--device=sim"], &[])?;
    let slices = slices(&files)?;
    let ranks = slices.iter().map(|it| it.place.0).max();
    let open = slices.iter().filter(|it| it.end.is_none()).count();
    let found = (files.exit, count(&slices, "gemm (line 36"), count(&slices, "copy"), ranks, open);
    if found == (Some(0), 64, 64, Some(7), 0) && files.printed.contains("times are estimated") {
        Ok(())
    } else {
        Err(format!("{found:?}\n{}", files.printed).into())
    }
}

/// Rank 3 skips the all-reduce: it never ends on the other ranks.
fn of_a_deadlock() -> Result<(), Failed> {
    let files = run("tests/cases/deadlock/one-rank-skips.hir", &["--device=sim"], &[])?;
    let slices = slices(&files)?;
    let open: Vec<&Slice> = slices.iter().filter(|it| it.end.is_none()).collect();
    let mut hung: Vec<u64> =
        open.iter().filter(|it| it.name.starts_with("Allreduce")).map(|it| it.place.0).collect();
    hung.sort_unstable();
    let ended = slices.iter().any(|it| it.name.starts_with("Allreduce") && it.end.is_some());
    if files.exit == Some(4)
        && hung == [0, 1, 2]
        && !ended
        && files.picture.contains("never ends")
        && files.picture.contains(">deadlock: rank 3 never posts Communication 3 (Allreduce, line 7)<")
        && files.picture.contains(">► rank 3 main<")
        && files.page.contains("<b>deadlock: rank 3 never posts")
        && files.page.contains("`IF Manual ( rank &lt; 3 )` (line 6) is false on rank 3")
        && files.printed.contains("ranks 0 1 2: Allreduce (line 7) never ends")
    {
        Ok(())
    } else {
        Err(format!("{:?} {hung:?}\n{}", files.exit, files.printed).into())
    }
}

/// Pictures and pages of a job say why it hangs, and mark the rank and the call; a rank without a dump, too.
fn of_a_hang() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let dumps = Path::new(ROOT).join("docs/examples/job-hangs");
    for without in [None, Some(2)] {
        for name in fs::read_dir(&dumps)?.flatten().map(|it| it.file_name()) {
            fs::copy(dumps.join(&name), folder.path().join(name))?;
        }
        if let Some(rank) = without {
            fs::remove_file(folder.path().join(format!("rank_{rank}.json")))?;
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_hir"));
        command.current_dir(folder.path()).args(["hang", ".", "--timeline", "t.svg", "--timeline", "t.html"]);
        let out = command.output_with_timeout()?;
        let [picture, page] = ["t.svg", "t.html"].map(|it| fs::read_to_string(folder.path().join(it)));
        let (picture, page) = (picture?, page?);
        let cause = "hang: rank 2 skips the all_reduce (train.py:13) that ranks 0, 1 and 3 call";
        let shown = match without {
            None => {
                let data: Value = serde_json::from_str(data_of(&page))?;
                let slices = data["slices"].as_array().ok_or("no slices")?.iter().filter(|it| it[8] == true);
                let named: Vec<_> = slices
                    .map(|it| (&data["rows"][it[0].as_u64().unwrap_or(0) as usize][0], &it[6]))
                    .collect();
                named == [(&Value::from(2), &Value::from(14))]
                    && picture.matches("rect class=\"open named\"").count() == 1
                    && picture.contains(&format!(">{cause}"))
                    && page.contains(&format!("<b>{cause}"))
                    && page.contains("dist.all_reduce(weights)")
                    && picture.contains(">► rank 2 group 0<")
                    && picture.matches("►").count() == 1
            }
            Some(rank) => picture.contains(&format!(">► rank {rank} no dump<")),
        };
        if out.status.code() != Some(4) || !shown {
            return Err(format!("{out:?}\n{picture}").into());
        }
    }
    Ok(())
}

/// The clocks of the ranks differ by more than most pieces of work take, as they may on a host under load. Work
/// that is measured on one rank before what it waits for on another one still gives valid files.
fn of_clocks_that_differ() -> Result<(), Failed> {
    let mut rng = Rng(16);
    let mut missing_arrows = 0;
    for (file, pipeline) in LOWERED {
        let text = fs::read_to_string(Path::new(ROOT).join(file))?;
        let (program, _) = lowered(pipeline, &text)?.ok_or(format!("{file} {pipeline}: not lowered"))?;
        let plans = hir_plan::build(&program, &LineIndex::new(&text), hir_plan::smallest_world(&program));
        let plans = plans.map_err(|faults| format!("{file} {pipeline}: {faults:?}"))?;
        let exact = Estimator::default().timeline(&plans, None).map_err(|_| "too many streams")?;
        for _ in 0..CLOCKS {
            let clocks: Vec<f64> = plans.iter().map(|_| rng.below(50) as f64).collect();
            let timeline = with_clocks(&plans, &exact, 1.0, &clocks)?;
            slices(&files_of(&timeline)?)
                .map_err(|it| format!("{file} {pipeline}: {}", it.message().unwrap_or_default()))?;
            let arrows = |it: &Timeline| (0..it.slices.len()).filter(|at| it.arrow_to(*at).is_some()).count();
            missing_arrows += arrows(&exact).saturating_sub(arrows(&timeline));
        }
    }
    match missing_arrows {
        0 => Err("no clock contradicted the order of a program".into()),
        _ => Ok(()),
    }
}

/// Returns an estimated timeline as if its work had been measured: every time is multiplied by `stretch`, and each rank
/// has its own clock.
///
/// # Errors
/// A piece of work never ends and another one does not begin, or there are too many streams.
pub fn with_clocks(
    plans: &World,
    exact: &Timeline,
    stretch: f64,
    clocks: &[f64],
) -> Result<Timeline, Failed> {
    let mut times = vec![Vec::new(); plans.len()];
    for it in exact.slices.iter().filter(|it| it.kind != SliceKind::Wait) {
        let (rank, inst) = (it.inst_ref.rank, it.inst_ref.inst as u32);
        let Some(end) = it.end else { continue };
        let clock = clocks[rank];
        times[rank].push(MeasuredTime {
            inst,
            begin: it.begin * stretch + clock,
            end: end * stretch + clock,
        });
    }
    measured(plans, &times, "measured".to_owned()).map_err(|_| "too many streams".into())
}

/// Returns the files of a timeline.
///
/// # Errors
/// Returns an error if the trace is not JSON.
pub fn files_of(timeline: &Timeline) -> Result<Files, Failed> {
    let report = Overlap::of(timeline).report(timeline);
    let text = |name: &str| -> Result<String, Failed> {
        Ok(name.parse::<TimelineFile>()?.text(timeline, "title", &report)?)
    };
    Ok(Files {
        trace: serde_json::from_str(&text("t.json")?)?,
        page: text("t.html")?,
        picture: text("t.svg")?,
        exit: None,
        printed: report.join("\n"),
    })
}

/// Every command of every rank is measured, and all-reduces overlap in time on all ranks.
fn of_emulated_gpus() -> Result<(), Failed> {
    let arguments = ["--ranks", "4", "--device=cuda"];
    let files = run("tests/cases/launch/loop.hir", &arguments, &emulator::environment()?)?;
    let slices = slices(&files)?;
    let found = (files.exit, count(&slices, "Allreduce"), count(&slices, "+ (line 7"));
    let is_measured =
        files.printed.contains("measured in one run") && files.printed.contains("clocks of two ranks");
    // In the first iteration, the sum is one kernel with the copy before the loop.
    if found == (Some(0), 12, 8) && is_measured {
        Ok(())
    } else {
        Err(format!("{found:?}\n{}", files.printed).into())
    }
}
