//! Reports scalars that programs use and do not define: what each one is used for, and values with which the
//! programs can be planned.

mod candidates;
mod peers;
mod uses;

pub(super) use peers::mirror;

use grammar::{
    Binding, Code, Diagnostic, Expr, ExprId, LineIndex, Program, Stmt, SymbolId, list_text, nearest,
    shell_word,
};
use indexmap::{IndexMap, IndexSet};

use self::{
    candidates::Candidates,
    uses::{ScalarRole, ScalarUse, uses},
};

/// The maximum number of plans built to find values.
const MAX_TRIALS: usize = 48;

/// The maximum number of scalars that the first line of an error lists.
const MAX_NAMES: usize = 16;

/// The maximum number of statements of all ranks in all of these plans.
const MAX_TRIAL_STATEMENTS: usize = 100_000;

/// A function that plans the programs of a world. Its errors have the rank whose program they are located in.
pub(super) type TryPlan<'t> = &'t dyn Fn(&[(&Program, &LineIndex)]) -> Result<(), Vec<(usize, Diagnostic)>>;

/// A scalar without a value.
struct UnboundScalar {
    /// The rank whose program it is in.
    rank: usize,
    symbol: SymbolId,
    name: String,
    /// All its uses; never empty.
    uses: Vec<ScalarUse>,
}

/// The scalars that programs use and do not define.
#[derive(Default)]
pub(super) struct UnboundReport {
    /// The errors about them, each with the rank whose program it is located in.
    pub(super) faults: Vec<(usize, Diagnostic)>,
    /// Values with which the programs can be planned, if such values were found.
    pub(super) proposed: Vec<Binding>,
}

/// Returns an error for the scalars that each program of a world uses and does not define, with suggested
/// values. The last error has the flags that bind all of them. `plans` tries values.
pub(super) fn unbound_diagnostics(programs: &[(&Program, &LineIndex)], plans: TryPlan<'_>) -> UnboundReport {
    let same = |a: usize, b: usize| std::ptr::eq(programs[a].0, programs[b].0);
    let mut missing = Vec::new();
    for rank in (0..programs.len()).filter(|rank| *rank == 0 || !same(*rank, rank - 1)) {
        missing.extend(uses(programs[rank].0, rank));
    }
    if missing.is_empty() {
        return UnboundReport::default();
    }
    let values = values(programs, &missing, plans);
    let is_misnamed =
        |name: &str| missing.iter().any(|it| it.name == name && misnamed(programs[it.rank].0, it).is_some());
    let bindable = values.iter().filter(|(name, _)| is_flag_name(name) && !is_misnamed(name));
    let bindable = bindable.map(|(name, value)| Binding {
        name: name.clone(),
        value: value.clone(),
        is_optional: false,
    });
    let bindable: Vec<Binding> = bindable.collect();
    let mut faults: Vec<(usize, Diagnostic)> = Vec::new();
    let mut plain: Vec<&UnboundScalar> = Vec::new();
    for it in &missing {
        match misnamed(programs[it.rank].0, it) {
            Some(fault) => faults.push((it.rank, fault)),
            None => plain.push(it),
        }
    }
    for scalars in plain.chunk_by(|a, b| a.rank == b.rank) {
        let Some(first) = scalars.first() else { continue };
        let (program, lines) = programs[first.rank];
        let help =
            |it: &UnboundScalar| help_text(program, it, values.get(&it.name).map_or("0", String::as_str));
        let span = |it: &UnboundScalar| program.symbol_span(it.symbol);
        let error = |message: String| {
            Diagnostic::new(Code::UnboundSymbol, span(first), message, "the text does not define it")
        };
        let it = if let [one] = scalars {
            error(format!("`{}` has no definition: it is {}", one.name, one.uses[0].what)).help(help(one))
        } else {
            let names: Vec<String> = scalars.iter().map(|it| format!("`{}`", it.name)).collect();
            let list = list_text(names.iter().map(String::as_str), MAX_NAMES, "and");
            let note = |it: &&UnboundScalar| {
                let line = lines.line(span(it).start);
                format!("`{}` (line {line}) is {}: {}", it.name, it.uses[0].what, help(it))
            };
            let notes: Vec<String> = scalars.iter().map(note).collect();
            error(format!("{} scalars have no definition: {list}", scalars.len()))
                .help("give each of them a value, for example the one that is proposed here")
                .note(notes.join("\n"))
        };
        faults.push((first.rank, it));
    }
    if let Some((_, last)) = faults.last_mut().filter(|_| !bindable.is_empty()) {
        last.remedy = Some(flags_text(&bindable).into_boxed_str());
    }
    UnboundReport { faults, proposed: bindable }
}

