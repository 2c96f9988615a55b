//! Runs two programs in the simulator, and says for which inputs their results differ by more than rounding.
//!
//! Infinities that sums and products of finite numbers give are left to the magnitude that a certificate states. A run is also unclear
//! where rounding may decide about an exception: a sum that cancels, an operand that a sum absorbs, a comparison of almost equal numbers,
//! a product or a conversion that underflows, and a function that depends on the sign of a zero. A range holds for values of operators that are
//! at most the printed magnitude, as the inputs: where others are larger, a run is unclear, too.

use std::{collections::HashMap, process::Command, sync::Arc};

use grammar::{diagnostic::has_errors, span::LineIndex};
use half::{bf16, f16};
use hir_plan::World;
use hir_sim::{Schedule, SimOptions};
use hir_tensor::data::Data;

use super::terms::{EXTENT, Id, Op, Terms, Type};
use crate::{cases::ENVIRONMENT, rng::Rng, timeout::RunWithTimeout};

/// The number of inputs for each pair.
pub const SAMPLES: usize = 100;
/// The elements of a tensor.
const ELEMENTS: usize = EXTENT * EXTENT;

/// The types and the values of the input tensors, with all samples of a tensor one after the other.
pub struct Inputs {
    dtypes: Vec<Type>,
    tensors: Vec<Vec<f64>>,
}

impl Inputs {
    /// Returns inputs that are finite and ordinary. Of ten samples, six have numbers near 1, one of them with zeros, one has ±1 and 0, and
    /// others have large, small and mixed numbers.
    fn random(dtypes: Vec<Type>, elements: usize, large: f64, rng: &mut Rng) -> Self {
        let mut tensors = vec![Vec::new(); dtypes.len()];
        for sample in 0..SAMPLES {
            let is_positive = rng.chance(30);
            for (tensor, &dtype) in tensors.iter_mut().zip(&dtypes) {
                let (large, small) = if dtype == Type::Half { (2e4, 1e-3) } else { (large, 1e-30) };
                let scale = match sample % 10 {
                    7 => large,
                    8 => small,
                    9 => rng.choose_cloned(&[1.0, 100.0, large, small]),
                    _ => 1.0,
                };
                for _ in 0..elements {
                    let size = if sample % 10 == 6 { 1.0 } else { (1 + rng.below(12)) as f64 / 4.0 };
                    let is_zero = matches!(sample % 10, 5 | 6) && rng.chance(30);
                    let sign = if is_positive || rng.chance(50) { 1.0 } else { -1.0 };
                    let value = if is_zero { 0.0 } else { sign * size * scale };
                    tensor.push(rounded(dtype, value));
                }
            }
        }
        Self { dtypes, tensors }
    }

    /// Moves all numbers into a box.
    fn limit(&mut self, limits: &[Limit], rng: &mut Rng) {
        for (number, (tensor, &dtype)) in self.tensors.iter_mut().zip(&self.dtypes).enumerate() {
            let own: Vec<&Limit> =
                limits.iter().filter(|it| it.tensor.is_none_or(|it| it == number)).collect();
            let is_within = |value: f64| value.is_finite() && own.iter().all(|it| it.has(value));
            // Numbers at the bounds of the box, and others between them.
            let ends = own.iter().flat_map(|it| [0.999, 1.001, 0.5, 2.0].map(|factor| it.number * factor));
            let all = ends.chain([0.0, 1e-30, 1e-3, 1.0, 100.0, 1e30]).flat_map(|it| [it, -it]);
            let inside: Vec<f64> = all.map(|it| rounded(dtype, it)).filter(|it| is_within(*it)).collect();
            for value in tensor.iter_mut().filter(|it| !is_within(**it)) {
                *value = if inside.is_empty() { f64::NAN } else { rng.choose_cloned(&inside) };
            }
        }
    }

    fn data(&self, range: std::ops::Range<usize>, ranks: usize) -> Vec<Vec<Arc<Data>>> {
        let tensors = self.dtypes.iter().zip(&self.tensors);
        vec![tensors.map(|(dtype, it)| Arc::new(data(*dtype, &it[range.clone()]))).collect(); ranks]
    }

    /// Returns the elements of one sample.
    fn shown(&self, sample: usize, elements: usize) -> String {
        let part = |it: &Vec<f64>| format!("{:?}", &it[sample * elements..(sample + 1) * elements]);
        self.tensors.iter().map(part).collect::<Vec<_>>().join(" ")
    }
}

