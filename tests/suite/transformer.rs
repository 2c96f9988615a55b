//! Tests a network of twelve layers. Each consists of a normalisation, a linear layer, a softmax over a
//! sharded axis, a linear layer that sums over devices, and a residual connection; all of them are inexact.
//! Every pipeline must preserve its meaning according to the f64 shadows, and a relative error of 1e-6 in one
//! element after six layers must be detected.

use hir_plan::limits::DEFAULT_MEMORY_LIMIT;
use std::fmt::Write;

use grammar::{diagnostic::has_errors, span::LineIndex};
use hir_driver::run::{
    inputs::InputSpec,
    verdict::{
        Criteria, Expectation, ExpectationSource, OutputVerdict, expectations, judge_outputs, simulate,
    },
};
use hir_sim::Schedule;
use hir_tensor::generate::InputKind;
use libtest_mimic::{Failed, Trial};
use passes::{PIPELINES, Settings, Verify};

const LAYERS: usize = 12;
/// Two devices share the columns of the hidden layer.
const ROWS: usize = 8;
const COLUMNS: usize = 32;
const HIDDEN: usize = 64;

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("transformer::pipelines_keep_its_meaning", pipelines_keep_its_meaning),
        Trial::test("transformer::a_small_error_is_found", a_small_error_is_found),
    ]
}

fn pipelines_keep_its_meaning() -> Result<(), Failed> {
    let text = network(false);
    let expected = expected(&text)?;
    let mut compared = 0;
    // `@one-rank` makes the program of one rank, which all ranks cannot run.
    for pipeline in PIPELINES.iter().map(|it| it.name).filter(|it| *it != "@one-rank") {
        let Some(verdict) = run(&text, pipeline, &expected)? else { continue };
        if !verdict.is_right() || !verdict.line.text.contains("(f64 shadow, rtol 1e-9") {
            return Err(format!("{pipeline}: {}", verdict.line).into());
        }
        compared += 1;
    }
    if compared < 3 { Err(format!("only {compared} pipelines apply").into()) } else { Ok(()) }
}

fn a_small_error_is_found() -> Result<(), Failed> {
    let expected = expected(&network(true))?;
    match run(&network(false), "", &expected)? {
        Some(verdict) if !verdict.is_right() && verdict.line.text.contains("elements differ") => Ok(()),
        Some(verdict) => Err(verdict.line.to_string().into()),
        None => Err("it does not run".into()),
    }
}

/// Returns the outputs of a program as expectations.
fn expected(text: &str) -> Result<Vec<Expectation>, Failed> {
    let verdict = run(text, "", &[])?.ok_or("it does not run")?;
    Ok(expectations(verdict.outputs, "the network", ExpectationSource::Reference { exact: false }))
}

/// Returns the verdict on a program after a pipeline, or `None` if the pipeline does not apply.
fn run(text: &str, pipeline: &str, expected: &[Expectation]) -> Result<Option<OutputVerdict>, Failed> {
    let (mut programs, diagnostics) = grammar::read(text);
    let mut program = programs
        .pop()
        .filter(|_| !has_errors(&diagnostics))
        .ok_or_else(|| format!("{:?}\n{text}", diagnostics.first().map(|it| &it.message)))?;
    if !pipeline.is_empty() {
        let calls = passes::parse(pipeline).map_err(|it| it.message)?;
        let settings = Settings { verify: Verify::Structural, roundtrip: false };
        match passes::run(&mut program, &calls, settings, &mut |_| ()) {
            Err(failure) if failure.error.is_bug() => return Err(failure.to_string().into()),
            Err(_) => return Ok(None),
            Ok(()) => (),
        }
    }
    let plans = hir_plan::build(&program, &LineIndex::new(text), 2)
        .map_err(|it| format!("{pipeline}: {:?}", it.first().map(|it| it.message.clone())))?;
    let inputs = InputSpec::new(InputKind::Exact, 0, &plans).fill(&plans)?;
    let outcome = simulate(&plans, inputs, &Schedule::Seed(1), DEFAULT_MEMORY_LIMIT)?;
    let exact = Some(outcome.notes.exactness.is_exact());
    Ok(Some(judge_outputs(&plans, &outcome, expected, &Criteria { exact, ..Criteria::default() })?))
}

