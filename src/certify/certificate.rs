//! The claim that two programs compute the same, and its proof by evaluation at random points.

use std::{cell::RefCell, collections::BTreeSet};

use grammar::{
    attr,
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
    execute::World,
    field::{Algebra, Element},
    order::check_order,
    part::Part,
    tape::Tape,
    unroll::{is_integral, unroll},
    view::Values,
};

/// Which of the two programs a fault is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// The program before lowering.
    Original,
    /// The program after lowering.
    Lowered,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Self::Original => "original",
            Self::Lowered => "lowered",
        }
    }
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

/// The largest number of ranks.
const MAX_RANKS: usize = 1 << 16;

/// The outputs of a program: by number and rank, with the part that the rank has.
type Outputs<'t> = Vec<Vec<Option<(Values, &'t Part)>>>;

/// Certifies that `lowered` computes what `original` computes.
///
/// # Errors
/// The first output that differs, or what cannot be certified.
pub fn certify(original: &Program, lowered: &Program, settings: &Settings) -> Result<Claim, Fault> {
    let both = [(Subject::Original, original), (Subject::Lowered, lowered)];
    let least = smallest_world(original).max(smallest_world(lowered));
    let ranks = settings.ranks.unwrap_or(least);
    if ranks < least || ranks > MAX_RANKS {
        let message = format!("{ranks} ranks; expected at least {least}, and at most {MAX_RANKS}");
        let label = "has these ranks in its meshes and teams";
        let it = Diagnostic::new(Code::NotCertifiable, lowered.spans.header, message, label);
        return Err(Fault { subject: Subject::Lowered, diagnostic: Box::new(it) });
    }
    let mut tapes: Vec<Vec<Tape>> = Vec::new();
    for (subject, program) in both {
        // What a program without communications computes on whole tensors is its meaning.
        let all: Result<_, _> = if subject == Subject::Original && has_whole_tensors(program) {
            unroll(program, None, 1).map(|it| vec![it])
        } else {
            (0..ranks).map(|rank| unroll(program, Some(rank), ranks)).collect()
        };
        tapes.push(all.map_err(|diagnostic| Fault { subject, diagnostic })?);
    }
    check_signatures(original, lowered)?;
    let accesses = check_order(lowered, &tapes[1]);
    let accesses = accesses.map_err(|diagnostic| Fault { subject: Subject::Lowered, diagnostic })?;
    let integral = |it: &TensorId| is_integral(original, *it);
    let mut claim = Claim {
        ranks,
        accesses,
        outputs: original.outputs.len(),
        elements: 0,
        error_exponent: 0.0,
        integral_inputs: Program::tensors_of(&original.inputs).filter(integral).count(),
    };
    let limit = both.iter().map(|it| index_limit(it.1)).min().unwrap_or(1);
    for run in 0..settings.runs {
        let key = settings.seed.wrapping_add(u64::from(run) << 32);
        let (algebra, random) = (Algebra::new(key), Algebra::new(!key));
        let inputs = Inputs { program: original, random: &random, limit, whole: RefCell::default() };
        let mut outputs: Vec<Outputs<'_>> = Vec::new();
        for ((subject, program), tapes) in both.into_iter().zip(&tapes) {
            let mut world = World::new(program, tapes, &algebra, subject.name(), &|number, part| {
                inputs.part(number, part)
            });
            world.run().map_err(|diagnostic| Fault { subject, diagnostic })?;
            let of_rank = |number| (0..tapes.len()).map(|rank| world.output(rank, number)).collect();
            outputs.push((0..claim.outputs).map(of_rank).collect());
        }
        let [wanted, found] = &outputs[..] else { break };
        let mut degree = 0;
        claim.elements = 0;
        for (number, tensor) in Program::tensors_of(&lowered.outputs).enumerate() {
            claim.elements += compare((original, lowered), tensor, &wanted[number], &found[number])?;
            let parts = wanted[number].iter().chain(&found[number]).flatten();
            degree = parts.map(|it| it.0.degree).fold(degree, u64::max);
        }
        claim.error_exponent += algebra.error_exponent(degree, claim.elements).min(0.0);
    }
    Ok(claim)
}