/// A condition that a certificate prints, such as `|T1| <= 2.5`.
pub struct Limit {
    /// The number of the input; `None` for all.
    tensor: Option<usize>,
    is_magnitude: bool,
    relation: String,
    number: f64,
}

impl Limit {
    /// Reads the conditions of a certificate on a range.
    fn all(text: &str) -> Result<Vec<Self>, String> {
        let line = text.lines().find_map(|it| it.split_once("certified on a range, where "));
        let conditions = line.ok_or_else(|| format!("no range: {text}"))?.1;
        let conditions =
            conditions.split(" and ").map(|it| Self::read(it).ok_or_else(|| format!("no condition: {it}")));
        // The magnitude below which no sum or product overflows.
        let most = text.split_once(" are at most ").and_then(|it| it.1.split(' ').next()?.parse().ok());
        let most =
            most.map(|number| Self { tensor: None, is_magnitude: true, relation: "<=".to_owned(), number });
        conditions.chain(most.map(Ok)).collect()
    }

    fn read(text: &str) -> Option<Self> {
        let [name, relation, number] = text.split(' ').collect::<Vec<_>>()[..] else { return None };
        Some(Self {
            tensor: Some(name.trim_matches('|').strip_prefix('T')?.parse().ok()?),
            is_magnitude: name.starts_with('|'),
            relation: relation.to_owned(),
            number: number.parse().ok()?,
        })
    }

    fn has(&self, value: f64) -> bool {
        let value = if self.is_magnitude { value.abs() } else { value };
        match self.relation.as_str() {
            "<=" => value <= self.number,
            ">=" => value >= self.number,
            ">" => value > self.number,
            _ => value != self.number,
        }
    }
}

fn data(dtype: Type, values: &[f64]) -> Data {
    match dtype {
        Type::Float => Data::F32(values.iter().map(|it| *it as f32).collect()),
        Type::Half => Data::F16(values.iter().map(|it| f16::from_f64(*it)).collect()),
        Type::Bfloat => Data::Bf16(values.iter().map(|it| bf16::from_f64(*it)).collect()),
        Type::Double => Data::F64(values.to_vec()),
        Type::Bool => Data::Bool(values.iter().map(|it| *it != 0.0).collect()),
    }
}

fn rounded(dtype: Type, value: f64) -> f64 {
    data(dtype, &[value]).to_f64()[0]
}

/// Returns the plans of a text.
pub fn plans(text: &str) -> Result<World, String> {
    let (mut programs, mut diagnostics) = grammar::read(text);
    let program = programs.pop().ok_or_else(|| format!("no program: {text}"))?;
    diagnostics.extend(grammar::verify(&program));
    if has_errors(&diagnostics) {
        let messages: Vec<&str> = diagnostics.iter().map(|it| it.message.as_str()).collect();
        return Err(format!("{}\n{text}", messages.join("\n")));
    }
    let ranks = hir_plan::smallest_world(&program);
    hir_plan::build(&program, &LineIndex::new(text), ranks).map_err(|it| format!("{it:?}\n{text}"))
}

/// Returns the outputs of rank 0, which are those of all ranks.
fn outputs(plans: &World, inputs: Vec<Vec<Arc<Data>>>) -> Result<Vec<Vec<f64>>, String> {
    let options = SimOptions { without_shadows: true, ..SimOptions::default() };
    let outcome = hir_sim::run(plans, inputs, &Schedule::Program, &options).map_err(|it| it.to_string())?;
    let rank = outcome.outputs.first().into_iter().flatten();
    rank.map(|it| Ok(it.as_ref().ok_or("rank 0 lacks an output")?.data.to_f64())).collect()
}

/// How two results compare.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Comparison {
    Equal,
    Unclear,
    Differ,
}

/// Compares two elements. `scale` is the largest number that either program computes.
fn compare(one: f64, other: f64, tolerance: f64, scale: f64) -> Comparison {
    if one.is_nan() && other.is_nan() || one == other {
        return Comparison::Equal;
    }
    if !one.is_finite() || !other.is_finite() {
        return Comparison::Differ;
    }
    let distance = (one - other).abs() / one.abs().max(other.abs()).max(scale);
    match () {
        () if distance <= tolerance => Comparison::Equal,
        () if distance <= 0.1 => Comparison::Unclear,
        () => Comparison::Differ,
    }
}