/// Returns the text of a network. If `planted`, element [3, 5] has an error of 1e-6 after the sixth layer.
fn network(planted: bool) -> String {
    let mut text = ProgramText::default();
    let first = text.tensor(&[ROWS, COLUMNS], "");
    let mut inputs = vec![first.clone()];
    let mut x = first;
    for layer in 0..LAYERS {
        // Normalisation of rows.
        let mean = text.row_sum(&x, [ROWS, COLUMNS]);
        let mean = text.column(&mean);
        let mean = text.set(&[ROWS, 1], &format!("{mean}\n * float({:e})", 1.0 / COLUMNS as f64));
        let centred = text.set(&[ROWS, COLUMNS], &format!("{x}\n - {mean}"));
        let squares = text.set(&[ROWS, COLUMNS], &format!("{centred}\n * {centred}"));
        let variance = text.row_sum(&squares, [ROWS, COLUMNS]);
        let variance = text.column(&variance);
        let variance = text.set(&[ROWS, 1], &format!("{variance}\n + float(0.01)"));
        let scale = text.set(&[ROWS, 1], &format!("rsqrt({variance})"));
        let normal = text.set(&[ROWS, COLUMNS], &format!("{centred}\n * {scale}"));
        // A linear layer with sharded columns, and a softmax over them.
        let weights = text.sharded(&[HIDDEN, COLUMNS], 0);
        inputs.push(weights.clone());
        let scores = text.sharded(&[ROWS, HIDDEN], 1);
        text.define(&scores, &format!("linear({normal}, {weights})"));
        let powers = text.sharded(&[ROWS, HIDDEN], 1);
        text.define(&powers, &format!("exp({scores})"));
        let sum = text.row_sum(&powers, [ROWS, HIDDEN]);
        let sum = text.column(&sum);
        let shares = text.sharded(&[ROWS, HIDDEN], 1);
        text.define(&shares, &format!("{powers}\n / {sum}"));
        // A linear layer that sums over the devices, and the residual connection.
        let weights = text.sharded(&[COLUMNS, HIDDEN], 1);
        inputs.push(weights.clone());
        let added = text.set(&[ROWS, COLUMNS], &format!("linear({shares}, {weights})"));
        x = text.set(&[ROWS, COLUMNS], &format!("{x}\n + {added}"));
        if planted && layer == LAYERS / 2 {
            let (row, column) = (text.one(ROWS, 3), text.one(COLUMNS, 5));
            let one = text.set(&[ROWS, COLUMNS], &format!("{x}\n * {row}"));
            let one = text.set(&[ROWS, COLUMNS], &format!("{one}\n * {column}"));
            let error = text.set(&[ROWS, COLUMNS], &format!("{one}\n * float(1e-6)"));
            x = text.set(&[ROWS, COLUMNS], &format!("{x}\n + {error}"));
        }
    }
    let (body, domains) = (text.body, text.domains);
    format!(
        "%HostIrContainer {{ ({}) -> ({x}) :\n{body}}} // %HostIrContainer\n\nDomains:\n{domains}",
        inputs.join(", ")
    )
}

/// The text of a program while it is built.
#[derive(Default)]
struct ProgramText {
    tensors: usize,
    axes: usize,
    body: String,
    domains: String,
}

impl ProgramText {
    /// Returns a number for an axis.
    fn axis(&mut self) -> usize {
        self.axes += 1;
        self.axes - 1
    }

    /// Returns a new float tensor. `more` is appended to its axes.
    fn tensor(&mut self, shape: &[usize], more: &str) -> String {
        let axes: Vec<String> = shape
            .iter()
            .map(|extent| format!("{}S{}{{{extent}}}", if *extent == 1 { "b" } else { "i" }, self.axis()))
            .collect();
        self.tensors += 1;
        format!("T{}_g_float[{}{more}] (DeviceMesh{{0 1}})", self.tensors - 1, axes.join(", "))
    }

    /// Returns a new matrix whose dimension `cut` is sharded over two devices.
    fn sharded(&mut self, shape: &[usize; 2], cut: usize) -> String {
        let [whole, device, part, other] = [(); 4].map(|()| self.axis());
        let (extent, half, rest) = (shape[cut], shape[cut] / 2, shape[1 - cut]);
        let (cut_axes, root) =
            (format!("ideviceIdx.x{device}{{2}}, iS{part}{{{half}}}"), format!("iS{whole}{{{extent}}}"));
        let plain = format!("iS{other}{{{rest}}}");
        let both = |a: &str| if cut == 0 { format!("{a}, {plain}") } else { format!("{plain}, {a}") };
        let number = self.tensors;
        self.tensors += 1;
        let _ = writeln!(
            self.domains,
            "  T{number}: logical({}), outer_split({root}, 2) -> ({cut_axes})",
            both(&root)
        );
        format!("T{number}_g_float[{}] (DeviceMesh{{0 1}})", both(&cut_axes))
    }

    fn define(&mut self, tensor: &str, value: &str) {
        let _ = writeln!(self.body, "  {tensor}\n     = {value};");
    }

    /// Defines a new tensor by a value.
    fn set(&mut self, shape: &[usize], value: &str) -> String {
        let tensor = self.tensor(shape, "");
        self.define(&tensor, value);
        tensor
    }

    /// Sums the rows of a matrix.
    fn row_sum(&mut self, of: &str, shape: [usize; 2]) -> String {
        let reduced = format!(", rS{}{{{}}}", self.axis(), shape[1]);
        let tensor = self.tensor(&shape[..1], &reduced);
        let value = format!("reduction( {of}, op = add, initial value = float(0), allreduce = false )");
        let _ = writeln!(self.body, "  {tensor}\n     = {value}");
        tensor
    }

    /// Converts a vector to a column.
    fn column(&mut self, of: &str) -> String {
        let tensor = self.tensor(&[ROWS, 1], "");
        let _ = writeln!(self.body, "  {tensor}\n     = broadcast( {of}, flags = {{false, true}} )");
        tensor
    }

    /// Returns a row or a column with a 1 at one position and 0 elsewhere.
    fn one(&mut self, extent: usize, at: usize) -> String {
        let numbers = self.set(&[extent], &format!("iota({extent}, 0, 1, float)"));
        let off = self.set(&[extent], &format!("{numbers}\n - float({at})"));
        let off = self.set(&[extent], &format!("abs({off})"));
        let near = self.set(&[extent], &format!("float(1)\n - {off}"));
        let one = self.set(&[extent], &format!("relu({near})"));
        let is_row = extent == COLUMNS;
        let shape = if is_row { [1, extent] } else { [extent, 1] };
        let tensor = self.tensor(&shape, "");
        let flags = if is_row { "true, false" } else { "false, true" };
        let _ = writeln!(self.body, "  {tensor}\n     = broadcast( {one}, flags = {{{flags}}} )");
        tensor
    }
}
