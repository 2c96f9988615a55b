//! The claim that two programs compute the same, and its proof by evaluation at random points.

use std::cell::RefCell;

use grammar::{
    codes::Code,
    diagnostic::Diagnostic,
    dtype::Class,
    ir::{Attr, Program, Stmt, TensorId},
    ops::{Op, OpClass},
    ranks_in_meshes,
    scalars::Scalars,
};
use rustc_hash::FxHashMap;

use crate::{
    execute::{Unrolled, execute},
    field::{Algebra, Element},
    operators::is_integral,
    order::order,
    part::Part,
    tape::Shared,
    tensor::{Values, array},
    unroll::unroll,
};

/// Which of the two programs a fault is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// The program before lowering.
    Original,
    /// The program after lowering.
    Lowered,
}

/// The reason why nothing is certified.
#[derive(Debug)]
pub struct Fault {
    /// The program in whose text the labels are.
    pub subject: Subject,
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

/// Inputs of integers are below it.
const INTEGERS: u64 = 1 << 16;

/// The largest number of ranks.
const MAX_RANKS: usize = 1 << 16;

/// The outputs of each rank, by number; `None` if the rank has no part.
type Outputs = Vec<Vec<Option<Values>>>;

/// Certifies that `lowered` computes what `original` computes.
///
/// # Errors
/// The first output that differs, or what cannot be certified.
pub fn certify(original: &Program, lowered: &Program, settings: &Settings) -> Result<Claim, Fault> {
    let least = smallest_world(original).max(smallest_world(lowered));
    let ranks = settings.ranks.unwrap_or(least);
    if ranks < least || ranks > MAX_RANKS {
        let message = format!("{ranks} ranks; expected at least {least}, and at most {MAX_RANKS}");
        return Err(refuse(Subject::Lowered, lowered, &message, "has these ranks in its meshes and teams"));
    }
    if ports(original) != ports(lowered) {
        let message = "the two programs have inputs or outputs of different numbers, shapes or element types";
        return Err(refuse(Subject::Lowered, lowered, message, "expected those of the original"));
    }
    // What a program without communications computes on whole tensors is its meaning.
    let own_ranks = if has_whole_tensors(original) { None } else { Some(ranks) };
    let fault = |subject| move |diagnostic| Fault { subject, diagnostic };
    let before = unrolled(original, "original", own_ranks).map_err(fault(Subject::Original))?;
    let after = unrolled(lowered, "lowered", Some(ranks)).map_err(fault(Subject::Lowered))?;
    let integral = |it: &TensorId| is_integral(original, *it);
    let mut claim = Claim {
        ranks,
        accesses: after.schedule.accesses,
        outputs: original.outputs.len(),
        elements: 0,
        error_exponent: 0.0,
        integral_inputs: Program::tensors_of(&original.inputs).filter(integral).count(),
    };
    for run in 0..settings.runs {
        let key = settings.seed.wrapping_add(u64::from(run) << 32);
        let (algebra, random) = (Algebra::new(key), Algebra::new(!key));
        // Whole inputs, which ranks share.
        let known: RefCell<FxHashMap<usize, Values>> = RefCell::default();
        let input = |number: usize, part: &Part| {
            let mut known = known.borrow_mut();
            known
                .entry(number)
                .or_insert_with(|| whole_input(original, number, &random, part))
                .at(&part.places())
        };
        let wanted = execute(&before, &algebra, &input).map_err(fault(Subject::Original))?;
        let found = execute(&after, &algebra, &input).map_err(fault(Subject::Lowered))?;
        claim.elements = 0;
        for output in Program::tensors_of(&lowered.outputs).enumerate() {
            claim.elements += compare((&before, &wanted), (&after, &found), output)?;
        }
        let degrees = wanted.iter().chain(&found).flatten().flatten().map(|it| it.degree);
        claim.error_exponent += algebra.error_exponent(degrees.fold(1, u64::max), claim.elements).min(0.0);
    }
    Ok(claim)
}

/// Returns what the ranks of a program execute, or one rank on whole tensors.
fn unrolled<'p>(
    program: &'p Program,
    name: &'static str,
    ranks: Option<usize>,
) -> Result<Unrolled<'p>, Box<Diagnostic>> {
    let (mut shared, count) = (Shared::default(), ranks.unwrap_or(1));
    let tape = |rank| unroll(program, ranks.map(|_| rank), count, &mut shared);
    let tapes = (0..count).map(tape).collect::<Result<Vec<_>, _>>()?;
    let schedule = order(program, &tapes, &shared)?;
    Ok(Unrolled { program, name, tapes, shared, schedule })
}

fn refuse(subject: Subject, program: &Program, message: &str, label: &str) -> Fault {
    let it = Diagnostic::new(Code::NotCertifiable, program.spans.header, message, label);
    Fault { subject, diagnostic: Box::new(it) }
}

