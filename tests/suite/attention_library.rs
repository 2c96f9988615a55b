//! Attentions that cuDNN computes on emulated GPUs, compared with the simulator. Each call of cuDNN may fail: while plans are made, hir's
//! kernels take the attention and a note says why; while they run, the verdict is that of a failed call.

use std::{
    io::Write,
    path::Path,
    process::{Command, Output},
};

use libtest_mimic::{Failed, Trial};

use super::{ROOT, emulator, failing_calls::functions_of};
use crate::timeout::RunWithTimeout;

const PROGRAMS: [&str; 3] = [
    "tests/cases/cuda/attention-of-a-library.hir",
    "tests/cases/cuda/attention-gradient-of-a-library.hir",
    "tests/cases/ops/attention-masked-row.hir",
];

/// Attentions that cuDNN does not compute: keys that the program repeats for each head beside values of each head, a negative scale, and gradients of
/// each head of repeated keys, also of fewer keys than a tile has.
const REFUSED: &str = "\
%tensor T0_g___bfloat[iS0{2}, iS1{4}, iS2{72}, iS3{64}]
%tensor T1_g___bfloat[iS4{2}, bS5{1}, iS6{72}, iS7{64}]
%tensor T2_g___bfloat[iS8{2}, iS9{4}, iS10{72}, iS11{64}]
%tensor T3_g___bfloat[iS12{2}, bS13{1 ex 4}, iS14{72}, iS15{64}]
%tensor T4_g___bfloat[iS16{2}, iS17{4}, iS18{72}, iS19{64}]
%tensor T5_g___bfloat[iS20{2}, iS21{4}, iS22{72}, iS23{64}]
%tensor T6_g_float[iS24{2}, iS25{4}, iS26{72}]
%tensor T7_g_uint64_t[iS27{2}]
%tensor T8_g_uint64_t[]
%tensor T9_g___bfloat[iS28{2}, iS29{4}, iS30{72}, iS31{64}]
%tensor T10_g___bfloat[iS32{2}, iS33{4}, iS34{72}, iS35{64}]
%tensor T11_g___bfloat[iS36{2}, iS37{4}, iS38{72}, iS39{64}]
%tensor T12_g___bfloat[iS40{2}, iS41{4}, iS42{72}, iS43{64}]
%tensor T13_g_float[iS44{2}, iS45{4}, iS46{72}]
%tensor T14_g_uint64_t[iS47{2}]
%tensor T15_g_uint64_t[]
%tensor T16_g___bfloat[iS48{2}, iS49{4}, iS50{72}, iS51{64}]
%tensor T17_g___bfloat[iS52{2}, iS53{4}, iS54{72}, iS55{64}]
%tensor T18_g___bfloat[iS56{2}, iS57{4}, iS58{72}, iS59{64}]
%tensor T19_g___bfloat[iS60{2}, iS61{4}, iS62{72}, iS63{64}]
%HostIrContainer { (T0, T1, T2) -> (T4, T19, T5, T9, T10, T11, T12, T16, T17, T18) :
  T3 = expand(T1)
  T4 = sdpa(T0, T3, T2, dropout_p=double(0), is_causal=false)
  T19 = sdpa(T0, T2, T2, dropout_p=double(0), is_causal=true, scale=double(-0.5))
  T5, T6, T7, T8 = sdpa(T0, T3, T3, dropout_p=double(0), is_causal=true)
  T9, T10, T11 = sdpa_bwd(T2, T0, T3, T3, T5, logsum_exp=T6, dropout_p=double(0), is_causal=true, philox_seed=T7, philox_offset=T8)
  T12, T13, T14, T15 = sdpa(T0, T2, T2, dropout_p=double(0), is_causal=false)
  T16, T17, T18 = sdpa_bwd(T2, T0, T2, T2, T12, logsum_exp=T13, dropout_p=double(0), is_causal=false, philox_seed=T14, philox_offset=T15)
} // %HostIrContainer
";

/// What a run prints if cuDNN has computed an attention.
const TITLE: &str = "# cuDNN 9.19.0 (";
/// What it prints if hir's kernels have, because cuDNN failed.
const NOTE: &str = "no library computes the attention: ";

