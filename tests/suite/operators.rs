//! Compares the simulator and the kernels on every elementwise operator and every cast, for every element
//! type. Both must give the same bits if the result is exact or rounded once. Results of mathematical
//! functions may differ by a few units in the last place.
//!
//! The operands come from files: pairs of special elements (zeros of both signs, infinities, NaN, subnormal
//! numbers, limits, ties of every rounding) and random elements. One program per element type has a result
//! for each operator. The sign and the payload of a NaN are compared only in casts between equal types and in
//! `bit_cast`. The kernels run on emulated GPUs, where the functions of CUDA are those of the host's C
//! library.
//!
//! An operator with several operands is also computed with a constant in place of each. Of e8m0 and e2m1, which no file has, nothing is
//! compared here. A run of the suite has a quarter of the element types (`part`): each program becomes kernels that take seconds to compile.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path, process::Command};

use grammar::{
    dtype::DType,
    ops::{AsmFormat, OPS, Op, OpClass, OpDef},
};
use hir_tensor::elementwise::{FloatEval, FloatFunction, elementwise};
use libtest_mimic::{Failed, Trial};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

mod values;

use super::{ROOT, cases::ENVIRONMENT, emulator};
use crate::{part, timeout::RunWithTimeout};
use values::Elements;

/// The element types to compute with, and their names in files.
const DTYPES: [(DType, Dtype); 15] = [
    (DType::Double, Dtype::F64),
    (DType::Float, Dtype::F32),
    (DType::Half, Dtype::F16),
    (DType::BFloat, Dtype::BF16),
    (DType::E4M3, Dtype::F8_E4M3),
    (DType::E5M2, Dtype::F8_E5M2),
    (DType::Bool, Dtype::BOOL),
    (DType::Int8, Dtype::I8),
    (DType::Int16, Dtype::I16),
    (DType::Int32, Dtype::I32),
    (DType::Int64, Dtype::I64),
    (DType::UInt8, Dtype::U8),
    (DType::UInt16, Dtype::U16),
    (DType::UInt32, Dtype::U32),
    (DType::UInt64, Dtype::U64),
];

/// A run has one in so many element types.
const SAMPLE: usize = 4;

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let trials = [
        Trial::test("operators::floats_agree", || compare_engines(|it| !it.is_integral())),
        Trial::test("operators::integers_agree", || compare_engines(|it| it.is_integral())),
    ];
    trials.into_iter().map(|it| it.with_ignored_flag(emulator::is_missing())).collect()
}

/// The maximum difference between two results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ErrorBound {
    /// Equal values; any NaN equals any other.
    Exact,
    /// Equal bits, including those of NaNs.
    Bits,
    /// Units in the last place.
    Ulps(u64),
}

/// Returns the error bound of an operator on floats.
fn error_bound(op: Op) -> ErrorBound {
    match op {
        // One unit for each function and for each rounding after it.
        Op::Sigmoid | Op::Silu | Op::Rsqrt => ErrorBound::Ulps(4),
        // One side uses Newton's method, the other bisection.
        Op::ErfInv | Op::ErfcInv => ErrorBound::Ulps(64),
        // Between the zeros of the function CUDA gives only an absolute error bound.
        Op::LGamma => ErrorBound::Ulps(16),
        _ if function(op).is_some_and(|it| matches!(it.single, FloatEval::Rounded(_))) => ErrorBound::Ulps(2),
        // All others are exact or rounded once, or compositions of such operators in one order.
        _ => ErrorBound::Exact,
    }
}

/// Returns true if an operator is defined on an element type.
fn is_defined(op: Op, dtype: DType) -> bool {
    let Some(row) = elementwise(op) else { return false };
    match dtype {
        // These are computed like other types; only casts differ.
        DType::Int16 | DType::UInt16 | DType::E4M3 | DType::E5M2 => false,
        _ if dtype.is_integral() => row.integer.is_some(),
        _ => row.float.is_some(),
    }
}

/// Returns true if the result is a truth value.
fn is_predicate(op: Op) -> bool {
    function(op).is_some_and(|it| matches!(it.single, FloatEval::Predicate(_)))
}

fn function(op: Op) -> Option<FloatFunction> {
    elementwise(op)?.float
}

/// A result of a program.
struct ProgramResult {
    /// What was computed, for messages.
    what: String,
    dtype: DType,
    bound: ErrorBound,
    /// The names of the inputs of the result.
    operands: Vec<&'static str>,
}

/// The program for one element type: its inputs, its text, and its results by name.
struct Program {
    dtype: DType,
    inputs: BTreeMap<&'static str, Elements>,
    text: String,
    results: BTreeMap<String, ProgramResult>,
}