/// Compares an output on all ranks, and returns how many elements it has there.
fn compare(
    (before, wanted): (&Unrolled<'_>, &Outputs),
    (after, found): (&Unrolled<'_>, &Outputs),
    (number, tensor): (usize, TensorId),
) -> Result<usize, Fault> {
    let name = after.program.tensor_name(tensor);
    let mut count = 0;
    for (rank, tape) in after.tapes.iter().enumerate() {
        let Some(((_, part), values)) = tape.outputs[number].as_ref().zip(found[rank][number].as_ref())
        else {
            continue;
        };
        // What a rank has is compared with what it had, if that is the same part. Otherwise all ranks have to agree on the original.
        let ports = before.tapes.iter().zip(wanted);
        let ports =
            ports.map(|(tape, values)| Some((values[number].as_ref()?, &tape.outputs[number].as_ref()?.1)));
        let own = ports.clone().nth(rank).flatten().filter(|it| it.1 == part);
        let sources: Vec<(&Values, &Part)> = own.map_or_else(|| ports.flatten().collect(), |it| vec![it]);
        let mut all: Vec<Option<Element>> = vec![None; part.whole.iter().product()];
        let elements =
            sources.into_iter().flat_map(|(values, part)| part.places().into_iter().zip(&values.data));
        for (place, it) in elements {
            if all[place].replace(*it).is_some_and(|before| before != *it) {
                let message = format!("ranks hold different values of the output `{name}`");
                return Err(refuse(Subject::Original, before.program, &message, "the original"));
            }
        }
        let places = part.places();
        let differs = |(place, it): &(&usize, &Element)| all[**place] != Some(**it);
        let faulty: Vec<usize> = places.iter().zip(&values.data).filter(differs).map(|it| *it.0).collect();
        if let Some(first) = faulty.first() {
            let (mut rest, mut index) = (*first, part.whole.clone());
            for at in index.iter_mut().rev() {
                (rest, *at) = (rest / *at, rest % *at);
            }
            let (some, all) = (faulty.len(), places.len());
            let message = format!(
                "on rank {rank}, {some} of {all} elements of the output `{name}` are not those of the original"
            );
            let label = format!("the first one is element {index:?}");
            let it = Diagnostic::new(Code::ProgramsDiffer, after.program.tensor_span(tensor), message, label);
            let it =
                it.help("`hir run --reference` shows the values that differ, for inputs that you choose");
            return Err(Fault { subject: Subject::Lowered, diagnostic: Box::new(it) });
        }
        count += places.len();
    }
    Ok(count)
}

/// The element type and the shape of an input or output.
type Port = (Option<&'static str>, Option<Vec<usize>>);

/// Returns the inputs and the outputs.
fn ports(program: &Program) -> [Vec<Port>; 2] {
    let port = |it: TensorId| {
        let part = Part::of(program, &Scalars::new(program, 0), it, None, None);
        (program.tensors[it].dtype.map(|it| it.name()), part.ok().map(|it| it.whole))
    };
    [&program.inputs, &program.outputs].map(|it| Program::tensors_of(it).map(port).collect())
}

/// Returns the random elements of an input in one run.
fn whole_input(program: &Program, number: usize, random: &Algebra, Part { whole, .. }: &Part) -> Values {
    let dtype = Program::tensors_of(&program.inputs).nth(number).and_then(|it| program.tensors[it].dtype);
    let class = dtype.map_or(Class::Float, |it| it.class());
    let element = |at: usize| {
        let random = random.apply(("input", number, at), []);
        match class {
            Class::Bool => random.below(2),
            Class::Int => random.below(INTEGERS),
            Class::Float | Class::SmallFloat | Class::Complex | Class::Composite => random,
        }
    };
    Values { degree: 1, data: array(whole, (0..whole.iter().product()).map(element).collect()) }
}

/// Returns whether the statements of a program are operators on whole tensors, which no rank and no stream executes in parts.
fn has_whole_tensors(program: &Program) -> bool {
    let is_whole = |it: &Stmt| match it {
        Stmt::Op(it) => match it.op.def().class {
            OpClass::Compute | OpClass::Elementwise | OpClass::Allocate | OpClass::Deallocate => true,
            _ => it.op == Op::Select,
        },
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => true,
    };
    let of_rank = ["rank", "deviceIdx.x"].iter().any(|it| program.find_symbol(it).is_some());
    !of_rank && program.stmts.iter().all(|it| is_whole(it.1))
}

/// Returns the lowest number of ranks that has all ranks of meshes and teams.
fn smallest_world(program: &Program) -> usize {
    let attrs =
        program.stmts.iter().flat_map(|(_, it)| if let Stmt::Op(it) = it { &it.attrs[..] } else { &[] });
    let of_team = |it: &Attr| if let Attr::Team(team) = it { team.iter().max().copied() } else { None };
    let in_teams = attrs.filter_map(|it| of_team(&it.1));
    ranks_in_meshes(program).map(|it| it.0).chain(in_teams).max().map_or(1, |it| it + 1)
}
