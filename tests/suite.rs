//! The test harness. A case is a text file: `tests/cases/**/*.hir` or `*.mlir`, and every sample. Its first lines are
//! commands:
//!
//! ```text
//! // RUN: hir-opt %s --passes canonicalize
//! // RUN: hir-run %s --reference %S/other.hir
//! // RUN: hir reduce %s --oracle race
//! // RUN: mpirun -np 1 hir-run %s : -np 1 hir-run %S/other.hir
//! // SAME: hir-opt %S/other.hir --passes canonicalize
//! // PASTE: hir-run %s
//! ```
//!
//! `%s` is the file, `%S` its folder, and `%t` a new folder for the case. Arguments are split at blanks;
//! single quotes keep them together. A SAME line follows the RUN lines and asserts that its command prints
//! exactly what the first RUN line prints. The last line of the output of the first RUN line may ask to add
//! flags; a PASTE line runs its command with these flags. The output and the exit codes of the RUN and PASTE
//! lines are compared with the snapshot beside the file. To review changes, run `cargo insta review`, or
//! `INSTA_UPDATE=always cargo test --test suite` and look at `git diff`.
//!
//! A case with `mpirun` in its commands is ignored if mpirun is not installed; with `HIR_REQUIRE_MPI=1` it
//! fails instead. The output of mpirun itself is left out.
//!
//! Besides the cases, these tests fail:
//!
//! * on a snapshot without a case, and on an unreviewed snapshot;
//! * on an operator of the table that no case runs;
//! * on a text that causes a panic instead of a diagnostic (`mutations`);
//! * on a text in which one edit gives many errors (`cascades`);
//! * on a mutated program that a pass breaks (`pass_mutations`);
//! * on a program whose meaning a lowering pass (`generator`) or a later pass (`lowered`) changes;
//! * on a statement that the checker reports as removable and that is needed (`excess`);
//! * on a buffer assignment that gives the same memory to buffers that are in use at the same time
//!   (`layouts`);
//! * on a certificate of a pair that differs in infinities or NaNs, if there are more than before
//!   (`certify_exceptions`);
//! * on a test of StableHLO's interpreter that differs (`stablehlo_conformance`);
//! * on a long sentence of a page (`prose`);
//! * on a race of a long program that the checker does not report, or that does not exist (`long_streams`);
//! * on an operator or a cast whose kernel rounds differently from the simulator (`operators`).

use std::{
    collections::HashSet,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
    thread,
};

use grammar::ops::{OPS, Op};
use libtest_mimic::{Arguments, Failed, Trial};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

// One file each, with the items of this file in scope.
mod suite {
    use super::*;

