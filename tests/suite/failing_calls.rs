//! Lets calls of the driver and of the libraries fail once, on each of two ranks that run on emulated GPUs. Whatever the call, there is one
//! verdict, the exit code says that a device failed or is unsuitable, and nothing hangs. A run makes the first call of each function, or all
//! calls with `HIR_PARTS=all`.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Output},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use libtest_mimic::{Failed, Trial};

use super::{ROOT, emulator, part};
use crate::timeout::RunWithTimeout;

/// What the emulator prints before the number and the name of the call.
const MARK: &str = "emulated fault: call ";

/// The functions without which the program can do; their failure is a note.
const NOT_NEEDED: [&str; 1] = ["cuIpcOpenMemHandle_v2"];

/// What fails behind calls that succeed, and words of the report.
const BEHIND_CALLS: [(&str, &str); 3] = [
    ("ncclConnection", "communication of team [0, 1]"),
    ("ncclNetwork", "communication of team [0, 1]"),
    ("nvrtcSource", "a kernel of line 5 does not compile: "),
];

/// The program: a product, a kernel and a communication.
const PROGRAM: &str = "\
%HostIrContainer { (T0_g_float[ideviceIdx.x0{2}, iS1{8}, iS2{16}] (DeviceMesh{0 1}), T1_g_float[iS3{16}, iS4{16}] (DeviceMesh{0 1})) -> (T3_g_float[iS8{2}, iS9{8}, iS10{16}] (DeviceMesh{0 1})) :
  T2_g_float[ideviceIdx.x5{2}, iS6{8}, iS7{16}] (DeviceMesh{0 1})
     = linear(T0_g_float[ideviceIdx.x0{2}, iS1{8}, iS2{16}] (DeviceMesh{0 1}),
              T1_g_float[iS3{16}, iS4{16}] (DeviceMesh{0 1}))
  T4_g_float[ideviceIdx.x11{2}, iS12{8}, iS13{16}] (DeviceMesh{0 1})
     = abs(T2_g_float[ideviceIdx.x5{2}, iS6{8}, iS7{16}] (DeviceMesh{0 1}));
  Communication 1 (type=Allgather, team=(0 1), input=T4_g_float[ideviceIdx.x11{2}, iS12{8}, iS13{16}] (DeviceMesh{0 1}), output=T3_g_float[iS8{2}, iS9{8}, iS10{16}] (DeviceMesh{0 1}), backend=NCCL)
  Wait(Communication 1)
} // %HostIrContainer
";

pub fn trials() -> Vec<Trial> {
    let trial = |rank: usize| {
        Trial::test(format!("failing_calls::of_rank_{rank}"), move || each_call_may_fail(rank))
            .with_ignored_flag(emulator::is_missing())
    };
    let without_algorithms =
        Trial::test("failing_calls::a_product_needs_no_algorithm", a_product_needs_no_algorithm);
    let limit = Trial::test("failing_calls::the_limit_of_a_loop_has_a_code", the_limit_of_a_loop_has_a_code);
    let others = [without_algorithms, limit].map(|it| it.with_ignored_flag(emulator::is_missing()));
    [trial(0), trial(1)].into_iter().chain(others).collect()
}

