//! Builds the plans of all ranks of a world: binds symbols, plans every rank, and matches, checks and lowers
//! the communications.

use std::sync::Arc;

use grammar::{
    Binding, Code, Diagnostic, LineIndex, Program, Source, Stmt, StmtId, attr, has_errors, largest_rank,
};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    CallerUses, CommNames, EARLY_EXITS, Plan,
    build_rank::build_rank,
    io,
    limits::{Limits, MAX_WORLD_INSTRUCTIONS},
    posted::{PostedPlan, PostedWorld},
    sync::{self, CommMatching, World},
    teams::Teams,
    transport, unbound, uniform,
};

/// Returns the smallest world size that contains all meshes and teams of a program.
pub fn smallest_world(program: &Program) -> usize {
    largest_rank(program).0.saturating_add(1)
}

/// Returns the fault of a program of one rank (`%options rank=`) that another rank would run, and this rank.
pub fn one_rank_fault(programs: &[(&Program, &LineIndex)]) -> Option<(usize, Diagnostic)> {
    programs.iter().enumerate().find_map(|(rank, (program, _))| {
        let own = program.own_rank().filter(|own| *own != rank as i64)?;
        let message = format!("this is the program of rank {own} only, and rank {rank} would run it");
        let label = "`%options rank=` says so";
        let it = Diagnostic::new(Code::Disagreement, program.spans.header, message, label);
        let help =
            "give each rank its own program, `hir-run --program 0=a.hir,1=b.hir`, or use that of all ranks";
        Some((rank, it.help(help)))
    })
}

/// Reads, verifies and plans the first container of a text for every rank of a world.
///
/// # Errors
/// The errors of the text, or those of [`build`].
pub fn plans_of_text(text: &str, world: usize) -> Result<World, Vec<Diagnostic>> {
    let source = Source::new("text".to_owned(), text.to_owned());
    let (programs, diagnostics) = source.programs();
    match programs.first() {
        Some(program) if !has_errors(&diagnostics) => build(program, &source.lines, world),
        Some(_) | None => Err(diagnostics),
    }
}

/// Plans a program for every rank of a world.
///
/// # Errors
/// All symbols without a value. If there are none: for every rank, the first statement that cannot be
/// planned, reported once for ranks with the same error. If there are none: communications whose parts
/// disagree.
pub fn build(program: &Program, lines: &LineIndex, world: usize) -> Result<World, Vec<Diagnostic>> {
    build_with_limits(program, lines, world, &Limits::default())
}

/// Like `build`, with limits that the caller chooses.
///
/// # Errors
/// As for `build`.
pub fn build_with_limits(
    program: &Program,
    lines: &LineIndex,
    world: usize,
    limits: &Limits,
) -> Result<World, Vec<Diagnostic>> {
    limits.check_world(program, world).map_err(|fault| vec![fault])?;
    let programs = vec![(program, lines); world];
    if let Some((_, fault)) = one_rank_fault(&programs) {
        return Err(vec![fault]);
    }
    let faults = |them: Vec<(usize, Diagnostic)>| them.into_iter().map(|(_, fault)| fault).collect();
    build_per_rank(&programs, limits, &CallerUses::default()).map_err(faults)
}

/// Plans a world in which rank `r` runs `programs[r]`.
///
/// # Errors
/// As for `build`, each with the rank whose program it is located in.
pub fn build_per_rank(
    programs: &[(&Program, &LineIndex)],
    limits: &Limits,
    uses: &CallerUses<'_>,
) -> Result<World, Vec<(usize, Diagnostic)>> {
    let world = programs.len();
    for rank in (0..world).filter(|rank| *rank == 0 || !run_same_program(programs, *rank, rank - 1)) {
        limits.check_world(programs[rank].0, world).map_err(|fault| vec![(rank, fault)])?;
    }
    let faults =
        unbound::unbound_diagnostics(programs, &|programs| plan_each(programs, limits, uses).map(|_| ()))
            .faults;
    if faults.is_empty() { plan_each(programs, limits, uses) } else { Err(faults) }
}

/// Returns the values that `build` proposes for the scalars that a program does not define.
pub fn proposed_bindings(
    program: &Program,
    lines: &LineIndex,
    world: usize,
    limits: &Limits,
) -> Vec<Binding> {
    if limits.check_world(program, world).is_err() {
        return Vec::new();
    }
    let uses = CallerUses::default();
    let plans = |programs: &[(&Program, &LineIndex)]| plan_each(programs, limits, &uses).map(|_| ());
    unbound::unbound_diagnostics(&vec![(program, lines); world], &plans).proposed
}

/// Returns whether two ranks run the same program.
fn run_same_program(programs: &[(&Program, &LineIndex)], a: usize, b: usize) -> bool {
    std::ptr::eq(programs[a].0, programs[b].0)
}

