//! Measures how the time of the checker grows with the number of instructions and of ranks. Both curves must
//! be linear.
//!
//! `cargo bench --bench check` prints a line for every size: instructions of all ranks, seconds, and
//! nanoseconds per instruction. It uses the best of three runs.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark reports on the terminal")]

use std::{fmt::Write, process::ExitCode, time::Instant};

use grammar::LineIndex;
use hir_check::{Checks, check};
use hir_plan::limits::Limits;

const RUNS: usize = 3;

/// Numbers of ranks and of iterations.
const SIZES: &[(usize, usize)] = &[(8, 1_000), (8, 3_000), (8, 10_000), (64, 300), (256, 300), (1_024, 100)];

fn main() -> ExitCode {
    println!("communication      ranks iterations instructions    seconds      ns each");
    for (name, body) in [("allreduce", ALLREDUCE), ("get", GET)] {
        for (ranks, iterations) in SIZES {
            if let Err(fault) = measure(name, &program(body, *ranks, *iterations), *ranks, *iterations) {
                eprintln!("check: {name} on {ranks} ranks: {fault}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn measure(name: &str, text: &str, ranks: usize, iterations: usize) -> Result<(), String> {
    let program = grammar::read(text).0.pop().ok_or("no program")?;
    let plans = hir_plan::build_with_limits(&program, &LineIndex::new(text), ranks, &Limits::default())
        .map_err(|it| it.first().map_or(String::new(), |it| it.message.clone()))?;
    let instructions: usize = plans.iter().map(|it| it.code.len()).sum();
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        let report = check(&plans, Checks::DEFAULT);
        best = best.min(start.elapsed().as_secs_f64());
        if !report.findings.is_empty() || !report.not_checked.is_empty() {
            return Err(format!("{report:?}"));
        }
    }
    let each = best * 1e9 / instructions as f64;
    println!("{name:18} {ranks:5} {iterations:10} {instructions:12} {best:10.3} {each:12.0}");
    Ok(())
}

const ALLREDUCE: &str =
    "    Communication 7 (type=Allreduce, team=TEAM, red_op=SUM, input=T12_g_float[iS120{8}] MESH, \
                         output=T11_l_float[iS110{8}] MESH, backend=NCCL)
    Wait(Communication 7)
";

const GET: &str = "    ShareMemHandles(P2PCommunication 8 (type=send, buffer=T12_g_float[iS120{8}] MESH, peer=NEXT, backend=CUDA), \
                   P2PCommunication 9 (type=recv, buffer=T11_l_float[iS110{8}] MESH, peer=LAST, backend=CUDA))
    P2PCommunication 8 (type=send, buffer=T12_g_float[iS120{8}] MESH, peer=NEXT, backend=CUDA)
    P2PCommunication 9 (type=recv, buffer=T11_l_float[iS110{8}] MESH, peer=LAST, backend=CUDA)
    Wait(Communication 9)
    Wait(Communication 8)
";

/// Returns a loop over four streams: it doubles a slice of the input into a separate tensor and communicates
/// it into a slice of the output.
fn program(communication: &str, ranks: usize, iterations: usize) -> String {
    let all: Vec<String> = (0..ranks).map(|it| it.to_string()).collect();
    let mut text =
        "%HostIrContainer { (T0_g_float[iS0{N}, iS1{8}] MESH) -> (T1_g_float[iS2{N}, iS3{8}] MESH) :
  T1_g_float[iS2{N}, iS3{8}] MESH = ALLOCATE(mem_type=global, zero_init=false)
  Stream s0 = GetCurrentStream()
  FOR i5 from 0 to N:
    SetCurrentStream(Stream ( i5 % 4 ))
    Synchronize(Stream s0)
    T10_l_float[iS100{8}] MESH
       = HirAliasSelect( T0_g_float[iS0{N}, iS1{8}] MESH, axis = iS0{N}, index = i5 )
    T11_l_float[iS110{8}] MESH
       = HirAliasSelect( T1_g_float[iS2{N}, iS3{8}] MESH, axis = iS2{N}, index = i5 )
    T12_g_float[iS120{8}] MESH = ALLOCATE(mem_type=global, zero_init=false)
    T12_g_float[iS120{8}] MESH
       = T10_l_float[iS100{8}] MESH
       + T10_l_float[iS100{8}] MESH;
"
        .to_owned();
    text += communication;
    text += "    Deallocate {
      T12_g_float[iS120{8}] MESH
    }
  SetCurrentStream(Stream s0)
";
    for stream in 0..4 {
        let _ = writeln!(text, "  Synchronize(Stream {stream})");
    }
    text += "} // %HostIrContainer\n";
    text.replace("{N}", &format!("{{{iterations}}}"))
        .replace("to N", &format!("to {iterations}"))
        .replace("MESH", &format!("(DeviceMesh{{{}}})", all.join(" ")))
        .replace("TEAM", &format!("({})", all.join(" ")))
        .replace("NEXT", &format!("( ( rank + 1 ) % {ranks} )"))
        .replace("LAST", &format!("( ( ( rank + {ranks} ) - 1 ) % {ranks} )"))
}
