//! The claim that two programs compute the same, and its proof by evaluation at random points.

use super::*;

/// The reason why nothing is certified.
#[derive(Debug)]
pub struct Fault {
    /// Whether the labels are in the text of the original, instead of the lowered program.
    pub is_of_original: bool,
    /// What is wrong.
    pub diagnostic: Box<Diagnostic>,
}

/// What is certified.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Claim {
    /// The number of ranks.
    pub ranks: usize,
    /// The number of accesses to buffers that were compared.
    pub accesses: usize,
    /// The number of outputs.
    pub outputs: usize,
    /// How many elements of outputs were compared in a run, on all ranks.
    pub elements: usize,
    /// The probability that different programs agree in all runs is at most 2 to this power.
    pub error_exponent: f64,
    /// No sum or product overflows where inputs and values of other operators are at most 2 to this power in magnitude.
    pub magnitude: f64,
}

/// The highest probability of an error with which something is certified, as the exponent of two.
const LEAST_EXPONENT: f64 = -20.0;

/// The largest number of ranks. Each has a clock of all of them.
const MAX_RANKS: usize = 1 << 13;

/// Certifies that `lowered` computes what `original` computes.
///
/// # Errors
/// The first output that differs, or what cannot be certified.
pub fn certify(original: &Program, lowered: &Program, settings: &Settings) -> Result<Claim, Fault> {
    let fault = |is_of_original| move |diagnostic| Fault { is_of_original, diagnostic };
    let expect = |holds, why: String, label: &str| {
        require(holds, why).map_err(|why| fault(false)(refused(lowered, None, why, label.to_owned())))
    };
    let least = largest_rank(original).0.max(largest_rank(lowered).0).saturating_add(1);
    let ranks = settings.ranks.unwrap_or(least);
    let why = format!("{ranks} ranks; the programs have {least}, and at most {MAX_RANKS} can be executed");
    expect((least..=MAX_RANKS).contains(&ranks), why, "has these ranks in its meshes and teams")?;
    let (inputs, shapes) = ports(original, 0);
    let is_same = |it: &Program, rank| ports(it, rank) == (inputs, shapes.clone());
    let is_same = (0..ranks).all(|rank| is_same(original, rank) && is_same(lowered, rank));
    let why = "programs or ranks differ in the shapes or types of their inputs or outputs".to_owned();
    expect(is_same, why, "expected those of the original")?;
    // What a program without communications computes on whole tensors is its meaning.
    let ranks_before = if has_whole_tensors(original) { None } else { Some(ranks) };
    let before = unroll(original, ranks_before).map_err(fault(true))?;
    let after = unroll(lowered, Some(ranks)).map_err(fault(false))?;
    let statements = after.steps.iter().filter(|it| it.stmt.is_some());
    let accesses = statements.map(|it| it.reads.len() + it.writes.len()).sum();
    let mut claim = Claim { ranks, accesses, outputs: shapes.len() - inputs, ..Claim::default() };
    claim.magnitude = f64::INFINITY;
    let key = settings.seed.unwrap_or_else(|| RandomState::new().hash_one("key"));
    // `finite` are the faults that a run which records them takes for finite.
    let evaluate = |run: u32, finite: Option<&BTreeSet<Form>>| {
        let algebra = Algebra::new(key.wrapping_add(run.into()), finite);
        // Truth values are random elements, too: what holds for all of them holds for 0 and 1.
        let input = |(number, len)| {
            let element = |at: usize| {
                let it = Element { is_input: true, ..algebra.random(("input", number, at)) };
                algebra.record(it.form, || Made::Input(number));
                it
            };
            (0..len).map(element).collect()
        };
        let sizes = shapes[..inputs].iter().map(|it| it.1.iter().flatten().product::<usize>());
        let values: Vec<Values> = sizes.enumerate().map(input).collect();
        let wanted = execute((original, true), &before, &algebra, &values).map_err(fault(true))?;
        let found = execute((lowered, false), &after, &algebra, &values).map_err(fault(false))?;
        let mut differing = Differing::default();
        let tensors = port_tensors(original).zip(port_tensors(lowered)).enumerate();
        let counts =
            tensors.map(|it| compare([original, lowered], [&wanted, &found], it, &algebra, &mut differing));
        let counts = counts.collect::<Diagnosed<Vec<_>>>().map_err(fault(false))?;
        Ok((algebra, counts, differing))
    };
    let names: Vec<String> =
        Program::tensors_of(&original.inputs).map(|it| original.tensor_name(it)).collect();
    let (mut refusal, mut range) = (None, None);
    for run in 0..settings.runs {
        let (mut records, mut finite) = (false, BTreeSet::new());
        let (algebra, counts) = loop {
            match evaluate(run, records.then_some(&finite)) {
                Ok((algebra, counts, Differing { refusal: None, .. })) => break (algebra, counts),
                // The same run again, which records why.
                _ if !records => records = true,
                Err(fault) => return Err(fault),
                Ok((.., Differing { refusal: found, faults })) => {
                    refusal = refusal.or(found);
                    let count = finite.len();
                    finite.extend(faults);
                    if let Some(refusal) = refusal.take_if(|_| finite.len() == count) {
                        return Err(fault(false)(refusal));
                    }
                }
            }
        };
        claim.elements = counts[inputs..].iter().sum();
        claim.error_exponent += algebra.error_exponent(counts.iter().sum()).min(0.0);
        claim.magnitude = claim.magnitude.min(algebra.magnitude.get().into());
        if let (Some(refusal), Some(recorder)) = (&refusal, algebra.recorder) {
            let found = recorder.into_inner().conditions(&finite, &names, claim.magnitude.exp2());
            // Each run finds the same.
            let found = found.filter(|it| range.get_or_insert(it.clone()) == it);
            found.ok_or_else(|| fault(false)(refusal.clone()))?;
        }
    }
    let bound = claim.error_exponent;
    let why = format!("nothing is proved: the probability of an error is at most 2^{:.0}", bound.ceil());
    expect(bound <= LEAST_EXPONENT, why, "has long products; more `--runs` lower it")?;
    let range = range.filter(|it| !it.is_empty());
    let (Some(refusal), Some(conditions)) = (refusal, range) else { return Ok(claim) };
    let why = format!("certified on a range, where {}", conditions.join(" and "));
    let it = Diagnostic::new(Code::CertifiedOnRange, refusal.span(), why, refusal.message);
    Err(fault(false)(Box::new(it.note(claim.magnitude_text()))))
}