/// Compares an output on all ranks, and returns how many elements it has there.
fn compare(
    (original, lowered): (&Program, &Program),
    tensor: TensorId,
    wanted: &[Option<(Values, &Part)>],
    found: &[Option<(Values, &Part)>],
) -> Result<usize, Fault> {
    let name = lowered.tensor_name(tensor);
    let has_same_parts = wanted.len() == found.len()
        && wanted.iter().zip(found).all(|(a, b)| a.as_ref().map(|it| it.1) == b.as_ref().map(|it| it.1));
    // With equal parts, what one rank has is compared with what it had. Otherwise all ranks have to agree on the original.
    let mut whole: FxHashMap<usize, Element> = FxHashMap::default();
    for (values, part) in wanted.iter().flatten().filter(|_| !has_same_parts) {
        for (place, it) in part.indices().into_iter().zip(values.data.iter()) {
            if whole.insert(place, *it).is_some_and(|before| before != *it) {
                let message = format!("ranks hold different values of the output `{name}`");
                let it =
                    Diagnostic::new(Code::NotCertifiable, original.spans.header, message, "the original");
                return Err(Fault { subject: Subject::Original, diagnostic: Box::new(it) });
            }
        }
    }
    let mut count = 0;
    for (rank, found) in found.iter().enumerate() {
        let (Some((values, part)), wanted) = (found, wanted.get(rank)) else { continue };
        let differs = |at: &usize, place: usize| match wanted {
            Some(Some((wanted, _))) if has_same_parts => wanted.data.get(*at) != values.data.get(*at),
            _ => whole.get(&place) != values.data.get(*at),
        };
        let faulty = part.indices().into_iter().enumerate().filter(|(at, place)| differs(at, *place));
        let faulty: Vec<usize> = faulty.map(|it| it.1).collect();
        count += values.data.len();
        if let Some(first) = faulty.first() {
            let index = part.whole.iter().rev().fold((*first, Vec::new()), |(rest, mut index), extent| {
                index.insert(0, rest % extent);
                (rest / extent, index)
            });
            let all = values.data.len();
            let message = format!(
                "on rank {rank}, {} of {all} elements of the output `{name}` are not those of the original",
                faulty.len()
            );
            let label = format!("the first one is element {:?}", index.1);
            let it = Diagnostic::new(Code::ProgramsDiffer, lowered.tensor_span(tensor), message, label);
            let it =
                it.help("`hir run --reference` shows the values that differ, for inputs that you choose");
            return Err(Fault { subject: Subject::Lowered, diagnostic: Box::new(it) });
        }
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
    let label = "expected those of the original";
    let it = Diagnostic::new(Code::NotCertifiable, lowered.spans.header, message, label);
    Err(Fault { subject: Subject::Lowered, diagnostic: Box::new(it) })
}

/// The random inputs of one run.
struct Inputs<'a> {
    program: &'a Program,
    random: &'a Algebra,
    /// Integers are below it, so that they are valid indices.
    limit: u64,
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
                Class::Int => random.below(self.limit),
                Class::Float | Class::SmallFloat | Class::Complex | Class::Composite => random,
            }
        };
        let generate = |len: usize| Values {
            degree: 1,
            ..Values::new(part.whole.clone(), (0..len).map(element).collect())
        };
        let mut known = self.whole.borrow_mut();
        let whole = known.entry(number).or_insert_with(|| generate(part.whole.iter().product()));
        whole.part(part)
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

/// Returns the length of the shortest axis that the program indexes with integers of tensors.
fn index_limit(program: &Program) -> u64 {
    let scalars = Scalars::new(program, 0);
    let indexed = program.stmts.iter().filter_map(|(_, it)| {
        let Stmt::Op(it) = it else { return None };
        let args = it.tensor_operands();
        let dim = || it.get(attr::DIM).and_then(|it| usize::try_from(scalars.int(it).ok()?).ok());
        let (table, dim) = match it.op {
            Op::Embedding => (*args.get(1)?, 0),
            Op::IndexPutAccumulate => (*args.first()?, 0),
            Op::IndexSelect | Op::TakeAlongAxis | Op::TorchGather => (*args.first()?, dim()?),
            _ => return None,
        };
        let axis = program.dimensions(table).nth(dim)?;
        u64::try_from(scalars.int(program.axes[axis].extent).ok()?).ok()
    });
    indexed.min().unwrap_or(1 << 16).max(1)
}

/// Returns the lowest number of ranks that has all ranks of meshes and teams.
fn smallest_world(program: &Program) -> usize {
    let mut ranks: BTreeSet<usize> = ranks_in_meshes(program).map(|it| it.0).collect();
    for (_, stmt) in program.stmts.iter() {
        if let Stmt::Op(it) = stmt {
            ranks.extend(it.attrs.iter().flat_map(|(_, it)| match it {
                Attr::Team(team) => team.as_slice(),
                _ => &[],
            }));
        }
    }
    ranks.last().map_or(1, |it| it + 1)
}