/// The results of all samples of a program.
struct Trace {
    outputs: Vec<Vec<f64>>,
    /// The largest finite number of each sample.
    scales: Vec<f64>,
    /// Whether rounding or an overflow of a sum may decide about the results of a sample.
    is_unclear: Vec<bool>,
}

/// Returns the relative distance below which two numbers may be equal but for rounding.
fn cut(dtype: Type) -> f64 {
    match dtype {
        Type::Half => 0.02,
        Type::Bfloat => 0.05,
        Type::Float | Type::Double | Type::Bool => 1e-3,
    }
}

/// Runs a program. Where a finite value of an operator that is no sum or product is larger than `most`, a sample is unclear.
fn trace(
    terms: &Terms,
    inputs: &Inputs,
    coarsest: Type,
    most: f64,
    is_reordered: bool,
) -> Result<Trace, String> {
    let (text, ids) = terms.text(Some(SAMPLES));
    let plans = plans(&text)?;
    let found = outputs(&plans, inputs.data(0..SAMPLES * ELEMENTS, plans.len()))?;
    let mut values: HashMap<Id, Vec<f64>> = ids.into_iter().zip(found).collect();
    for (id, node) in terms.nodes.iter().enumerate() {
        match node.op {
            Op::Input(number) => _ = values.insert(id, inputs.tensors[number].clone()),
            Op::Const(text) => {
                let number = rounded(terms.base, text.parse().map_err(|_| text)?);
                values.insert(id, vec![number; SAMPLES * EXTENT * node.rows]);
            }
            _ => (),
        }
    }
    let (mut scales, mut is_unclear) = (vec![0.0f64; SAMPLES], vec![false; SAMPLES]);
    // In a sum, no difference is too small then.
    let (cut, cut_of_sums) = (cut(coarsest), if is_reordered { 0.0 } else { cut(coarsest) });
    for id in terms.needed_by(&terms.outputs) {
        let Some(results) = values.get(&id) else { continue };
        let node = terms.operation(id);
        let operands: Vec<&Vec<f64>> = node.of.iter().filter_map(|it| values.get(it)).collect();
        for (at, result) in results.iter().enumerate() {
            let sample = at / (node.rows * EXTENT);
            if result.is_finite() {
                scales[sample] = scales[sample].max(result.abs());
            }
            if operands.len() == node.of.len() {
                let value = match node.op {
                    Op::Unary(_) | Op::Call(_) => *result,
                    Op::Infix("/") => operands[1][at].recip(),
                    _ => 0.0,
                };
                is_unclear[sample] |= value.is_finite() && value.abs() > most
                    || is_rounded(
                        &node.op,
                        node.dtype != terms.base,
                        &operands,
                        at,
                        *result,
                        [cut, cut_of_sums],
                    );
            }
        }
    }
    let outputs = terms.outputs.iter().filter_map(|it| values.get(it).cloned()).collect();
    Ok(Trace { outputs, scales, is_unclear })
}

