//! The claim that two programs compute the same, and its proof by evaluation at random points.

use std::{cell::RefCell, iter};

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
    execute::{Outputs, Unrolled, assemble, execute},
    field::{Algebra, Element},
    order::order,
    part::Part,
    tape::Shared,
    tensor::{Values, array},
    unroll::{is_integral, unroll},
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

/// Certifies that `lowered` computes what `original` computes.
///
/// # Errors
/// The first output that differs, or what cannot be certified.
pub fn certify(original: &Program, lowered: &Program, settings: &Settings) -> Result<Claim, Fault> {
    let least = smallest_world(original).max(smallest_world(lowered));
    let ranks = settings.ranks.unwrap_or(least);
    if ranks < least || ranks > MAX_RANKS {
        let message = format!("{ranks} ranks; expected at least {least}, and at most {MAX_RANKS}");
        return Err(refuse(lowered, message, "has these ranks in its meshes and teams"));
    }
    check_signatures(original, lowered)?;
    // What a program without communications computes on whole tensors is its meaning.
    let is_whole = has_whole_tensors(original);
    let fault = |subject| move |diagnostic| Fault { subject, diagnostic };
    let before = unrolled(original, "original", if is_whole { None } else { Some(ranks) });
    let before = before.map_err(fault(Subject::Original))?;
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
        let inputs = Inputs { program: original, random: &random, whole: RefCell::default() };
        let input = |number, part: &Part| inputs.part(number, part);
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

fn refuse(lowered: &Program, message: impl Into<String>, label: &str) -> Fault {
    let it = Diagnostic::new(Code::NotCertifiable, lowered.spans.header, message, label);
    Fault { subject: Subject::Lowered, diagnostic: Box::new(it) }
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
        let ports = before.tapes.iter().zip(wanted).map(|(tape, values)| {
            let (_, part) = tape.outputs[number].as_ref()?;
            Some((values[number].as_ref()?, part))
        });
        let own = ports.clone().nth(rank).flatten().filter(|it| it.1 == part);
        let all = match own {
            Some(own) => assemble(&part.whole, [own].into_iter()),
            None => assemble(&part.whole, ports.flatten()),
        };
        let Some(all) = all else {
            let message = format!("ranks hold different values of the output `{name}`");
            let it =
                Diagnostic::new(Code::NotCertifiable, before.program.spans.header, message, "the original");
            return Err(Fault { subject: Subject::Original, diagnostic: Box::new(it) });
        };
        let places = part.places();
        let has = values.data.iter().copied().map(Some).chain(iter::repeat(None));
        let differs = |(place, has): &(&usize, Option<Element>)| has.is_none() || all[**place] != *has;
        let faulty: Vec<usize> = places.iter().zip(has).filter(differs).map(|it| *it.0).collect();
        if let Some(first) = faulty.first() {
            let index = part.whole.iter().rev().fold((*first, Vec::new()), |(rest, mut index), extent| {
                index.insert(0, rest % extent);
                (rest / extent, index)
            });
            let message = format!(
                "on rank {rank}, {} of {} elements of the output `{name}` are not those of the original",
                faulty.len(),
                places.len(),
            );
            let label = format!("the first one is element {:?}", index.1);
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
type Port = (Option<String>, Option<Vec<usize>>);

/// Checks that both programs have the same inputs and outputs.
fn check_signatures(original: &Program, lowered: &Program) -> Result<(), Fault> {
    let ports = |program: &Program| -> [Vec<Port>; 2] {
        let port = |it: TensorId| {
            let part = Part::of(program, &Scalars::new(program, 0), it, None, None);
            (program.tensors[it].dtype.map(|it| it.name().to_owned()), part.ok().map(|it| it.whole))
        };
        [&program.inputs, &program.outputs].map(|it| Program::tensors_of(it).map(port).collect())
    };
    if ports(original) == ports(lowered) {
        return Ok(());
    }
    let message = "the two programs have inputs or outputs of different numbers, shapes or element types";
    Err(refuse(lowered, message, "expected those of the original"))
}

/// The random inputs of one run.
struct Inputs<'a> {
    program: &'a Program,
    random: &'a Algebra,
    /// Whole inputs, which ranks share.
    whole: RefCell<FxHashMap<usize, Values>>,
}

impl Inputs<'_> {
    fn part(&self, number: usize, part: &Part) -> Values {
        let tensor = Program::tensors_of(&self.program.inputs).nth(number);
        let class =
            tensor.and_then(|it| self.program.tensors[it].dtype).map_or(Class::Float, |it| it.class());
        let element = |at: usize| {
            let random = self.random.apply(("input", number, at), []);
            match class {
                Class::Bool => random.below(2),
                Class::Int => random.below(INTEGERS),
                Class::Float | Class::SmallFloat | Class::Complex | Class::Composite => random,
            }
        };
        let mut known = self.whole.borrow_mut();
        let whole = known.entry(number).or_insert_with(|| {
            let elements = (0..part.whole.iter().product()).map(element).collect();
            Values { degree: 1, data: array(&part.whole, elements) }
        });
        whole.at(&part.places())
    }
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
    let of_team = |it: &Attr| if let Attr::Team(team) = it { team.iter().max().copied() } else { None };
    let of_stmt = |(_, it): (_, &Stmt)| match it {
        Stmt::Op(it) => it.attrs.iter().filter_map(|it| of_team(&it.1)).max(),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
    };
    let in_teams = program.stmts.iter().filter_map(of_stmt);
    ranks_in_meshes(program).map(|it| it.0).chain(in_teams).max().map_or(1, |it| it + 1)
}