impl Program {
    fn of(dtype: DType) -> Self {
        let [a, b, c] = values::columns(dtype);
        // Integers are not divided by zero, which the simulator reports as an error.
        let bits = if dtype == DType::Bool { 1 } else { 8 * dtype.size() };
        let divisors = b.iter().map(|it| if it & (u64::MAX >> (64 - bits)) == 0 { 1 } else { *it });
        let divisors = Elements { dtype, bits: divisors.collect() };
        let conditions = (0..a.len() as u64).map(|at| at * 5 / 3 % 2).collect();
        let element = |bits| Elements { dtype, bits };
        let inputs = BTreeMap::from([
            ("T0", element(a)),
            ("T1", element(b)),
            ("T2", element(c)),
            ("T3", divisors),
            ("T4", Elements { dtype: DType::Bool, bits: conditions }),
            ("T5", element(values::casts(dtype))),
        ]);
        let mut it = Self { dtype, inputs, text: String::new(), results: BTreeMap::new() };
        let mut body = String::new();
        for row in OPS.iter().filter(|it| it.class == OpClass::Elementwise && is_defined(it.op, dtype)) {
            it.operator(row, None, &mut body);
            let constants = constants(dtype);
            // The condition of `where` is always a tensor.
            let first = usize::from(row.op == Op::Where);
            for at in (first..row.args.len()).filter(|_| row.args.len() > 1) {
                constants.iter().for_each(|constant| it.operator(row, Some((at, constant)), &mut body));
            }
        }
        for (to, _) in DTYPES {
            let compared = |what: &str, bound| ProgramResult {
                what: format!("{what} to `{}`", to.short_name()),
                dtype: to,
                bound,
                operands: vec!["T5"],
            };
            if to != dtype {
                it.result(compared("cast", ErrorBound::Exact), "cast", &mut body);
            }
            // Not every byte is a truth value.
            if to.size() == dtype.size() && to != DType::Bool {
                it.result(compared("bit_cast", ErrorBound::Bits), "bit_cast", &mut body);
            }
        }
        let inputs: Vec<String> = it.inputs.iter().map(|(name, it)| tensor(name, it)).collect();
        let outputs = it.results.iter().map(|(name, compared)| {
            let len = it.inputs[compared.operands[0]].bits.len();
            tensor(name, &Elements { dtype: compared.dtype, bits: vec![0; len] })
        });
        let outputs: Vec<String> = outputs.collect();
        it.text = format!(
            "%HostIrContainer {{ ({}) -> ({}) :\n{body}}} // %HostIrContainer\n",
            inputs.join(", "),
            outputs.join(", ")
        );
        it
    }

    /// Adds an operator on tensors, with a constant in place of one of them if given.
    fn operator(&mut self, row: &OpDef, constant: Option<(usize, &str)>, body: &mut String) {
        let divides = matches!(row.op, Op::Div | Op::Mod | Op::Fmod | Op::Remainder | Op::CeilDiv);
        let operands = match (row.op, row.args.len()) {
            (Op::Where, _) => vec!["T4", "T0", "T1"],
            (_, 1) => vec!["T0"],
            (_, 2) if divides && self.dtype.is_integral() => vec!["T0", "T3"],
            (_, count) => ["T0", "T1", "T2"][..count.min(3)].to_vec(),
        };
        let dtype = if is_predicate(row.op) { DType::Bool } else { self.dtype };
        let bound = if self.dtype.is_integral() { ErrorBound::Exact } else { error_bound(row.op) };
        let mut args: Vec<String> = operands.iter().map(|it| tensor(it, &self.inputs[it])).collect();
        let mut compared = ProgramResult { what: format!("`{}`", row.mnemonic), dtype, bound, operands };
        if let Some((at, constant)) = constant {
            let _ = write!(compared.what, " with {constant} as operand {at}");
            compared.operands.remove(at);
            args[at] = constant.to_owned();
        }
        let value = match row.format {
            AsmFormat::Infix => args.join(&format!("\n     {} ", row.mnemonic)),
            AsmFormat::Prefix => format!("{}{}", row.mnemonic, args[0]),
            _ => format!("{}({})", row.mnemonic, args.join("\n     , ")),
        };
        self.define(compared, &value, body);
    }

    fn result(&mut self, compared: ProgramResult, name: &str, body: &mut String) {
        let value = format!("{name}({})", tensor("T5", &self.inputs["T5"]));
        self.define(compared, &value, body);
    }

    fn define(&mut self, compared: ProgramResult, value: &str, body: &mut String) {
        let name = format!("T{}", 10 + self.results.len());
        let len = self.inputs[compared.operands[0]].bits.len();
        let out = tensor(&name, &Elements { dtype: compared.dtype, bits: vec![0; len] });
        let _ = write!(body, "  {out}\n     = {value};\n");
        self.results.insert(name, compared);
    }
}