/// What holds only where faults are finite.
#[derive(Default)]
struct Differing {
    /// Why the first output is not certified.
    refusal: Option<Box<Diagnostic>>,
    faults: BTreeSet<Form>,
}

impl Claim {
    /// Returns for which inputs no sum and no product overflows.
    pub(crate) fn magnitude_text(&self) -> String {
        let magnitude = number_text(self.magnitude.exp2());
        match self.magnitude {
            it if it > 1000.0 => "no sum or product can overflow".to_owned(),
            it if it < 0.0 => "as far as no sum or product of finite numbers overflows".to_owned(),
            _ => format!(
                "no sum or product overflows where inputs, and values of other operators, are at most {magnitude} in magnitude"
            ),
        }
    }
}

const DIFFERENT: (Code, &str) = (Code::ProgramsDiffer, "are not those of the original");
/// An opaque element that differs may have the same value.
const UNKNOWN: (Code, &str) = (Code::NotCertifiable, "depend on infinities or roundings of constants");

/// Compares the final contents of an input or output on all ranks, and returns how many elements it has there.
fn compare(
    [original, lowered]: [&Program; 2],
    [wanted, found]: [&[Vec<Output<'_>>]; 2],
    (number, (declared, tensor)): (usize, (TensorId, TensorId)),
    algebra: &Algebra,
    differing: &mut Differing,
) -> Diagnosed<usize> {
    let is_input = number < Program::tensors_of(&original.inputs).count();
    let name = format!("the {} `{}`", if is_input { "input" } else { "output" }, lowered.tensor_name(tensor));
    let differs = |code: Code, message: String, label: String| {
        let it = Diagnostic::new(code, lowered.tensor_span(tensor), message, label);
        it.help("`hir run --reference` shows the values that differ, for inputs that you choose")
    };
    let mut count = 0;
    let is_held = |rank: usize| original.tensors[declared].mesh.contains(rank);
    for (rank, ports) in found.iter().enumerate().filter(|(rank, it)| is_held(*rank) || it[number].is_some())
    {
        // A rank has the part that it had; of an output of a program on whole tensors, any.
        let is_whole = wanted.len() == 1;
        let had = Part::of(original, &Scalars::new(original, rank), declared, Some(rank), None);
        let fits = |part: &Part| is_held(rank) && had.as_ref() == Ok(part) || is_whole && !is_input;
        let port = ports[number].as_ref().filter(|(part, _)| fits(part));
        let wanted = &wanted[if is_whole { 0 } else { rank }][number];
        let own = port.zip(wanted.as_ref()).and_then(|((part, values), (whole, wanted))| {
            Some((part, values, at(wanted, &whole.positions(&part.held)?)))
        });
        let Some((part, values, own)) = own else {
            let message = format!("rank {rank} has another part of {name}, or none");
            return Err(differs(DIFFERENT.0, message, "expected that of the original".to_owned()).into());
        };
        let both = part.indices().zip(values.iter().zip(&own));
        let faulty: Vec<_> = both.filter(|(_, (found, wanted))| !algebra.is_same(found, wanted)).collect();
        if let Some((index, _)) = faulty.first() {
            let is_unknown = |(found, wanted): &(&Element, &Element)| found.is_opaque() || wanted.is_opaque();
            // Elements with equal values differ in their faults.
            let (equal, others): (Vec<_>, Vec<_>) =
                faulty.iter().map(|it| it.1).partition(|(a, b)| a.value == b.value);
            let faults = equal.iter().flat_map(|(a, b)| algebra.sets.borrow().difference(a.faults, b.faults));
            let faults: BTreeSet<Form> = faults.collect();
            // The numbers of faults are random: of their names, the first in the alphabet is the same in each run.
            let (code, rest) = match faults.iter().map(|it| algebra.sets.borrow().name(*it)).min() {
                _ if !others.iter().all(is_unknown) => (DIFFERENT.0, DIFFERENT.1.to_owned()),
                Some(name) => {
                    (UNKNOWN.0, format!("are those of the original only where each `{name}` is finite"))
                }
                None if others.iter().any(|it| algebra.sets.borrow().has(it.0.faults, UNWRITTEN)) => {
                    (UNKNOWN.0, format!("depend on an {UNWRITTEN}"))
                }
                None => (UNKNOWN.0, UNKNOWN.1.to_owned()),
            };
            let why = format!("on rank {rank}, {} of {} elements of {name} {rest}", faulty.len(), own.len());
            let fault = differs(code, why, format!("the first one is element {index:?}"));
            if faults.is_empty() {
                return Err(fault.into());
            }
            differing.faults.extend(faults);
            differing.refusal.get_or_insert(fault.into());
        }
        count += own.len();
    }
    Ok(count)
}

/// The type and the shape of an input or output.
type Shape = (Option<DType>, Option<Vec<usize>>);

/// Returns the inputs, and then the outputs.
fn port_tensors(program: &Program) -> impl Iterator<Item = TensorId> {
    Program::tensors_of(&program.inputs).chain(Program::tensors_of(&program.outputs))
}

/// Returns the number of inputs, and what the inputs and outputs are for a rank.
fn ports(program: &Program, rank: usize) -> (usize, Vec<Shape>) {
    let part = |it| Part::of(program, &Scalars::new(program, rank), it, None, None);
    let port = |it: TensorId| (program.tensors[it].dtype, part(it).ok().map(|it| it.whole));
    (Program::tensors_of(&program.inputs).count(), port_tensors(program).map(port).collect())
}

/// Returns whether the statements of a program are operators on whole tensors, which no rank and no stream executes in parts.
fn has_whole_tensors(program: &Program) -> bool {
    let is_split = |it: ParallelType| matches!(it, ParallelType::Device(_) | ParallelType::Stream);
    let is_split = program.axes.iter().any(|it| is_split(it.1.parallel));
    let is_loop = program.stmts.iter().any(|it| matches!(it.1, Stmt::For(_)));
    // An alias, and a `select` in a loop, are of the part that a rank has.
    let is_whole = |it: &OpStmt| match it.op.def().class {
        OpClass::Allocate => !is_split || it.get(attr::ALIAS).is_none(),
        OpClass::Compute | OpClass::Elementwise | OpClass::Deallocate => true,
        _ => it.op == Op::Select && !(is_split && is_loop),
    };
    let of_rank = ["rank", "deviceIdx.x"].iter().any(|it| program.find_symbol(it).is_some());
    !of_rank && program.stmts.iter().all(|it| it.1.op().is_none_or(is_whole))
}
