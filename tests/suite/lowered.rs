//! Runs random lowered programs through the passes that rewrite them. The programs have streams, joins,
//! posted communications and their Waits, loops that may run zero times, and more synchronisation than they
//! need. A program that is correct before a pass must be correct after it.
//!
//! A program without a finding of the checker has one result, and passes must preserve it. A program is used
//! if it gives one result under every schedule of the semantic oracle, that is, if these show no race.
//! `HIR_LOWERED=5000` tries more programs, `HIR_SEED=7` others. A failure prints the program and the command
//! line that reproduces it.

use hir_plan::limits::Limits;
use std::{fmt::Write, fs, process::Command};

use grammar::{diagnostic::has_errors, ir::Program, span::LineIndex};
use hir_check::{Checks, check};
use hir_driver::run::oracle::SimulationOracle;
use hir_sim::WorkBudget;
use libtest_mimic::Trial;
use passes::{SemanticOracle, Settings, Verify};

mod collectives;
mod slices;

use crate::{part, rng::Rng, setting::number_or, timeout::RunWithTimeout};

/// Default number of programs per trial.
const PROGRAMS: usize = 4000;
/// The schedules under which a program must give one result before a failure is attributed to a pass.
const SCHEDULES: &str = "seed:0..1000";
/// Number of trials that share the programs.
const SHARDS: usize = part::PARTS;
/// The passes. Each program gets some of them, in any order.
const PASSES: &[&str] = &[
    "remove-redundant-sync",
    "hoist-communication",
    "sink-waits",
    "defer-waits",
    "double-buffer",
    "unroll",
    "unroll{factor=2}",
    "common-subexpression",
    "allocate-and-deallocate",
    "canonicalize",
    "remove-dead-code",
];
/// Number of tensors of a program, besides the input. The last ones are outputs.
const TENSORS: usize = 5;
const OUTPUTS: usize = 2;
/// Number of matrices for loops over rows. The first is an input and the last an output.
const MATRICES: usize = 3;
const ROWS: usize = 3;
/// Number of streams besides the first.
const STREAMS: usize = 3;
const SHAPE: &str = "{2}";

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let count = number_or("HIR_LOWERED", PROGRAMS) / SHARDS;
    let seed = number_or("HIR_SEED", 0) * 1_000_000;
    let shard = |shard: usize| {
        Trial::test(format!("synchronisation_is_kept_{shard}"), move || {
            let seeds = (0..count).map(|at| (seed + at * SHARDS + shard) as u64);
            let results = seeds.map(attempt).collect::<Result<Vec<bool>, String>>()?;
            let free = results.iter().filter(|it| **it).count();
            // Programs with races test nothing.
            if free * 3 >= results.len() {
                Ok(())
            } else {
                Err(format!("{free} of {} programs are free of races", results.len()).into())
            }
        })
        .with_ignored_flag(!part::includes(shard))
    };
    (0..SHARDS).map(shard).chain([collectives::trial()]).collect()
}

/// Returns the program of a seed.
pub fn program(seed: u64) -> String {
    ProgramWriter::program(seed)
}

/// Tries the program of a seed. Returns true if it is free of races.
///
/// # Errors
/// Returns an error if a pass changes its meaning.
fn attempt(seed: u64) -> Result<bool, String> {
    let text = ProgramWriter::program(seed);
    let mut rng = Rng(seed ^ 0x10e7);
    let calls: Vec<&str> = (0..1 + rng.below(3)).map(|_| rng.choose_cloned(PASSES)).collect();
    let pipeline = calls.join(",");
    check_meaning(&text, &pipeline).map_err(|fault| {
        let file = std::env::temp_dir().join(format!("hir-lowered-{seed}.hir"));
        let _ = fs::write(&file, &text);
        let file = file.display();
        format!("{fault}\n{text}hir-opt {file} --passes '{pipeline}' --verify-each=semantic\n")
    })
}

fn check_meaning(text: &str, pipeline: &str) -> Result<bool, String> {
    lowered(text, pipeline, Checks::ALL_FAULTS).map(|it| it.0)
}

/// Whether a program is free of races, and what passes make of it unless they refuse it; or what they make wrong: a fault that the checks find, or
/// another meaning.
pub type Lowered = Result<(bool, Option<Program>), String>;

