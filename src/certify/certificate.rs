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

/// How the programs are evaluated.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The number of ranks; `None`: the lowest one that has all ranks of meshes and teams.
    pub ranks: Option<usize>,
    /// The number of evaluations, each with other inputs.
    pub runs: u32,
    /// Selects the inputs.
    pub seed: u64,
}

/// What is certified.
#[derive(Clone, Copy, PartialEq, Debug)]
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
    /// The number of inputs of integers or truth values, which have only the values of the runs.
    pub integral_inputs: usize,
}

/// A program with what its ranks execute, and an order of it.
pub(crate) struct Unrolled<'p> {
    pub(crate) program: &'p Program,
    /// Distinguishes its unknown values from those of the other program.
    pub(crate) name: &'static str,
    pub(crate) trace: Trace<'p>,
    pub(crate) order: Order,
}

/// Inputs of integers are below it.
const INTEGERS: u64 = 1 << 16;

/// The largest number of ranks.
const MAX_RANKS: usize = 1 << 16;

/// Certifies that `lowered` computes what `original` computes.
///
/// # Errors
/// The first output that differs, or what cannot be certified.
pub fn certify(original: &Program, lowered: &Program, settings: &Settings) -> Result<Claim, Fault> {
    let fault = |is_of_original| move |diagnostic| Fault { is_of_original, diagnostic };
    let refuse = |why: String, label: &str| fault(false)(refused(lowered, None, why, label.to_owned()));
    let least = largest_rank(original).0.max(largest_rank(lowered).0).saturating_add(1);
    let ranks = settings.ranks.unwrap_or(least);
    if ranks < least || ranks > MAX_RANKS {
        let message = format!("{ranks} ranks; expected at least {least}, and at most {MAX_RANKS}");
        return Err(refuse(message, "has these ranks in its meshes and teams"));
    }
    let [inputs, outputs] = ports(original);
    if [&inputs, &outputs] != ports(lowered).each_ref() {
        let message = "the two programs have inputs or outputs of different numbers, shapes or element types";
        return Err(refuse(message.to_owned(), "expected those of the original"));
    }
    // What a program without communications computes on whole tensors is its meaning.
    let ranks_before = if has_whole_tensors(original) { None } else { Some(ranks) };
    let before = unrolled(original, "original", ranks_before).map_err(fault(true))?;
    let after = unrolled(lowered, "lowered", Some(ranks)).map_err(fault(false))?;
    let is_integral = |it: &&Shape| matches!(it.0, Class::Int | Class::Bool);
    let mut claim = Claim {
        ranks,
        accesses: after.order.accesses,
        outputs: outputs.len(),
        elements: 0,
        error_exponent: 0.0,
        integral_inputs: inputs.iter().filter(is_integral).count(),
    };
    for run in 0..settings.runs {
        let key = settings.seed.wrapping_add(u64::from(run) << 32);
        let algebra = Algebra::new(key);
        let values: Vec<Values> = inputs.iter().enumerate().map(|it| whole_input(it, &algebra)).collect();
        let wanted = execute(&before, &algebra, &values).map_err(fault(true))?;
        let found = execute(&after, &algebra, &values).map_err(fault(false))?;
        claim.elements = 0;
        for output in Program::tensors_of(&lowered.outputs).enumerate() {
            let count = compare([original, lowered], [&wanted, &found], output);
            claim.elements += count.map_err(fault(false))?;
        }
        let degrees = wanted.iter().chain(&found).flatten().flatten().map(|it| it.1.degree);
        claim.error_exponent += algebra.error_exponent(degrees.fold(1, u64::max), claim.elements).min(0.0);
    }
    Ok(claim)
}

/// Returns what the ranks of a program execute, or one rank on whole tensors.
fn unrolled<'p>(program: &'p Program, name: &'static str, ranks: Option<usize>) -> Diagnosed<Unrolled<'p>> {
    let (mut trace, count) = (Trace::default(), ranks.unwrap_or(1));
    (0..count).try_for_each(|rank| unroll(program, &mut trace, ranks.map(|_| rank), count))?;
    let order = order(program, &trace)?;
    Ok(Unrolled { program, name, trace, order })
}