pub fn trials() -> Vec<Trial> {
    let trials = [
        Trial::test("attention_library::equal_the_simulator", equal_the_simulator),
        Trial::test("attention_library::calls_may_fail", calls_may_fail),
        Trial::test("attention_library::other_versions", other_versions),
        Trial::test("attention_library::others_are_refused", others_are_refused),
    ];
    trials.into_iter().map(|it| it.with_ignored_flag(emulator::is_missing())).collect()
}

/// Runs the program `REFUSED`.
fn run_refused(environment: &[(&str, &str)]) -> Result<Output, Failed> {
    let mut file = tempfile::NamedTempFile::with_suffix(".hir")?;
    file.write_all(REFUSED.as_bytes())?;
    run(&file.path().to_string_lossy(), environment)
}

/// Runs a program step by step and as a graph.
fn run(program: &str, environment: &[(&str, &str)]) -> Result<Output, Failed> {
    let mut variables = emulator::environment()?;
    let library = variables.iter().find(|it| it.0 == "HIR_CUDA").map(|it| it.1.clone()).unwrap_or_default();
    variables.push(("HIR_CUDNN".to_owned(), library));
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
    command
        .arg(program)
        .args(["--inputs", "random", "--device=cuda", "--expect=sim", "-w", "0", "-n", "1", "-G"])
        .current_dir(ROOT)
        .envs(variables)
        .envs(environment.iter().copied());
    Ok(command.output_with_timeout()?)
}

fn equal_the_simulator() -> Result<(), Failed> {
    PROGRAMS.iter().try_for_each(|program| {
        let output = run(program, &[])?;
        let text = String::from_utf8_lossy(&output.stdout);
        let is_right = output.status.success() && text.contains("equal to the simulator");
        if is_right && text.contains(TITLE) && !text.contains(NOTE) {
            Ok(())
        } else {
            Err(format!("{program}: {output:?}").into())
        }
    })
}

fn calls_may_fail() -> Result<(), Failed> {
    let (mut noted, mut failed) = (0, 0);
    for function in functions_of(&Path::new(ROOT).join("tests/gpu/emulator/cudnn.cpp"))? {
        let output = run(PROGRAMS[0], &[("HIR_EMULATED_FAIL", &function), ("HIR_EMULATED_FAIL_RANK", "0")])?;
        let text = String::from_utf8_lossy(&output.stdout);
        match output.status.code() {
            Some(0) if text.contains(NOTE) && text.contains(&function) => noted += 1,
            // What cannot be freed is lost.
            Some(0) if function == "cudnnBackendDestroyDescriptor" => {}
            Some(5 | 6) if text.contains(&function) => failed += 1,
            code => return Err(format!("{function}: {code:?}\n{text}").into()),
        }
    }
    if noted >= 4 && failed >= 3 { Ok(()) } else { Err(format!("{noted} noted, {failed} failed").into()) }
}

fn other_versions() -> Result<(), Failed> {
    // (the version, the program, the exit code, words of the note or the verdict)
    let cases =
        [("90500", PROGRAMS[0], 6, "cuDNN 9.5.0 ("), ("91000", PROGRAMS[0], 6, "neither 9.10.0 nor 9.10.1")];
    cases.iter().try_for_each(|(version, program, code, words)| {
        let output = run(program, &[("HIR_EMULATED_CUDNN", version)])?;
        let text = String::from_utf8_lossy(&output.stdout);
        if output.status.code() == Some(*code) && text.contains(words) {
            Ok(())
        } else {
            Err(format!("version {version}: {output:?}").into())
        }
    })
}

/// What cuDNN does not compute, hir's kernels do.
fn others_are_refused() -> Result<(), Failed> {
    let output = run_refused(&[("HIR_EMULATED_CUDNN", "91400")])?;
    let text = String::from_utf8_lossy(&output.stdout);
    let words =
        ["its scale -0.5 is not a positive number", "a multiple of 128 keys", "equal to the simulator"];
    if output.status.success() && words.iter().all(|it| text.contains(it)) {
        Ok(())
    } else {
        Err(format!("{output:?}").into())
    }
}