fn each_call_may_fail(rank: usize) -> Result<(), Failed> {
    let of = rank.to_string();
    let run = |call: &str| run(&[("HIR_EMULATED_FAIL", call), ("HIR_EMULATED_FAIL_RANK", &of)]);
    let (mut functions, mut faults) = (BTreeSet::new(), Vec::new());
    let mut listed = functions_of_emulator()?;
    listed.extend(BEHIND_CALLS.map(|it| it.0.to_owned()));
    for at in 0.. {
        let call = if part::includes_all() { Some((at + 1).to_string()) } else { listed.get(at).cloned() };
        let Some(call) = call else { break };
        let output = run(&call)?;
        let (said, report) =
            (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        let Some((_, function)) =
            said.lines().find_map(|it| it.split_once(MARK)).and_then(|(_, it)| it.split_once(", "))
        else {
            // All calls have failed once, or the program does not call this function.
            if part::includes_all() {
                break;
            }
            continue;
        };
        functions.insert(function.to_owned());
        let verdicts =
            report.lines().filter(|it| it.starts_with("[FAILED]") || it.starts_with("[SUCCESS]")).count();
        let code = output.status.code();
        let is_right = match code {
            Some(5) => BEHIND_CALLS.iter().all(|(it, words)| *it != function || report.contains(words)),
            Some(6) => BEHIND_CALLS.iter().all(|it| it.0 != function),
            Some(0) => NOT_NEEDED.contains(&function) && report.contains(function.trim_end_matches("_v2")),
            _ => false,
        };
        if verdicts != 1 || !is_right {
            faults.push(format!("call {call} ({function}) of rank {rank}: {code:?}\n{report}{said}"));
        }
    }
    // A test that lets nothing fail would pass.
    if functions.len() < 30 || BEHIND_CALLS.iter().any(|it| !functions.contains(it.0)) {
        faults.push(format!("only these functions have failed: {functions:?}"));
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}

/// Runs the program on two ranks.
fn run(environment: &[(&str, &str)]) -> Result<Output, Failed> {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let name = format!("hir-failing-calls-{}-{}.hir", std::process::id(), RUNS.fetch_add(1, Relaxed));
    let file = std::env::temp_dir().join(name);
    fs::write(&file, PROGRAM)?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
    command.arg(&file).args(["--device=cuda", "--ranks=2", "--expect=sim"]).current_dir(ROOT);
    let output =
        command.envs(emulator::environment()?).envs(environment.iter().copied()).output_with_timeout();
    fs::remove_file(&file)?;
    Ok(output?)
}

/// cuBLASLt may have no algorithm for a product. A kernel of hir computes it then, and a note says so.
fn a_product_needs_no_algorithm() -> Result<(), Failed> {
    let output = run(&[("HIR_EMULATED_ALGORITHMS", "0")])?;
    let report = String::from_utf8_lossy(&output.stdout);
    let words = ["runs on a generic kernel: cuBLASLt has no algorithm for it", "equal to the simulator"];
    if output.status.success() && words.iter().all(|it| report.contains(it)) {
        Ok(())
    } else {
        Err(format!("{output:?}").into())
    }
}

/// A loop whose condition holds until its limit fails as in the simulator.
fn the_limit_of_a_loop_has_a_code() -> Result<(), Failed> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
    command.args(["tests/cases/while/limit.hir", "--input", "T0=2x1xf32=1 1", "--device=cuda", "--ranks=2"]);
    let output = command.current_dir(ROOT).envs(emulator::environment()?).output_with_timeout()?;
    let report = String::from_utf8_lossy(&output.stdout);
    let verdict = report.lines().last().unwrap_or_default();
    if output.status.code() == Some(1)
        && verdict.starts_with("[FAILED] ")
        && verdict.contains(": E0413: line ")
    {
        Ok(())
    } else {
        Err(format!("{output:?}").into())
    }
}

/// Returns the names of the functions that the emulator lets fail.
fn functions_of_emulator() -> Result<Vec<String>, Failed> {
    let files = super::files(&Path::new(ROOT).join("tests/gpu/emulator"), "cpp");
    let found: Result<Vec<_>, _> = files.iter().map(|it| functions_of(it)).collect();
    Ok(found?.concat())
}

/// Returns the names of those that a source file of the emulator has.
pub fn functions_of(file: &Path) -> Result<Vec<String>, Failed> {
    let text = fs::read_to_string(file)?;
    let names = text.lines().filter_map(|it| it.strip_prefix("API Status ")?.split_once('('));
    Ok(names.map(|it| it.0.to_owned()).collect())
}