/// Like `build_per_rank`, for programs without unbound scalars.
fn plan_each(
    programs: &[(&Program, &LineIndex)],
    limits: &Limits,
    uses: &CallerUses<'_>,
) -> Result<World, Vec<(usize, Diagnostic)>> {
    let (given, world) = (programs, programs.len());
    let mut faults: Vec<(usize, Diagnostic)> = Vec::new();
    let mut posted = PostedWorld::default();
    let (mut instructions, mut bytes) = (0, 0);
    let teams = Teams::new(world);
    let mut names: Vec<Arc<CommNames>> = Vec::with_capacity(world);
    let mut ids: FxHashMap<*const Program, usize> = FxHashMap::default();
    for (rank, (program, lines)) in programs.iter().enumerate() {
        match build_rank((program, lines), rank, &teams, uses) {
            Ok(PostedPlan { plan: mut it, requests, divergent }) => {
                let plans = &mut posted.plans;
                it.program_id = *ids.entry(std::ptr::from_ref(*program)).or_insert(rank);
                let known = names.get(it.program_id).map(Arc::clone);
                it.comm_names = known.unwrap_or_else(|| CommNames::from_program(program, lines).into());
                names.push(Arc::clone(&it.comm_names));
                it.smallest_world = match plans.get(it.program_id) {
                    Some(known) => known.smallest_world,
                    None => smallest_world(program),
                };
                it.share_tables_with(plans.last());
                if rank == 0
                    && let Some(fault) = projected_fault(programs, &it, limits, &divergent)
                {
                    return Err(vec![(0, fault)]);
                }
                instructions += it.code.len();
                bytes += it.bytes();
                plans.push(it);
                posted.requests.push(requests);
            }
            Err(fault) => {
                let alike = |(other, it): &(usize, Diagnostic)| {
                    run_same_program(programs, *other, rank)
                        && it.code == fault.code
                        && it.span() == fault.span()
                };
                if !faults.iter().any(alike) {
                    faults.push((rank, *fault));
                }
            }
        }
        if instructions > limits.instructions {
            let message = format!(
                "{} of {world} ranks unroll to more than {} instructions",
                rank + 1,
                limits.instructions
            );
            // As many as if the others had as many each, and no more than can be allowed: they may have fewer.
            let needed = (instructions / (rank + 1)).saturating_mul(world);
            let needed = needed.min(MAX_WORLD_INSTRUCTIONS).max(instructions);
            let text = (message, "this program");
            let fault = Limits::too_many_instructions(needed, program.spans.header, text, FEWER_INSTRUCTIONS);
            faults.push((rank, fault));
            break;
        }
        if let Err(fault) = limits.check_memory(program, rank + 1, bytes) {
            faults.push((rank, fault));
            break;
        }
    }
    // If not all ranks reach a resharding operator, other errors may be consequences of that.
    if faults.iter().any(|(_, it)| it.code == Code::DivergentReshard) {
        faults.retain(|(_, it)| it.code == Code::DivergentReshard);
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let programs: Vec<&Program> = programs.iter().map(|(program, _)| *program).collect();
    let mut faults = io::signature_mismatch(&programs, &posted.plans);
    let matched = CommMatching::from_plans(&posted.plans);
    faults.extend(sync::agreement(&programs, &posted, &matched));
    faults.extend(uniform::unequal_conditions(&programs, &posted.plans, &matched));
    if !faults.is_empty() {
        return Err(faults);
    }
    let has_exits = posted.plans.iter().any(|it| !it.exits.is_empty()) && uses.iterations.is_none();
    let world = transport::lower(&programs, posted, matched, limits)?;
    let early = |it| plan_each(given, limits, &CallerUses { iterations: Some(it), ..*uses });
    let early = EARLY_EXITS.into_iter().filter(|_| has_exits).map(early).collect::<Result<_, _>>()?;
    Ok(world.with_early_exits(early))
}

/// What makes a world of too many instructions smaller.
const FEWER_INSTRUCTIONS: &str = "run it on fewer ranks, or with shorter loops: bind their bounds with `--set`, and bound the steps of \
                                  rings with `overlap.most-steps=…`";

/// Returns the fault of a world that exceeds a limit with the instructions alone that all ranks have because rank 0 has them: those
/// of statements on all ranks, outside of branches and loops that depend on the rank. Planning all ranks would take long before it
/// failed.
fn projected_fault(
    programs: &[(&Program, &LineIndex)],
    first: &Plan,
    limits: &Limits,
    divergent: &FxHashSet<StmtId>,
) -> Option<Diagnostic> {
    let (world, program) = (programs.len(), programs[0].0);
    let bytes = first.bytes();
    let exceeds = |code: usize, bytes: usize| {
        code.saturating_mul(world) > limits.instructions || bytes.saturating_mul(world) > limits.memory
    };
    if !exceeds(first.code.len(), bytes) || (1..world).any(|rank| !run_same_program(programs, rank, 0)) {
        return None;
    }
    let mut counts: FxHashMap<StmtId, usize> = FxHashMap::default();
    for it in &first.code {
        if let Some(stmt) = first.origins[it.origin as usize].stmt {
            *counts.entry(stmt).or_default() += 1;
        }
    }
    counts.retain(|stmt, _| !divergent.contains(stmt) && is_on_all_ranks(program, *stmt, world));
    let common: usize = counts.values().sum();
    let bytes = (bytes as u128 * common as u128 / first.code.len().max(1) as u128) as usize;
    if !exceeds(common, bytes) {
        return None;
    }
    if common.saturating_mul(world) <= limits.instructions {
        return limits.check_memory(program, world, bytes.saturating_mul(world)).err();
    }
    let (stmt, times) = counts.into_iter().max_by_key(|(stmt, count)| (*count, std::cmp::Reverse(*stmt)))?;
    let message = format!(
        "each of {world} ranks unrolls to at least {common} instructions, and the limit of all ranks together is {}",
        limits.instructions
    );
    let label = format!("this makes {times} instructions of each rank");
    let (needed, span) = (common.saturating_mul(world), program.stmt_span(stmt));
    Some(Limits::too_many_instructions(needed, span, (message, label), FEWER_INSTRUCTIONS))
}

/// Returns whether no mesh and no team of a statement leaves out a rank.
fn is_on_all_ranks(program: &Program, stmt: StmtId, world: usize) -> bool {
    let Stmt::Op(it) = &program.stmts[stmt] else { return true };
    let mut found = it.get(attr::TEAM).is_none_or(|team| team.len() >= world);
    for (tensor, _) in it.tensor_uses(program) {
        let devices = &program.tensors[tensor].mesh.devices;
        found &= devices.is_empty() || devices.len() >= world;
    }
    found
}
