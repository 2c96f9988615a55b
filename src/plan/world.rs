//! Plans for all ranks of a world: symbols are bound, every rank is planned, the plans are linked.

use std::collections::HashSet;

use grammar::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{Attr, ExprId, Operand, Program, Stmt, Stream, SymbolId, TensorId},
    span::LineIndex,
};

use super::{Plan, build::build_rank, comm::largest_rank, limits, link::link, scalar::Scalars};

/// The smallest world that holds every mesh and team of a program.
pub fn smallest_world(program: &Program) -> usize {
    largest_rank(program).saturating_add(1)
}

/// Plans a program for every rank of a world.
///
/// # Errors
/// All symbols without a value; else, for every rank, the first statement that cannot be planned, once where ranks
/// agree; else transfers whose two sides disagree.
pub fn build(program: &Program, lines: &LineIndex, world: usize) -> Result<Vec<Plan>, Vec<Diagnostic>> {
    limits::check_world(program, world).map_err(|fault| vec![fault])?;
    let programs = vec![(program, lines); world];
    build_each(&programs).map_err(|faults| faults.into_iter().map(|(_, fault)| fault).collect())
}

/// Plans a world in which rank `r` runs `programs[r]`.
///
/// # Errors
/// As `build`, each with the rank whose program it is about.
pub fn build_each(programs: &[(&Program, &LineIndex)]) -> Result<Vec<Plan>, Vec<(usize, Diagnostic)>> {
    let world = programs.len();
    let same = |a: usize, b: usize| std::ptr::eq(programs[a].0, programs[b].0);
    let mut faults: Vec<(usize, Diagnostic)> = Vec::new();
    for rank in (0..world).filter(|rank| *rank == 0 || !same(*rank, rank - 1)) {
        limits::check_world(programs[rank].0, world).map_err(|fault| vec![(rank, fault)])?;
        faults.extend(unbound_symbols(programs[rank].0).into_iter().map(|fault| (rank, fault)));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let mut ranks = Vec::with_capacity(world);
    let mut instructions = 0;
    for (rank, (program, lines)) in programs.iter().enumerate() {
        match build_rank(program, lines, rank, world) {
            Ok(it) => {
                instructions += it.0.code.len();
                ranks.push(it);
            }
            Err(fault) => {
                let alike = |(other, it): &(usize, Diagnostic)| {
                    same(*other, rank) && it.code == fault.code && it.span() == fault.span()
                };
                if !faults.iter().any(alike) {
                    faults.push((rank, *fault));
                }
            }
        }
        if instructions > limits::WORLD_INSTRUCTIONS {
            let limit = limits::WORLD_INSTRUCTIONS;
            let message = format!("{rank} of {world} ranks unroll to more than {limit} instructions");
            faults
                .push((rank, Diagnostic::new(Code::TooLarge, program.spans.header, message, "this program")));
            break;
        }
    }
    // What the ranks that do not come to a resharding lack is its consequence.
    if faults.iter().any(|(_, it)| it.code == Code::DivergentReshard) {
        faults.retain(|(_, it)| it.code == Code::DivergentReshard);
    }
    if faults.is_empty() {
        let programs: Vec<&Program> = programs.iter().map(|(program, _)| *program).collect();
        faults = link(&programs, &mut ranks);
    }
    match faults.is_empty() {
        true => Ok(ranks.into_iter().map(|(plan, _)| plan).collect()),
        false => Err(faults),
    }
}

/// Every scalar that the program needs and nothing defines, with the way to supply it.
fn unbound_symbols(program: &Program) -> Vec<Diagnostic> {
    let scalars = Scalars::new(program, 0);
    let mut bound: HashSet<SymbolId> = HashSet::new();
    let mut used: Vec<(ExprId, String)> = Vec::new();
    let mut tensors: Vec<TensorId> = Program::tensors_of(&program.inputs).collect();
    tensors.extend(Program::tensors_of(&program.outputs));
    let mut visit = |stmt: &Stmt| match stmt {
        Stmt::For(it) => {
            bound.insert(it.index);
            used.extend([it.start, it.stop].map(|bound| (bound, "a loop bound".to_owned())));
        }
        Stmt::Let(symbol, value) => {
            bound.insert(*symbol);
            used.push((*value, "a definition".to_owned()));
        }
        Stmt::If(it) => used.push((it.cond, "a predicate".to_owned())),
        Stmt::Op(it) => {
            for operand in it.args.iter().chain(&it.outs) {
                match operand {
                    Operand::Tensor(tensor) => tensors.push(*tensor),
                    Operand::Scalar(scalar) => {
                        used.push((*scalar, format!("an operand of {}", it.op.name())))
                    }
                    Operand::Stream(stream) => {
                        if let Stream::Index(index) = program.streams[*stream] {
                            used.push((index, "a stream's index".to_owned()));
                        }
                    }
                }
            }
            for (name, attr) in &it.attrs {
                match attr {
                    // The interpreter does not look at it either: the shape tells.
                    Attr::Scalar(_) if *name == "size" => (),
                    Attr::Scalar(scalar) => used.push((*scalar, format!("`{name}` of {}", it.op.name()))),
                    Attr::Ranges(ranges) => {
                        used.extend(ranges.iter().flatten().map(|it| (*it, "a range of slice".to_owned())));
                    }
                    _ => (),
                }
            }
        }
    };
    if let Some(body) = program.body {
        program.walk(body, &mut |stmt| visit(&program.stmts[stmt]));
    }
    for tensor in tensors.into_iter().filter(|tensor| program.tensors[*tensor].unit.is_none()) {
        let what = format!("an extent of {}", program.tensor_name(tensor));
        used.extend(program.dimensions(tensor).map(|axis| (program.axes[axis].extent, what.clone())));
    }
    let mut reported = HashSet::new();
    let mut diagnostics = Vec::new();
    let mut pending = used;
    pending.reverse();
    while let Some((expr, what)) = pending.pop() {
        let mut symbols = Vec::new();
        program.symbols_of(expr, &mut symbols);
        for symbol in symbols {
            if bound.contains(&symbol) || !reported.insert(symbol) {
                continue;
            }
            if let Some(definition) = program.definitions.get(&symbol) {
                pending.push((*definition, format!("the definition of {}", program.symbols[symbol])));
                continue;
            }
            if !scalars.is_known(symbol) {
                let name = &program.symbols[symbol];
                let it = Diagnostic::new(
                    Code::UnboundSymbol,
                    program.symbol_span(symbol),
                    format!("`{name}` has no definition: it is {what}"),
                    "the text does not say what it is",
                );
                diagnostics.push(it.help(way_out(name, &what)));
            }
        }
    }
    diagnostics.sort_by_key(Diagnostic::span);
    diagnostics
}

fn way_out(name: &str, what: &str) -> String {
    match what.starts_with("an extent") {
        true => format!("give it with `--set {name}=1024`, or with an input file of that shape"),
        false => format!(
            "give it with `--set {name}='(rank+streamIdx)%8'` (an expression of `rank` and loop indices), or add \
             `{name} = …;` to an `Index definitions:` section"
        ),
    }
}