/// Returns the constants that an operator takes beside tensors of a type: constants of other precisions and
/// beyond the range of the type, but not 0.
fn constants(dtype: DType) -> &'static [&'static str] {
    match dtype {
        DType::Bool => &["true", "2"],
        _ if dtype.is_integral() => &["3", "-7", "300", "5000000000"],
        _ => &["double(0.1)", "double(-1e300)", "3", "16777217"],
    }
}

/// Returns the text of a tensor in a program.
fn tensor(name: &str, elements: &Elements) -> String {
    let axis = name.trim_start_matches('T');
    format!("{name}_g_{}[iS{axis}{{{}}}]", elements.dtype.name(), elements.bits.len())
}

/// Runs the programs of some element types on the simulator and on emulated GPUs, and compares the results.
fn compare_engines(wanted: impl Fn(DType) -> bool) -> Result<(), Failed> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let mine = DTYPES.iter().enumerate().filter(|(number, _)| part::includes_one_in(SAMPLE, *number));
    let programs: Vec<Program> = mine.map(|(_, it)| it.0).filter(|it| wanted(*it)).map(Program::of).collect();
    for program in &programs {
        let name = program.dtype.short_name();
        fs::write(folder.path().join(format!("{name}.hir")), &program.text)?;
        values::write(&folder.path().join(format!("{name}.safetensors")), &program.inputs)?;
    }
    run(folder.path(), &programs, "sim")?;
    run(folder.path(), &programs, "cuda")?;
    let mut faults = Vec::new();
    for program in &programs {
        let name = program.dtype.short_name();
        let files =
            ["sim", "cuda"].map(|it| fs::read(folder.path().join(format!("{name}.{it}.safetensors"))));
        let [sim, cuda] = files;
        let (sim, cuda) = (sim?, cuda?);
        let (sim, cuda) = (SafeTensors::deserialize(&sim)?, SafeTensors::deserialize(&cuda)?);
        for (key, compared) in &program.results {
            let (sim, cuda) = (sim.tensor(key)?, cuda.tensor(key)?);
            faults.extend(compared.fault(program, &sim, &cuda));
        }
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(format!("{} results differ:\n{}", faults.len(), faults.join("\n")).into())
    }
}

/// Runs all programs in one process.
fn run(folder: &Path, programs: &[Program], device: &str) -> Result<(), Failed> {
    let mut lines = String::new();
    for program in programs {
        let (name, folder) = (program.dtype.short_name(), folder.display());
        let _ = write!(lines, "{folder}/{name}.hir");
        for key in program.inputs.keys() {
            let _ = write!(lines, " --input {key}=@{folder}/{name}.safetensors#{key}");
        }
        for key in program.results.keys() {
            let _ = write!(lines, " --output {key}=@{folder}/{name}.{device}.safetensors#{key}");
        }
        lines.push('\n');
    }
    let batch = folder.join(format!("{device}.txt"));
    fs::write(&batch, lines)?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
    command.arg("--batch").arg(&batch).arg(format!("--device={device}"));
    command.current_dir(ROOT).env_clear().envs(ENVIRONMENT.iter().copied());
    if device == "cuda" {
        command.env_remove("CUDA_VISIBLE_DEVICES").envs(emulator::environment()?);
    }
    let output = command.output_with_timeout()?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!(
            "{device}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
        .into())
    }
}

impl ProgramResult {
    /// Describes the first element that differs by more than the bound, and the number of such elements.
    fn fault(&self, program: &Program, sim: &TensorView, cuda: &TensorView) -> Option<String> {
        let (sim, cuda) = (Elements::of(self.dtype, sim.data()), Elements::of(self.dtype, cuda.data()));
        let differs = |at: &usize| {
            let (one, other) = (sim.bits[*at], cuda.bits[*at]);
            match self.bound {
                ErrorBound::Bits => one != other,
                ErrorBound::Exact => one != other && !(sim.is_nan(*at) && cuda.is_nan(*at)),
                ErrorBound::Ulps(most) => sim.ulps(*at, &cuda).is_none_or(|it| it > most),
            }
        };
        let wrong: Vec<usize> = (0..sim.bits.len().max(cuda.bits.len())).filter(differs).collect();
        let at = *wrong.first()?;
        let operands: Vec<String> = self.operands.iter().map(|it| program.inputs[it].text(at)).collect();
        Some(format!(
            "{} of `{}`, {:?}: {} of {} elements; of {}: simulator {}, kernel {}",
            self.what,
            program.dtype.short_name(),
            self.bound,
            wrong.len(),
            sim.bits.len(),
            operands.join(", "),
            sim.text(at),
            cuda.text(at)
        ))
    }
}