/// Returns whether an element depends on rounding, or on an overflow of a sum or a product, as the head of this file says.
fn is_rounded(
    op: &Op,
    is_converted: bool,
    of: &[&Vec<f64>],
    at: usize,
    result: f64,
    [cut, of_sums]: [f64; 2],
) -> bool {
    let is_negative_zero = |it: f64| it == 0.0 && it.is_sign_negative();
    let sum = |terms: &[f64]| {
        let largest = terms.iter().fold(0.0f64, |largest, it| largest.max(it.abs()));
        let all_finite = terms.iter().all(|it| it.is_finite());
        let is_absorbed = terms.iter().any(|it| *it != 0.0 && it.abs() < of_sums * 1e-3 * largest);
        all_finite
            && (!result.is_finite() || is_absorbed || result != 0.0 && result.abs() < of_sums * largest)
    };
    // Numbers of half precision below 2^-14 have less digits, or none.
    let underflows = |exact: f64| (exact - result).abs() > 0.02 * exact.abs() && result.abs() < 6.2e-5;
    match op {
        Op::Infix("+" | "-") if !is_converted => sum(&[of[0][at], of[1][at]]),
        Op::Infix("+") if underflows(of[0][at] + of[1][at]) => true,
        Op::Infix("-") if underflows(of[0][at] - of[1][at]) => true,
        Op::Infix("*") if is_converted && underflows(of[0][at] * of[1][at]) => true,
        Op::Infix("/") if is_converted && underflows(of[0][at] / of[1][at]) => true,
        Op::Infix("*" | "/") => {
            let (one, other) = (of[0][at], of[1][at]);
            let is_quotient = *op == Op::Infix("/");
            let is_finite = one.is_finite() && other.is_finite() && !is_converted;
            is_finite && !is_quotient && !result.is_finite()
                || is_finite && one != 0.0 && other != 0.0 && result.abs() < 1e-37
                || is_quotient && is_negative_zero(other)
        }
        Op::Infix("==" | "!=" | "<" | "<=" | ">" | ">=") => {
            let (one, other) = (of[0][at], of[1][at]);
            one != other && (one - other).abs() < cut * one.abs().max(other.abs())
        }
        Op::Unary("reciprocal" | "rsqrt") => is_negative_zero(of[0][at]),
        Op::Unary("log") => result != 0.0 && result.abs() < cut,
        Op::Call("pow") => is_negative_zero(of[0][at]),
        Op::Cast(_) => underflows(of[0][at]),
        Op::SumOfRanks => of[0][at].is_finite() && !result.is_finite(),
        Op::Rows("add") | Op::RowsOfRanks("add") => sum(&of[0][at - at % EXTENT..][..EXTENT]),
        Op::Matmul => {
            let (row, column, block) = (at - at % EXTENT, at % EXTENT, at - at % ELEMENTS);
            let factors = (0..EXTENT).map(|it| (of[0][row + it], of[1][block + it * EXTENT + column]));
            let factors: Vec<(f64, f64)> = factors.collect();
            let products: Vec<f64> = factors.iter().map(|it| it.0 * it.1).collect();
            let all_finite = factors.iter().all(|it| it.0.is_finite() && it.1.is_finite());
            let underflows =
                |(it, product): (&(f64, f64), &f64)| it.0 != 0.0 && it.1 != 0.0 && product.abs() < 1e-37;
            all_finite && !result.is_finite()
                || sum(&products)
                || factors.iter().zip(&products).any(underflows)
        }
        Op::Infix(_) | Op::Unary(_) | Op::Call(_) | Op::Not | Op::Where | Op::Input(_) | Op::Const(_) => {
            false
        }
        Op::Eye | Op::Transpose | Op::Copy | Op::Half(_) | Op::Cat | Op::Rows(_) => false,
        Op::Shard | Op::Gather | Op::Broadcast | Op::RowsOfRanks(_) => false,
    }
}

/// Compares two programs for random inputs within limits: the result is the largest difference that is clear, and the first sample that has it.
///
/// Of a pair with sums in another order, only infinities and NaNs differ clearly, also where rounding decides about them.
pub fn judge(
    pair: [&Terms; 2],
    is_reordered: bool,
    limits: &[Limit],
    rng: &mut Rng,
) -> Result<(Comparison, Option<String>), String> {
    let mut inputs = Inputs::random(vec![pair[0].base; pair[0].inputs], ELEMENTS, 1e30, rng);
    inputs.limit(limits, rng);
    if inputs.tensors.iter().flatten().any(|it| it.is_nan()) {
        return Ok((Comparison::Unclear, None));
    }
    let has = |dtype| pair.iter().any(|it| it.nodes.iter().any(|node| node.dtype == dtype));
    let (coarsest, tolerance) = match () {
        () if has(Type::Bfloat) => (Type::Bfloat, 5e-2),
        () if has(Type::Half) => (Type::Half, 1e-2),
        () => (Type::Float, 1e-4),
    };
    let most = limits.iter().filter(|it| it.tensor.is_none()).fold(f64::MAX, |most, it| most.min(it.number));
    let [one, other] = pair.map(|it| trace(it, &inputs, coarsest, most, is_reordered));
    let traces = [one?, other?];
    let mut worst = (Comparison::Equal, None);
    for sample in 0..SAMPLES {
        let scale = traces[0].scales[sample].max(traces[1].scales[sample]);
        let range = sample * ELEMENTS..(sample + 1) * ELEMENTS;
        let pairs = traces[0].outputs.iter().zip(&traces[1].outputs);
        let elements = pairs.flat_map(|(one, other)| one[range.clone()].iter().zip(&other[range.clone()]));
        let Some((found, one, other)) = elements
            .map(|(one, other)| (compare(*one, *other, tolerance, scale), *one, *other))
            .max_by_key(|it| it.0)
        else {
            continue;
        };
        let is_rounded = is_reordered && one.is_finite() && other.is_finite();
        let is_unclear = is_rounded || traces.iter().any(|it| it.is_unclear[sample]);
        let found = if is_unclear { found.min(Comparison::Unclear) } else { found };
        if found > worst.0 {
            let confirms = found == Comparison::Differ;
            if confirms && !texts_differ(pair.map(|it| it.text(None).0), &inputs, sample, tolerance, scale)? {
                return Err("the texts agree where the programs of all samples differ".to_owned());
            }
            worst = (found, Some(format!("{one:?} and {other:?} for {}", inputs.shown(sample, ELEMENTS))));
        }
    }
    Ok(worst)
}