    pub mod agents;
    pub mod attention_library;
    pub mod baseline;
    pub mod batch;
    pub mod batch_text;
    pub mod canonical;
    pub mod cascades;
    pub mod cases;
    pub mod certify;
    pub mod certify_exceptions;
    pub mod ci;
    pub mod cpu_time;
    pub mod delayed;
    pub mod dependencies;
    pub mod editor;
    pub mod emulated;
    pub mod emulator;
    pub mod end_to_end_layers;
    pub mod evidence;
    pub mod excess;
    pub mod explained;
    pub mod exploration;
    pub mod failing_calls;
    pub mod files;
    pub mod fixes;
    pub mod generator;
    pub mod helps;
    pub mod invariants;
    pub mod kernels;
    pub mod layouts;
    pub mod licenses;
    pub mod long_streams;
    pub mod lowered;
    pub mod mangle;
    pub mod mangler;
    pub mod many_findings;
    pub mod measured;
    pub mod models;
    pub mod mutants;
    pub mod mutations;
    pub mod not_utf8;
    pub mod operators;
    pub mod oracle;
    pub mod pages;
    pub mod part;
    pub mod pass_mutations;
    pub mod perfetto;
    pub mod pipelines;
    pub mod programs;
    pub mod promises;
    pub mod prose;
    pub mod ranks;
    pub mod recorded;
    pub mod rendezvous;
    pub mod replay;
    pub mod resources;
    pub mod rng;
    pub mod scaling;
    pub mod server_process;
    pub mod setting;
    pub mod shared_builds;
    pub mod signals;
    pub mod stablehlo_conformance;
    pub mod stdout;
    pub mod stuck;
    pub mod timeline;
    pub mod timeout;
    pub mod transformer;
    pub mod transports;
    pub mod tuning;
    pub mod unsafe_blocks;
    pub mod unsharded;
    pub mod untrusted;
    pub mod usage;
    pub mod wire;
}
use suite::*;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Restores the default handling of stopping signals in the processes that tests start. A background job of a
/// shell ignores SIGINT, `nohup` ignores SIGHUP, and child processes inherit ignored signals. A handler, in
/// contrast, is reset in a child process.
fn reset_ignored_signals() -> std::io::Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register_conditional_default(signal, Arc::new(AtomicBool::new(true)))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    hir::install_backend();
    let taken = reset_ignored_signals().map_err(|it| it.to_string());
    let mut arguments = Arguments::from_args();
    // Some trials wait for processes and their time limits; one more thread uses the core meanwhile.
    arguments.test_threads.get_or_insert(thread::available_parallelism().map_or(1, usize::from) + 1);
    let mut cases = files(&Path::new(ROOT).join("tests/cases"), "hir");
    let samples = files(&Path::new(ROOT).join("samples"), "hir");
    let (large, small) = samples.iter().cloned().partition::<Vec<_>, _>(|it| small_program(it).is_some());
    cases.extend(small);
    // Modules of StableHLO; edits of them are tested in `src/stablehlo/tests`.
    let modules = files(&Path::new(ROOT).join("tests/cases"), "mlir");
    let mut trials: Vec<Trial> =
        cases.iter().chain(&modules).chain(&large).map(|path| cases::trial(path.clone())).collect();
    trials.push(Trial::test("children_take_signals", move || Ok(taken?)));
    let all = [&cases[..], &modules, &large].concat();
    trials.push(Trial::test("every_snapshot_has_a_case", move || check_snapshots(&all)));
    trials.extend(mutations::trials(&cases, &samples));
    trials.extend(cascades::trials(&cases));
    trials.extend(evidence::trials());
    trials.extend(explained::trials());
    trials.extend(attention_library::trials());
    trials.extend(failing_calls::trials());
    trials.push(unsafe_blocks::trial());
    trials.push(mangler::trial(&cases));
    trials.extend(pass_mutations::trials(&cases));
    trials.extend(generator::trials());
    trials.extend(oracle::trials());
    trials.extend(lowered::trials());
    trials.extend(excess::trials());
    trials.extend(layouts::trials());
    trials.extend(long_streams::trials());
    trials.extend(ranks::trials());
    trials.extend(stdout::trials());
    trials.extend(not_utf8::trials());
    trials.extend(exploration::trials());
    trials.extend(models::trials());
    trials.extend(pages::trials());
    trials.extend(prose::trials());
    trials.extend(usage::trials());
    trials.extend(stuck::trials());
    trials.extend(dependencies::trials());
    trials.extend(agents::trials());
    trials.extend(editor::trials());
    trials.extend(licenses::trials());
    trials.extend(shared_builds::trials());
    trials.extend(rendezvous::trials());
    trials.extend(replay::trials());
    trials.extend(recorded::trials());
    trials.extend(stablehlo_conformance::trials());
    trials.extend(measured::trials());
    trials.extend(timeline::trials());
    trials.extend(perfetto::trials());
    trials.extend(transformer::trials());
    trials.extend(batch::trials());
    trials.extend(certify::trials(&cases, &modules));
    trials.extend(certify_exceptions::trials());
    trials.extend(ci::trials());
    trials.extend(emulated::trials(&cases));
    trials.extend(operators::trials());
    trials.extend(end_to_end_layers::trials());
    trials.extend(transports::trials(&cases));
    trials.push(unsharded::trial(&cases));
    trials.push(canonical::trial(&cases));
    trials.extend(pipelines::trials(&cases));
    trials.extend(baseline::trials(&cases));
    trials.extend(mutants::trials(&cases));
    trials.extend(fixes::trials(&cases));
    trials.extend(files::trials());
    trials.extend(helps::trials());
    trials.extend(many_findings::trials());
    trials.extend(scaling::trials());
    trials.extend(signals::trials());
    trials.extend(resources::trials());
    let waiting =
        delayed::trials(&cases).into_iter().chain(kernels::trials()).chain(tuning::trials()).collect();
    spread(waiting, &mut trials);
    trials.push(Trial::test("every_operator_has_a_case", move || check_operator_coverage(&cases)));
    let mut trials = promises::mark_hostile(trials);
    let names = trials.iter().map(|it| it.name().to_owned()).collect();
    trials.push(promises::trial(names));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Returns the small program of a sample that has the extents of a real layer, and takes seconds to compute: that of the same name in
