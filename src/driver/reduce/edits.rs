//! Proposes programs with parts removed: statements, branches, loops and values of the header.

use std::collections::{HashMap, HashSet};

use grammar::{
    Arena, Attr, BlockId, Domains, Id, OpClass, OpStmt, Program, Stmt, StmtId, TensorId, UnitId,
    attr::AttrName,
};
use passes::{Settings, Verify};

use super::{MAX_SINGLE, Reducer};

/// The largest number of communications that are removed in pairs. Each pair costs a test.
const MAX_PAIRED: usize = 16;

/// Returns every block, outer blocks first.
pub(super) fn blocks(program: &Program) -> Vec<BlockId> {
    let mut found: Vec<BlockId> = program.bodies().collect();
    let mut at = 0;
    while let Some(block) = found.get(at).copied() {
        found.extend(program.block(block).iter().flat_map(|it| program.inner_blocks(*it)));
        at += 1;
    }
    found
}

/// Returns every statement, block by block.
fn all_stmts(program: &Program) -> Vec<StmtId> {
    blocks(program).into_iter().flat_map(|block| program.block(block).to_vec()).collect()
}

/// Returns every operator statement.
fn operators(program: &Program) -> impl Iterator<Item = (StmtId, &OpStmt)> {
    all_stmts(program).into_iter().filter_map(|stmt| Some((stmt, program.stmts[stmt].op()?)))
}

/// Replaces a statement by others.
fn replace(program: &mut Program, stmt: StmtId, with: &[StmtId]) {
    for block in blocks(program) {
        if let Some(at) = program.block(block).iter().position(|it| *it == stmt) {
            program.blocks[block].splice(at..=at, with.iter().copied());
        }
    }
}

fn remove(program: &mut Program, is_removed: &dyn Fn(&Program, &OpStmt) -> bool) {
    for block in blocks(program) {
        let is_kept = |it: &StmtId| !program.op(*it).is_some_and(|it| is_removed(program, it));
        let kept = program.block(block).iter().copied().filter(is_kept).collect();
        program.blocks[block] = kept;
    }
}

/// Removes runs of statements of each block.
pub(super) fn remove_statements(reducer: &mut Reducer<'_>) -> bool {
    let mut helped = false;
    let mut at = 0;
    while at < blocks(&reducer.best.program).len() {
        helped |= reducer.drop_chunks(
            &|program| blocks(program).get(at).map_or(0, |block| program.block(*block).len()),
            &|program, run| {
                if let Some(block) = blocks(program).get(at) {
                    program.blocks[*block].drain(run);
                }
            },
        );
        at += 1;
    }
    helped
}

/// Removes all statements that mention a tensor.
pub(super) fn remove_tensors(reducer: &mut Reducer<'_>) -> bool {
    let program = &reducer.best.program;
    let tensors = operators(program).flat_map(|(_, it)| it.mentions(program));
    let mut names: Vec<String> = tensors.map(|it| program.tensor_name(it)).collect();
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    reducer.attempt_groups(names, 1, &|program, group| {
        let group: HashSet<&String> = group.iter().collect();
        remove(program, &|program, it| {
            it.mentions(program).any(|it| group.contains(&program.tensor_name(it)))
        });
    })
}

/// Removes communications with their waits, alone and in pairs, because a send must be removed with its
/// receive.
pub(super) fn remove_communications(reducer: &mut Reducer<'_>) -> bool {
    let posts = |it: &OpStmt| it.op.def().class == OpClass::Communicate;
    let posted = operators(&reducer.best.program).filter(|(_, it)| posts(it));
    let mut numbers: Vec<u32> = posted.filter_map(|(_, it)| it.number).collect();
    let mut seen = HashSet::new();
    numbers.retain(|number| seen.insert(*number));
    let without = |program: &mut Program, gone: &[u32]| {
        let gone: HashSet<&u32> = gone.iter().collect();
        remove(program, &|_, it| {
            let waits = |(_, attr): &(AttrName, Attr)| matches!(attr, Attr::Work(it) if gone.contains(it));
            posts(it) && it.number.is_some_and(|it| gone.contains(&it)) || it.attrs.iter().any(waits)
        });
    };
    let mut helped = reducer.attempt_groups(numbers.clone(), 1, &without);
    numbers.truncate(MAX_PAIRED);
    for (at, first) in numbers.iter().enumerate() {
        for second in &numbers[at + 1..] {
            helped |= reducer.attempt(&|program| without(program, &[*first, *second]));
        }
    }
    helped
}

/// Replaces a branch by one of its sides, or removes its ELSE.
pub(super) fn simplify_branches(reducer: &mut Reducer<'_>) -> bool {
    let is_branch = |program: &Program, stmt: StmtId| matches!(program.stmts[stmt], Stmt::If(_));
    edit_each(
        reducer,
        &is_branch,
        &[
            &|program, stmt| {
                if let Stmt::If(it) = &program.stmts[stmt] {
                    let then = program.block(it.then_block).to_vec();
                    replace(program, stmt, &then);
                }
            },
            &|program, stmt| {
                if let Stmt::If(it) = &program.stmts[stmt] {
                    let other = it.else_block.map(|other| program.block(other).to_vec()).unwrap_or_default();
                    replace(program, stmt, &other);
                }
            },
            &|program, stmt| {
                if let Stmt::If(it) = &mut program.stmts[stmt] {
                    it.else_block = None;
                }
            },
        ],
    )
}