/// Returns the flags of the command line that bind scalars.
pub fn flags_text(bindings: &[Binding]) -> String {
    let flag = |it: &Binding| format!("--set {}={}", it.name, shell_word(&it.value));
    bindings.iter().map(flag).collect::<Vec<_>>().join(" ")
}

/// Returns the error for a name that is the index of a loop elsewhere, or that is close to a name which has a value.
fn misnamed(program: &Program, it: &UnboundScalar) -> Option<Diagnostic> {
    let span = program.symbol_span(it.symbol);
    let name = &it.name;
    let loops = || {
        program.stmts.iter().filter_map(|(id, stmt)| match stmt {
            Stmt::For(own) => Some((program.stmt_span(id), own.index)),
            Stmt::Op(_) | Stmt::Let(..) | Stmt::If(_) => None,
        })
    };
    if let Some((place, _)) = loops().find(|(_, index)| *index == it.symbol) {
        let message = format!("`{name}` is used outside the loop that defines it");
        let fault = Diagnostic::new(Code::UnboundSymbol, span, message, format!("it is {}", it.uses[0].what));
        return Some(fault.label(place, format!("`{name}` has a value only in the body of this loop")));
    }
    // nvFuser numbers its scalars, so a name such as `i84` is not a misspelled one, except in a loop with another
    // numbered index.
    let is_numbered =
        |it: &str| it.get(1..).is_some_and(|it| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit()));
    let indices: Vec<&str> = loops().map(|(_, index)| program.symbols[index].as_str()).collect();
    let defined = program.definitions.keys().map(|it| program.symbols[*it].as_str());
    let names: Vec<&str> =
        indices.iter().copied().chain(["rank", "numberOfStreams"]).chain(defined).collect();
    let near = nearest(name, names.iter().copied()).filter(|_| !is_numbered(name))?;
    let message = format!("`{name}` has no definition: it is {}", it.uses[0].what);
    let known: IndexSet<&str> = names.iter().copied().collect();
    let label = format!("the names with a value are {}", list_text(known.iter().copied(), 8, "and"));
    Some(Diagnostic::new(Code::UnboundSymbol, span, message, label).help(format!("did you mean `{near}`?")))
}

/// Returns a help text on how to bind the scalar, in terms of its use.
fn help_text(program: &Program, it: &UnboundScalar, value: &str) -> String {
    if !is_flag_name(&it.name) {
        return "the extents of a ragged axis are known only at run time, and hir cannot run them".to_owned();
    }
    let flag = format!("`--set {}={}`", it.name, shell_word(value));
    let define = format!("or add `{} = …;` to an `Index definitions:` section", it.name);
    match &it.role() {
        ScalarRole::Extent { divisors, is_input } => {
            let divides = match divisors.as_slice() {
                [] => String::new(),
                all => {
                    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
                    format!(", a multiple of {},", all.join(" and "))
                }
            };
            let file = if *is_input { ", or with an input file, whose shape determines it" } else { "" };
            format!("give it a number{divides} with {flag}{file}")
        }
        ScalarRole::LoopBound => format!("give it a number of iterations with {flag}"),
        ScalarRole::Peer { partner, .. } => match partner {
            Some(partner) if !is_symbol(program, *partner, it.symbol) => {
                let partner = grammar::expr_text(program, *partner);
                format!(
                    "the other transfer has `peer={partner}`; bind it to the rank at the other end with {flag}, {define}"
                )
            }
            Some(_) | None => format!("bind it to a rank, for example with {flag}, {define}"),
        },
        ScalarRole::Root { team } => {
            format!("give it a member of the team, 0 to {}, with {flag}", team.saturating_sub(1))
        }
        ScalarRole::Index { .. } => format!("give it an index of that axis with {flag}, {define}"),
        ScalarRole::Stream => format!("give it the number of a stream with {flag}, {define}"),
        ScalarRole::Range { .. } => format!("give it an index of the operand's axis with {flag}, {define}"),
        ScalarRole::Condition => format!("give it `true` or `false` with {flag}, {define}"),
        ScalarRole::Operand => format!("give it a value with {flag}, {define}"),
    }
}