/// Runs passes on a program.
pub fn lowered(text: &str, pipeline: &str, checks: Checks) -> Lowered {
    each_lowered(text, &[pipeline.to_owned()], checks)?.pop().unwrap_or(Ok((false, None)))
}

/// Runs each of some lists of passes on a program.
///
/// # Errors
/// Returns an error if the program does not read or does not run.
pub fn each_lowered(text: &str, pipelines: &[String], checks: Checks) -> Result<Vec<Lowered>, String> {
    let (mut programs, diagnostics) = grammar::read(text);
    let first = |all: &[grammar::diagnostic::Diagnostic]| {
        all.first().map(|it| it.message.clone()).unwrap_or_default()
    };
    let original = match programs.pop() {
        Some(program) if !has_errors(&diagnostics) => program,
        Some(_) | None => return Err(format!("does not read: {}", first(&diagnostics))),
    };
    let faults = grammar::verify(&original);
    if has_errors(&faults) {
        return Err(format!("does not verify: {}", first(&faults)));
    }
    let lines = LineIndex::new(text);
    let oracle = SimulationOracle {
        lines: &lines,
        ranks: None,
        limits: Limits::default(),
        work: &WorkBudget::default(),
    };
    let is_clean = fault_in(&original, &lines, checks).is_none();
    let meaning = match oracle.reference(&original) {
        Ok(meaning) => meaning,
        Err(faults) if is_clean => return Err(format!("no finding, but a failure: {}", first(&faults))),
        Err(_) => return Ok(Vec::new()),
    };
    let through = |pipeline: &String| {
        let mut program = original.clone();
        let calls = passes::parse(pipeline).map_err(|it| it.message)?;
        let settings = Settings { verify: Verify::Structural, roundtrip: true };
        match passes::run(&mut program, &calls, settings, &mut |_| ()) {
            Err(failure) if failure.error.is_bug() => return Err(format!("`{pipeline}`: {failure}")),
            // A pass may refuse a program with a reason.
            Err(_) => return Ok((true, None)),
            Ok(()) => (),
        }
        if program == original {
            return Ok((true, Some(program)));
        }
        if let Some(fault) = fault_in(&program, &lines, checks).filter(|_| is_clean) {
            return Err(format!("`{pipeline}` makes a fault: {fault}\n{}", grammar::print(&program)));
        }
        let Err(it) = meaning.check_equivalent(&program, &program) else { return Ok((true, Some(program))) };
        // The oracle tries few schedules. A program with a race under another schedule has no unique result.
        if races(text)? {
            return Ok((false, None));
        }
        Err(format!("`{pipeline}` changes the meaning: {}\n{}", it.message, grammar::print(&program)))
    };
    Ok(pipelines.iter().map(through).collect())
}

/// Returns the first finding of the checker, or the reason why the program cannot be planned.
fn fault_in(program: &Program, lines: &LineIndex, checks: Checks) -> Option<String> {
    match hir_plan::build(program, lines, hir_plan::smallest_world(program)) {
        Err(faults) => faults.first().map(|it| it.message.clone()),
        Ok(plans) => {
            let report = check(&plans, checks);
            report.findings.first().map(|it| it.diagnostic(&plans, &[]).1.message)
        }
    }
}

/// Returns true if the result differs between schedules.
fn races(text: &str) -> Result<bool, String> {
    let file = tempfile::NamedTempFile::new().map_err(|it| it.to_string())?;
    fs::write(file.path(), text).map_err(|it| it.to_string())?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
    let command = command.arg(file.path()).args(["--device=sim", "--check=off", "--schedule", SCHEDULES]);
    command.output_with_timeout().map(|it| !it.status.success()).map_err(|it| it.to_string())
}

/// The streams that may have produced the last value of a tensor, and those that have read it since.
#[derive(Clone, Default)]
struct TensorUses {
    written: Vec<usize>,
    read: Vec<usize>,
}

/// Builds the text of a program. Stream 0 is the first stream, `s0`.
struct ProgramWriter {
    rng: Rng,
    text: String,
    indent: usize,
    current: usize,
    uses: Vec<TensorUses>,
    /// Posted communications without a Wait so far: number, operand, result.
    posted: Vec<(usize, usize, usize)>,
    communicates: bool,
    numbers: usize,
    /// The index of the loop whose body is being built.
    index: Option<usize>,
    /// Percentage of the necessary joins that are inserted.
    join_percent: usize,
}