/// Replaces a loop by its first iteration, or halves its trip count.
pub(super) fn shorten_loops(reducer: &mut Reducer<'_>) -> bool {
    let is_loop = |program: &Program, stmt: StmtId| matches!(program.stmts[stmt], Stmt::For(_));
    edit_each(
        reducer,
        &is_loop,
        &[
            &|program, stmt| {
                if let Stmt::For(it) = program.stmts[stmt].clone() {
                    let first = program.add_stmt(Stmt::Let(it.index, it.start), program.stmt_span(stmt));
                    let body: Vec<StmtId> =
                        [first].into_iter().chain(program.block(it.body).to_vec()).collect();
                    replace(program, stmt, &body);
                }
            },
            &|program, stmt| {
                let Stmt::For(it) = program.stmts[stmt].clone() else { return };
                if let (Some(start), Some(stop)) = (program.constant(it.start), program.constant(it.stop)) {
                    let stop = program.intern_int(i64::midpoint(start, stop));
                    program.stmts[stmt] = Stmt::For(grammar::ir::For { axis: None, stop, ..it });
                }
            },
        ],
    )
}

/// An edit of one statement.
type EditOne = dyn Fn(&mut Program, StmtId);

/// Tries the edits on each chosen statement. After a successful edit, retries at the same index, where the
/// next statement may have moved.
fn edit_each(
    reducer: &mut Reducer<'_>,
    chosen: &dyn Fn(&Program, StmtId) -> bool,
    edits: &[&EditOne],
) -> bool {
    let find = |program: &Program, at: usize| {
        all_stmts(program).into_iter().filter(|it| chosen(program, *it)).nth(at)
    };
    let mut helped = false;
    let mut at = 0;
    while find(&reducer.best.program, at).is_some() {
        let attempt = |edit: &&EditOne| {
            reducer.attempt(&|program| {
                if let Some(stmt) = find(program, at) {
                    edit(program, stmt);
                }
            })
        };
        if edits.iter().any(attempt) { helped = true } else { at += 1 }
    }
    helped
}

/// Removes outputs if there are many: the statements that define an output cannot be removed, and each would be tried.
pub(super) fn remove_many_outputs(reducer: &mut Reducer<'_>) -> bool {
    reducer.best.program.outputs.len() > MAX_SINGLE && remove_outputs(reducer)
}

fn remove_outputs(reducer: &mut Reducer<'_>) -> bool {
    reducer.drop_chunks(&|it| it.outputs.len(), &|it, run| drop(it.outputs.drain(run)))
}

/// Removes inputs, outputs, options and definitions of scalars.
pub(super) fn shrink_header(reducer: &mut Reducer<'_>) -> bool {
    let outputs = remove_outputs(reducer);
    let inputs = reducer.drop_chunks(&|it| it.inputs.len(), &|it, run| drop(it.inputs.drain(run)));
    let options = reducer.drop_chunks(&|it| it.options.len(), &|it, run| drop(it.options.drain(run)));
    let definitions =
        reducer.drop_chunks(&|it| it.definitions.len(), &|it, run| drop(it.definitions.drain(run)));
    outputs || inputs || options || definitions
}

/// Canonicalizes the program if that makes the text shorter.
pub(super) fn canonicalize(reducer: &mut Reducer<'_>) -> bool {
    let Ok(calls) = passes::parse("canonicalize") else { return false };
    let settings = Settings { verify: Verify::Structural, roundtrip: false };
    let length = reducer.best.text.len();
    reducer.attempt(&|program| {
        let mut cleaned = program.clone();
        let done = passes::run(&mut cleaned, &calls, settings, &mut |_| ()).is_ok();
        if done && grammar::print(&cleaned).len() < length {
            *program = cleaned;
        }
    })
}

/// Removes what nothing references any more: HostUnits, and the domains of unused tensors, which would still
/// be printed.
pub(super) fn drop_unreferenced(program: &mut Program) {
    let posted: HashSet<UnitId> = operators(program)
        .flat_map(|(_, it)| &it.attrs)
        .filter_map(|(_, attr)| match attr {
            Attr::Unit(unit) => Some(*unit),
            _ => None,
        })
        .collect();
    retain_units(program, &posted);
    let mut named: HashSet<TensorId> = Program::tensors_of(&program.inputs).collect();
    named.extend(Program::tensors_of(&program.outputs));
    named.extend(operators(program).flat_map(|(_, it)| it.mentions(program)));
    for tensor in program.tensors.ids().filter(|it| !named.contains(it)).collect::<Vec<_>>() {
        let it = &mut program.tensors[tensor];
        it.domains = Domains { logical: it.loop_domain.clone(), ..Domains::default() };
    }
}

fn retain_units(program: &mut Program, kept: &HashSet<UnitId>) {
    if program.units.ids().all(|unit| kept.contains(&unit)) {
        return;
    }
    let mut units = Arena::default();
    let mut renamed: HashMap<UnitId, UnitId> = HashMap::new();
    for unit in program.units.ids().filter(|it| kept.contains(it)) {
        renamed.insert(unit, units.push(program.units[unit].clone()));
    }
    // A tensor of a removed HostUnit keeps an id that no unit has. Otherwise it would be taken for a tensor
    // of the container.
    let nobody = UnitId::from_index(program.units.len());
    program.units = units;
    for tensor in program.tensors.ids().collect::<Vec<_>>() {
        let unit = &mut program.tensors[tensor].unit;
        *unit = unit.map(|it| renamed.get(&it).copied().unwrap_or(nobody));
    }
    for stmt in program.stmts.ids().collect::<Vec<_>>() {
        if let Stmt::Op(it) = &mut program.stmts[stmt] {
            for (_, attr) in &mut it.attrs {
                if let Attr::Unit(unit) = attr {
                    *unit = renamed.get(unit).copied().unwrap_or(nobody);
                }
            }
        }
    }
}