/// Compares an output on all ranks, and returns how many elements it has there.
fn compare(
    [original, lowered]: [&Program; 2],
    [wanted, found]: [&[Vec<Output<'_>>]; 2],
    (number, tensor): (usize, TensorId),
) -> Diagnosed<usize> {
    let (name, mut count) = (lowered.tensor_name(tensor), 0);
    let differs = |message: String, label: String| {
        let it = Diagnostic::new(Code::ProgramsDiffer, lowered.tensor_span(tensor), message, label);
        it.help("`hir run --reference` shows the values that differ, for inputs that you choose")
    };
    let mesh = Program::tensors_of(&original.outputs).nth(number).map(|it| &original.tensors[it].mesh);
    for (rank, outputs) in found.iter().enumerate() {
        // A rank has the part that it had; of a program on whole tensors, any.
        let is_whole = wanted.len() == 1;
        let wanted = &wanted[if is_whole { 0 } else { rank }][number];
        let own = match (&outputs[number], wanted) {
            (None, _) if mesh.is_none_or(|it| !it.contains(rank)) => continue,
            (Some((part, _)), Some((had, own))) if is_whole || had == part => {
                had.positions(&part.held).map(|it| own.at(&it))
            }
            _ => None,
        };
        let (Some((part, values)), Some(own)) = (&outputs[number], own) else {
            let message = format!("rank {rank} has another part of the output `{name}`, or none");
            return Err(differs(message, "expected that of the original".to_owned()).into());
        };
        let both = part.indices().zip(values.data.iter().zip(&*own.data));
        let faulty: Vec<_> = both.filter(|(_, (found, wanted))| found != wanted).collect();
        if let Some((index, _)) = faulty.first() {
            let (some, all) = (faulty.len(), own.data.len());
            let message = format!(
                "on rank {rank}, {some} of {all} elements of the output `{name}` are not those of the original"
            );
            return Err(differs(message, format!("the first one is element {index:?}")).into());
        }
        count += own.data.len();
    }
    Ok(count)
}

/// The kind of elements and the shape of an input or output.
type Shape = (Class, Option<DType>, Option<Vec<usize>>);

/// Returns the inputs and the outputs.
fn ports(program: &Program) -> [Vec<Shape>; 2] {
    let port = |it: TensorId| {
        let part = Part::of(program, &Scalars::new(program, 0), it, None, None);
        let dtype = program.tensors[it].dtype;
        (dtype.map_or(Class::Float, DType::class), dtype, part.ok().map(|it| it.whole))
    };
    [&program.inputs, &program.outputs].map(|it| Program::tensors_of(it).map(port).collect())
}

/// Returns the random elements of an input in one run.
fn whole_input((number, (class, _, shape)): (usize, &Shape), algebra: &Algebra) -> Values {
    let element = |at: usize| {
        let random = algebra.random(("input", number, at));
        match class {
            Class::Bool => random.below(2),
            Class::Int => random.below(INTEGERS),
            Class::Float | Class::SmallFloat | Class::Complex | Class::Composite => random,
        }
    };
    let len = shape.iter().flatten().product();
    Values { degree: 1, data: (0..len).map(element).collect() }
}

/// Returns whether the statements of a program are operators on whole tensors, which no rank and no stream executes in parts.
fn has_whole_tensors(program: &Program) -> bool {
    let is_whole = |(_, it): (StmtId, &Stmt)| match it {
        Stmt::Op(it) if it.op == Op::Select => true,
        Stmt::Op(it) => {
            let class = it.op.def().class;
            matches!(class, OpClass::Compute | OpClass::Elementwise | OpClass::Allocate | OpClass::Deallocate)
        }
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => true,
    };
    let of_rank = ["rank", "deviceIdx.x"].iter().any(|it| program.find_symbol(it).is_some());
    !of_rank && program.stmts.iter().all(is_whole)
}