fn is_symbol(program: &Program, expr: ExprId, symbol: SymbolId) -> bool {
    matches!(program.exprs[expr], Expr::Symbol(it) if it == symbol)
}

/// Returns whether a flag can bind the name. The extents of a ragged axis are named by the text of their
/// tensor.
fn is_flag_name(name: &str) -> bool {
    name.bytes().all(|it| it.is_ascii_alphanumeric() || matches!(it, b'_' | b'.'))
}

impl UnboundScalar {
    /// Returns the use that determines the value best.
    fn role(&self) -> &ScalarRole {
        let strongest = self.uses.iter().map(|it| &it.role).min_by_key(|it| it.priority());
        strongest.unwrap_or(&ScalarRole::Operand)
    }
}

/// Returns a value for each name: values with which the programs can be planned, or else those with which
/// planning gets furthest.
fn values(
    programs: &[(&Program, &LineIndex)],
    missing: &[UnboundScalar],
    plans: TryPlan<'_>,
) -> IndexMap<String, String> {
    let candidates = Candidates::of(programs, missing);
    let mut budget = Budget { trials: MAX_TRIALS, statements: MAX_TRIAL_STATEMENTS, plans };
    let mut best = candidates.first();
    let Some(mut reached) = try_values(programs, &best, &mut budget) else { return best };
    for extent in &candidates.extents {
        let other = candidates.with_extents(&best, *extent);
        match try_values(programs, &other, &mut budget) {
            None => return other,
            Some(place) if place > reached => (best, reached) = (other, place),
            Some(_) => (),
        }
    }
    for (name, options) in &candidates.options {
        for option in options {
            let mut other = best.clone();
            other.insert(name.clone(), option.clone());
            match try_values(programs, &other, &mut budget) {
                None => return other,
                Some(place) if place > reached => (best, reached) = (other, place),
                Some(_) => (),
            }
        }
    }
    best
}

/// The remaining budget for trials.
struct Budget<'t> {
    trials: usize,
    statements: usize,
    plans: TryPlan<'t>,
}

/// Plans the programs with these values. Returns `None` if they can be planned, and otherwise the source
/// offset that planning reached; 0 if the budget is used up.
fn try_values(
    programs: &[(&Program, &LineIndex)],
    values: &IndexMap<String, String>,
    budget: &mut Budget,
) -> Option<u32> {
    let cost: usize = programs.iter().map(|(program, _)| program.stmts.len() + 1).sum();
    if budget.trials == 0 || budget.statements < cost {
        return Some(0);
    }
    budget.trials -= 1;
    budget.statements -= cost;
    let mut bound: Vec<(&Program, Program)> = Vec::new();
    for (program, _) in programs {
        if bound.last().is_some_and(|(it, _)| std::ptr::eq(*it, *program)) {
            continue;
        }
        let mut copy = (*program).clone();
        for (name, value) in values {
            let Some(symbol) = copy.find_symbol(name) else { continue };
            if let Some(value) = grammar::read_scalar(&mut copy, value) {
                copy.definitions.insert(symbol, value);
            }
        }
        bound.push((program, copy));
    }
    let copy =
        |program: &Program| bound.iter().find(|(it, _)| std::ptr::eq(*it, program)).map(|(_, copy)| copy);
    let world: Vec<(&Program, &LineIndex)> =
        programs.iter().filter_map(|(program, lines)| Some((copy(program)?, *lines))).collect();
    let faults = (budget.plans)(&world).err()?;
    Some(faults.first().map_or(0, |(_, it)| it.span().start))
}