/// `tests/cases/overlap`. Of such a sample only its commands run; the tests of many programs take the small one.
fn small_program(sample: &Path) -> Option<PathBuf> {
    let small = Path::new(ROOT).join("tests/cases/overlap").join(sample.file_name()?);
    small.exists().then_some(small)
}

/// Returns whether a program is a sample, or the small one of a large sample.
fn is_sample(path: &Path) -> bool {
    let is_in = |folder: &str| path.starts_with(Path::new(ROOT).join(folder));
    let has_sample = || path.file_name().is_some_and(|it| Path::new(ROOT).join("samples").join(it).exists());
    is_in("samples") || is_in("tests/cases/overlap") && has_sample()
}

/// Inserts trials that mostly wait, for delays and for processes, between the others, so that others use the cores meanwhile.
fn spread(waiting: Vec<Trial>, trials: &mut Vec<Trial>) {
    let distance = trials.len() / (waiting.len() + 1);
    for (number, it) in waiting.into_iter().enumerate() {
        trials.insert(number * (distance + 1), it);
    }
}

/// Returns the files with an extension below a folder, sorted.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|it| it == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn shown(path: &Path) -> String {
    path.strip_prefix(ROOT).unwrap_or(path).display().to_string()
}

/// Compares the transcript of a case with its snapshot, which records that it comes from this file.
fn check_snapshot(path: &Path, transcript: &str) -> Result<(), Failed> {
    let name = path.file_name().map(|it| it.to_string_lossy().into_owned()).unwrap_or_default();
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(path.parent().unwrap_or(Path::new(ROOT)));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.add_filter(r"\d+\.\d+ s\b", "[time] s");
    let outcome =
        catch_unwind(AssertUnwindSafe(|| settings.bind(|| insta::assert_snapshot!(name, transcript))));
    outcome.map_err(|_| Failed::from(format!("the output differs from {}.snap, see above", shown(path))))
}

/// Fails if there are snapshots without a case, or unreviewed snapshots.
fn check_snapshots(cases: &[PathBuf]) -> Result<(), Failed> {
    let expected: HashSet<PathBuf> =
        cases.iter().map(|case| PathBuf::from(format!("{}.snap", case.display()))).collect();
    let mut stray = Vec::new();
    for folder in ["tests", "samples"] {
        let folder = Path::new(ROOT).join(folder);
        stray.extend(files(&folder, "new"));
        stray.extend(files(&folder, "snap").into_iter().filter(|path| !expected.contains(path)));
    }
    if stray.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "snapshots without a case, or unreviewed: {}",
            stray.iter().map(|it| shown(it)).collect::<Vec<_>>().join(", ")
        )
        .into())
    }
}

/// Checks that each operator is in a case that succeeds in the simulator.
fn check_operator_coverage(cases: &[PathBuf]) -> Result<(), Failed> {
    let (mut seen, mut executed) = (HashSet::new(), HashSet::new());
    let running: HashSet<PathBuf> = emulated::runs(cases).into_iter().map(|it| it.0).collect();
    for case in cases {
        let text = fs::read_to_string(case).map_err(|fault| fault.to_string())?;
        for program in grammar::read(&text).0 {
            let ops = program.stmts.iter().filter_map(|(_, stmt)| Some(stmt.op()?.op));
            let ops: Vec<Op> = ops.collect();
            if running.contains(case) {
                executed.extend(ops.iter().copied());
            }
            seen.extend(ops);
        }
    }
    let names = |is_faulty: &dyn Fn(Op) -> bool| {
        let faulty = OPS.iter().filter(|row| is_faulty(row.op));
        faulty.map(|row| format!("`{}` ({:?})", row.mnemonic, row.op)).collect::<Vec<_>>().join(", ")
    };
    let faults = [
        ("no case reads", names(&|op| !seen.contains(&op))),
        ("no case runs", names(&|op| !executed.contains(&op))),
    ];
    let faults: Vec<String> =
        faults.iter().filter(|it| !it.1.is_empty()).map(|(what, ops)| format!("{what} {ops}")).collect();
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}