impl ProgramWriter {
    fn program(seed: u64) -> String {
        let mut rng = Rng(seed ^ 0x7eed);
        let communicates = rng.chance(60);
        let care = if rng.chance(70) { 100 } else { 95 };
        let mut writer = Self {
            rng,
            text: String::new(),
            indent: 1,
            current: 0,
            uses: vec![TensorUses::default(); TENSORS + 1 + MATRICES],
            posted: Vec::new(),
            communicates,
            numbers: 0,
            index: None,
            join_percent: care,
        };
        let outputs: Vec<String> = (TENSORS - OUTPUTS + 1..=TENSORS).map(|at| writer.tensor(at)).collect();
        let (first, last) = (writer.matrix(0), writer.matrix(MATRICES - 1));
        let header = format!(
            "%HostIrContainer {{ ({}, {first}) -> ({}, {last}) :\n",
            writer.tensor(0),
            outputs.join(", ")
        );
        writer.text.push_str(&header);
        for at in 1..MATRICES {
            let matrix = writer.matrix(at);
            writer.line(&format!("{matrix} = ALLOCATE(mem_type=global, zero_init=true)"));
        }
        for at in 1..=TENSORS {
            let tensor = writer.tensor(at);
            writer.line(&format!("{tensor} = ALLOCATE(mem_type=global, zero_init=true)"));
        }
        writer.line("Stream s0 = GetCurrentStream()");
        for stream in 1..=STREAMS {
            writer.stream(stream);
            writer.line("Synchronize(Stream s0)");
        }
        for _ in 0..4 + writer.rng.below(8) {
            writer.statement(true);
        }
        while !writer.posted.is_empty() {
            writer.wait(0);
        }
        writer.stream(0);
        for stream in 1..=STREAMS {
            if writer.rng.chance(writer.join_percent) {
                writer.line(&format!("Synchronize(Stream {stream})"));
            }
        }
        writer.text.push_str("} // %HostIrContainer\n");
        writer.text
    }

