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
    /// Selects the primes, the inputs and the unknown functions, to repeat an evaluation; `None`: random ones, for which no text can have
    /// been written.
    pub seed: Option<u64>,
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
}

/// A program with what its ranks execute, and an order of it.
pub(crate) struct Unrolled<'p> {
    pub(crate) program: &'p Program,
    /// Distinguishes its unknown values from those of the other program.
    pub(crate) name: &'static str,
    pub(crate) trace: Trace<'p>,
    pub(crate) order: Order,
}

/// The highest probability of an error with which something is certified, as the exponent of two.
const LEAST_EXPONENT: f64 = -20.0;

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
    let accesses = after.order.accesses;
    let mut claim = Claim { ranks, accesses, outputs: outputs.len(), elements: 0, error_exponent: 0.0 };
    let key = settings.seed.unwrap_or_else(|| RandomState::new().hash_one("key"));
    for run in 0..settings.runs {
        let algebra = Algebra::new(key.wrapping_add(run.into()));
        let values: Vec<Values> = inputs.iter().enumerate().map(|it| whole_input(it, &algebra)).collect();
        let wanted = execute(&before, &algebra, &values).map_err(fault(true))?;
        let found = execute(&after, &algebra, &values).map_err(fault(false))?;
        let mut compared = [0; 2];
        for (side, tensors) in [&lowered.inputs, &lowered.outputs].into_iter().enumerate() {
            for port in Program::tensors_of(tensors).enumerate() {
                let count = compare([original, lowered], [&wanted, &found], side, port);
                compared[side] += count.map_err(fault(false))?;
            }
        }
        claim.elements = compared[1];
        claim.error_exponent += algebra.error_exponent(compared[0] + compared[1]).min(0.0);
    }
    if claim.error_exponent > LEAST_EXPONENT {
        let why = format!(
            "these runs prove nothing: the probability of an error is at most 2^{:.0}",
            claim.error_exponent.ceil()
        );
        return Err(refuse(why, "computes products of too many factors; more `--runs` lower it"));
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

/// Compares the final contents of an input (side 0) or output (side 1) on all ranks, and returns how many elements it has there.
fn compare(
    [original, lowered]: [&Program; 2],
    [wanted, found]: [&[[Vec<Output<'_>>; 2]]; 2],
    side: usize,
    (number, tensor): (usize, TensorId),
) -> Diagnosed<usize> {
    let (name, mut count) = (lowered.tensor_name(tensor), 0);
    let (kind, tensors) = [("input", &original.inputs), ("output", &original.outputs)][side];
    let differs = |message: String, label: String| {
        let it = Diagnostic::new(Code::ProgramsDiffer, lowered.tensor_span(tensor), message, label);
        it.help("`hir run --reference` shows the values that differ, for inputs that you choose")
    };
    let declared = Program::tensors_of(tensors).nth(number);
    for (rank, ports) in found.iter().enumerate() {
        // A rank has the part that it had; of an output of a program on whole tensors, any.
        let is_whole = wanted.len() == 1;
        let wanted = &wanted[if is_whole { 0 } else { rank }][side][number];
        let declared = declared.filter(|it| original.tensors[*it].mesh.contains(rank));
        let part = |it| Part::of(original, &Scalars::new(original, rank), it, Some(rank), None).ok();
        let had = declared.and_then(part);
        let own = match (&ports[side][number], wanted) {
            (None, _) if declared.is_none() => continue,
            (Some((part, _)), Some((whole, own))) if had.as_ref() == Some(*part) || is_whole && side == 1 => {
                whole.positions(&part.held).map(|it| own.at(&it))
            }
            _ => None,
        };
        let (Some((part, values)), Some(own)) = (&ports[side][number], own) else {
            let message = format!("rank {rank} has another part of the {kind} `{name}`, or none");
            return Err(differs(message, "expected that of the original".to_owned()).into());
        };
        let both = part.indices().zip(values.data.iter().zip(&*own.data));
        let faulty: Vec<_> = both.filter(|(_, (found, wanted))| found != wanted).collect();
        if let Some((index, _)) = faulty.first() {
            let (some, all) = (faulty.len(), own.data.len());
            let message = format!(
                "on rank {rank}, {some} of {all} elements of the {kind} `{name}` are not those of the original"
            );
            return Err(differs(message, format!("the first one is element {index:?}")).into());
        }
        count += own.data.len();
    }
    Ok(count)
}

/// The type and the shape of an input or output.
type Shape = (Option<DType>, Option<Vec<usize>>);

/// Returns the inputs and the outputs.
fn ports(program: &Program) -> [Vec<Shape>; 2] {
    let port = |it: TensorId| {
        let part = Part::of(program, &Scalars::new(program, 0), it, None, None);
        (program.tensors[it].dtype, part.ok().map(|it| it.whole))
    };
    [&program.inputs, &program.outputs].map(|it| Program::tensors_of(it).map(port).collect())
}

/// Returns the random elements of an input in one run. Truth values are random elements, too: what holds for all of them holds for 0 and 1.
fn whole_input((number, (_, shape)): (usize, &Shape), algebra: &Algebra) -> Values {
    let len = shape.iter().flatten().product();
    Values { size: 1, data: (0..len).map(|at| algebra.random(("input", number, at))).collect() }
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