/// Returns whether the programs that are certified differ for one sample.
fn texts_differ(
    texts: [String; 2],
    inputs: &Inputs,
    sample: usize,
    tolerance: f64,
    scale: f64,
) -> Result<bool, String> {
    let run = |text: &String| {
        let plans = plans(text)?;
        outputs(&plans, inputs.data(sample * ELEMENTS..(sample + 1) * ELEMENTS, plans.len()))
    };
    let [one, other] = [run(&texts[0])?, run(&texts[1])?];
    let mut pairs = one.iter().flatten().zip(other.iter().flatten());
    Ok(pairs.any(|(one, other)| compare(*one, *other, tolerance, scale) == Comparison::Differ))
}

/// Compares two given texts, for inputs up to 3e38 by which rounding is measured; nothing else is unclear. Returns the samples
/// that differ, with the elements.
pub fn judge_texts(texts: [&str; 2], rng: &mut Rng) -> Result<Vec<String>, String> {
    let worlds = [plans(texts[0])?, plans(texts[1])?];
    let first = worlds[0].plans().first().ok_or("no rank")?;
    let sizes = first.inputs.iter().map(|it| it.shard.layout.shape.iter().product::<usize>());
    let elements = sizes.clone().max().unwrap_or(0);
    if sizes.clone().any(|it| it != elements) {
        return Err("the inputs have different sizes".to_owned());
    }
    let dtypes = first.inputs.iter().map(|it| Type::of(it.dtype)).collect::<Option<Vec<_>>>();
    let inputs = Inputs::random(dtypes.ok_or("an input is of another type")?, elements, 1e38, rng);
    let mut found = Vec::new();
    for sample in 0..SAMPLES {
        let range = sample * elements..(sample + 1) * elements;
        let run = |world: &World| outputs(world, inputs.data(range.clone(), world.len()));
        let [one, other] = [run(&worlds[0])?, run(&worlds[1])?];
        let scale =
            inputs.tensors.iter().flat_map(|it| &it[range.clone()]).fold(0.0f64, |max, it| max.max(it.abs()));
        let pair = |(one, other): &(&f64, &f64)| compare(**one, **other, 1e-2, scale) == Comparison::Differ;
        let mut pairs = one.iter().flatten().zip(other.iter().flatten());
        if let Some((one, other)) = pairs.find(pair) {
            found.push(format!("{one:?} and {other:?} for {}", inputs.shown(sample, elements)));
        }
    }
    Ok(found)
}

/// What `hir certify` says about the lowered one of two files.
pub enum Verdict {
    Certified,
    /// For inputs within these limits.
    OnRange(Vec<Limit>),
    Refused,
}

/// Returns the verdict of `hir certify`.
pub fn certified(original: &std::path::Path, lowered: &std::path::Path) -> Result<Verdict, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir"));
    command.arg("certify").arg(lowered).arg("--original").arg(original).args(["--seed", "7"]);
    command.env_clear().envs(ENVIRONMENT.iter().copied());
    let output = command.output_with_timeout().map_err(|it| it.to_string())?;
    let text = |it: Vec<u8>| String::from_utf8_lossy(&it).into_owned();
    match output.status.code() {
        Some(0) => Ok(Verdict::Certified),
        Some(9) => Limit::all(&text([output.stdout, output.stderr].concat())).map(Verdict::OnRange),
        // Another code than that of usage says why there is no certificate.
        Some(code) if code != 2 && code != 101 => Ok(Verdict::Refused),
        _ => Err(text(output.stderr)),
    }
}