    fn mesh(&self) -> &'static str {
        if self.communicates { " (DeviceMesh{0 1})" } else { "" }
    }

    fn tensor(&self, at: usize) -> String {
        let mesh = self.mesh();
        format!("T{at}_g_float[iS{at}{SHAPE}]{mesh}")
    }

    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{:1$}{line}", "", 2 * self.indent);
    }

    fn name(stream: usize) -> String {
        if stream == 0 { "s0".to_owned() } else { stream.to_string() }
    }

    fn stream(&mut self, stream: usize) {
        if self.current != stream {
            self.line(&format!("SetCurrentStream(Stream {})", Self::name(stream)));
        }
        self.current = stream;
    }

    /// Makes the current stream wait for another one, with a probability of `join_percent`.
    fn join(&mut self, stream: usize) {
        if stream != self.current && self.rng.chance(self.join_percent) {
            self.line(&format!("Synchronize(Stream {})", Self::name(stream)));
        }
    }

    fn reads(&mut self, tensor: usize) {
        self.uses[tensor].written.clone().into_iter().for_each(|stream| self.join(stream));
        let current = self.current;
        self.uses[tensor].read.push(current);
    }

    fn writes(&mut self, tensor: usize) {
        let TensorUses { written, read } = std::mem::take(&mut self.uses[tensor]);
        let mut before: Vec<usize> = read.into_iter().chain(written).collect();
        before.sort_unstable();
        before.dedup();
        before.into_iter().for_each(|stream| self.join(stream));
        self.uses[tensor].written = vec![self.current];
    }

    fn statement(&mut self, top: bool) {
        let current = self.rng.below(STREAMS + 1);
        match self.rng.below(11) {
            10 => self.branch(current),
            0 | 1 => {
                self.stream(current);
                let other = self.rng.below(STREAMS + 1);
                if other != current {
                    self.line(&format!("Synchronize(Stream {})", Self::name(other)));
                }
            }
            2 | 3 if top && self.communicates => {
                self.stream(current);
                self.post(None);
            }
            4 if top && !self.posted.is_empty() => {
                self.stream(current);
                let at = self.rng.below(self.posted.len());
                let arrived = self.posted[at].2;
                self.wait(at);
                if self.rng.chance(50) {
                    self.post(Some(arrived));
                }
            }
            5 if top => self.slices(),
            6 if top => self.repeat(),
            _ => {
                self.stream(current);
                self.compute();
            }
        }
    }

    /// Returns true if no posted communication reads or writes a tensor.
    fn is_free(&self, at: usize) -> bool {
        self.posted.iter().all(|(_, from, to)| *from != at && *to != at)
    }

    fn free(&self) -> Vec<usize> {
        (1..=TENSORS).filter(|at| self.is_free(*at)).collect()
    }

    fn compute(&mut self) {
        let free = self.free();
        if free.is_empty() {
            return;
        }
        let (out, a) = (self.rng.choose_cloned(&free), self.rng.choose_cloned(&free));
        let (first, second) = (if self.rng.chance(30) { 0 } else { a }, self.rng.choose_cloned(&free));
        self.reads(first);
        self.reads(second);
        self.writes(out);
        let (out, first, second) = (self.tensor(out), self.tensor(first), self.tensor(second));
        let sign = if self.rng.chance(50) { "+" } else { "-" };
        self.line(&format!("{out}\n     = {first}\n    {sign} {second};"));
    }

    /// Adds a branch that waits for a stream, on one rank or in one iteration.
    fn branch(&mut self, current: usize) {
        self.stream(current);
        let other = (current + 1 + self.rng.below(STREAMS)) % (STREAMS + 1);
        let condition = self.index.map_or("rank == 1".to_owned(), |it| format!("i{it} == 1"));
        self.line(&format!("IF Manual ( {condition} ):"));
        self.line(&format!("  Synchronize(Stream {})", Self::name(other)));
    }

    /// Posts a communication of a given tensor or of a random one.
    fn post(&mut self, from: Option<usize>) {
        let free = self.free();
        let from = from.unwrap_or_else(|| self.rng.choose_cloned(&free));
        let to = self.rng.choose_cloned(&free);
        if from == to {
            return;
        }
        self.reads(from);
        self.writes(to);
        self.numbers += 1;
        let (number, mut input, output) = (self.numbers, self.tensor(from), self.tensor(to));
        if self.rng.chance(20) {
            // Uses a row of the first matrix instead, through a view that is bound here.
            self.reads(TENSORS + 1);
            self.select(100 + number, 0, "1");
            input = self.row(100 + number);
        }
        self.line(&format!(
            "Communication {number} (type=Allreduce, team=(0 1), red_op=SUM, input={input}, output={output}, backend=NCCL)"
        ));
        self.posted.push((number, from, to));
    }

    /// Makes the current stream wait for a communication, which has used both of its tensors.
    fn wait(&mut self, at: usize) {
        let (number, from, to) = self.posted.remove(at);
        self.line(&format!("Wait(Communication {number})"));
        let current = self.current;
        self.uses[from].read.push(current);
        self.uses[to].written = vec![current];
    }

    /// Adds a loop with few iterations or none. The loop ends on the stream on which it begins. In each
    /// iteration, that stream waits for all others at the beginning and at the end, so the accesses of the
    /// body are ordered from iteration to iteration.
    fn repeat(&mut self) {
        let home = self.rng.below(STREAMS + 1);
        self.stream(home);
        self.numbers += 1;
        let (index, rounds) = (self.numbers, self.rng.below(4));
        self.line(&format!("FOR i{index} from 0 to {rounds}:"));
        self.indent += 1;
        let length = self.text.len();
        let before = self.uses.clone();
        if self.rng.chance(25) {
            // A body that only waits. If the loop runs zero times, nothing is waited for.
            let other = self.rng.below(STREAMS + 1);
            if other != home {
                self.line(&format!("Synchronize(Stream {})", Self::name(other)));
            }
        } else {
            let streams: Vec<usize> = (0..=STREAMS).filter(|it| *it != home).collect();
            for stream in &streams {
                self.stream(*stream);
                self.join(home);
            }
            self.stream(home);
            streams.iter().for_each(|stream| self.join(*stream));
            self.index = Some(index);
            for _ in 0..1 + self.rng.below(3) {
                self.statement(false);
            }
            self.index = None;
            self.stream(home);
            streams.iter().for_each(|stream| self.join(*stream));
        }
        if self.text.len() == length {
            self.line(&format!("SetCurrentStream(Stream {})", Self::name(home)));
        }
        self.indent -= 1;
        // The previous writers may still be the last ones, since the loop may run zero times.
        for (now, before) in self.uses.iter_mut().zip(before) {
            now.read.extend(before.read);
            now.written.extend(before.written);
            now.written.sort_unstable();
            now.written.dedup();
        }
    }
}
