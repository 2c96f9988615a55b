//! Reads programs from files and plans them, or returns the diagnostics.

use grammar::{
    Binding, Code, Diagnostic, Program, Source, Span, TensorId, apply_bindings,
    dump_cleanup::rank_of_container, has_errors, ir::P2P_PROTOCOL, list_text,
};

use super::{
    extents::bind_extents,
    failure::{JobFailure, Result},
    inputs::InputFlag,
    program_files::ProgramFiles,
};
use crate::{session::Session, source};
use hir_plan::{Plan, World, assume_scalars, opaque_call_diagnostic};
use hir_tensor::data::{Data, UnsupportedDtype};

/// Planned programs: one for all ranks, or one for each rank.
pub struct Prepared {
    /// The source texts.
    pub sources: Vec<Source>,
    /// The plans of all ranks.
    pub world: World,
    /// Warnings, by source text.
    pub warnings: Vec<Vec<Diagnostic>>,
    /// Span of the header of the first program.
    pub header: Span,
    /// The smallest world that contains all meshes and teams.
    smallest_world: usize,
}

impl Prepared {
    /// Returns a note if a launcher started more processes than the meshes and teams of the program name.
    pub fn unused_ranks(&self, processes: Option<usize>) -> Option<String> {
        let (processes, named) = (processes?, self.smallest_world);
        (named > 1 && processes > named).then(|| {
            format!(
                "the meshes and teams of the program name {named} ranks, but there are {processes} processes: start {named}"
            )
        })
    }
}

/// Transforms a program of a source text.
pub type PassRunner<'a> = dyn Fn(&mut Program, &Source) -> Result<()> + 'a;

/// Options for preparing a program.
pub struct PrepareOptions<'a> {
    /// The session that reads the files.
    pub session: &'a Session,
    /// Number of ranks; `None`: the smallest world that contains all meshes.
    pub ranks: Option<usize>,
    /// Limits on the size of the world.
    pub limits: hir_plan::limits::Limits,
    /// Index of the container in a text with several.
    pub container: Option<usize>,
    /// Files with the fusions of kernels (`--fusions`).
    pub fusions: &'a [String],
    /// Values of symbols (`--set`).
    pub bindings: &'a [Binding],
    /// Whether scalars without a value get the proposed ones.
    pub assume: bool,
    /// True if the program is a reference. Bindings of symbols that it does not have are then ignored.
    pub is_reference: bool,
    /// Input flags, which bind symbolic extents.
    pub inputs: &'a [InputFlag],
    /// What the caller does with tensors when the program has ended.
    pub uses: hir_plan::CallerUses<'a>,
    /// Transforms the program before it is planned.
    pub passes: &'a PassRunner<'a>,
}

/// Programs that are not planned yet.
pub struct LoadedPrograms {
    /// The programs, by file.
    pub programs: Vec<Program>,
    /// The number of ranks with which they run.
    pub ranks: usize,
}

/// Reads, verifies and transforms the programs, and compares their meshes with the number of ranks. It does not plan
/// them.
///
/// # Errors
/// A file cannot be read, a program is rejected, or the world is too small.
pub fn check(texts: &ProgramFiles, setup: &PrepareOptions<'_>) -> Result<LoadedPrograms> {
    let loaded = load_all(texts, setup)?;
    let (sources, programs): (Vec<_>, Vec<_>) =
        loaded.into_iter().map(|(source, program, _)| (source, program)).unzip();
    let (ranks, _) = world_size(texts, setup, &programs, &sources)?;
    Ok(LoadedPrograms { programs, ranks })
}

/// Returns the number of ranks of a job, and the smallest world that contains all meshes and teams of its programs.
fn world_size(
    texts: &ProgramFiles,
    setup: &PrepareOptions<'_>,
    programs: &[Program],
    sources: &[Source],
) -> Result<(usize, usize)> {
    let worlds = programs.iter().map(hir_plan::smallest_world);
    // Of several, the first program with the greatest rank.
    let (smallest, name) =
        worlds.zip(sources).rev().max_by_key(|it| it.0).map_or((1, ""), |(world, it)| (world, &it.name));
    let ranks = match texts {
        ProgramFiles::One(_) if programs.len() == 1 => setup.ranks.unwrap_or(smallest),
        ProgramFiles::One(_) | ProgramFiles::PerRank(_) => programs.len(),
    };
    if ranks < smallest {
        let last = smallest.saturating_sub(1);
        let message = match texts {
            ProgramFiles::One(_) if programs.len() == 1 => {
                hir_plan::limits::too_few_ranks_text(&format!("`{name}`"), smallest, ranks)
            }
            ProgramFiles::One(_) => format!(
                "a mesh or team of a program of `{name}` contains rank {last}, but the file has programs of {ranks} ranks only: run one program for all ranks with `--container`"
            ),
            ProgramFiles::PerRank(_) => format!(
                "a mesh or team of `{name}` contains rank {last}, but only {ranks} ranks have a program: name programs of {smallest} ranks or more with `--program`"
            ),
        };
        return Err(JobFailure::Environment(message));
    }
    if let Some(wanted) = setup.ranks.filter(|it| *it != ranks) {
        let what = match texts {
            ProgramFiles::One(path) => format!("`{path}` has"),
            ProgramFiles::PerRank(_) => "`--program` names".to_owned(),
        };
        let message = format!("{what} the programs of {ranks} ranks, not {wanted}: start {ranks} ranks");
        return Err(JobFailure::Environment(message));
    }
    Ok((ranks, smallest))
}

/// Reads, verifies, transforms and plans the programs.
///
/// # Errors
/// A file cannot be read, a program is rejected, or the world is too small.
pub fn prepare(texts: &ProgramFiles, setup: &PrepareOptions<'_>) -> Result<Prepared> {
    let (mut sources, mut programs, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
    for (source, program, diagnostics) in load_all(texts, setup)? {
        sources.push(source);
        programs.push(program);
        warnings.push(diagnostics);
    }
    // Each program takes the bindings of its own scalars. A binding that matches no program is an error.
    if programs.len() > 1 && !setup.is_reference {
        let is_unmatched = |it: &&Binding| !programs.iter().any(|program| it.applies_to(program));
        let unmatched: Vec<Binding> = setup.bindings.iter().filter(is_unmatched).cloned().collect();
        if let Err(fault) = apply_bindings(&mut programs[0], &unmatched) {
            return Err(JobFailure::bad_option(*fault));
        }
    }
    let (ranks, smallest) = world_size(texts, setup, &programs, &sources)?;
    // Checked before anything is allocated for the ranks.
    let largest =
        (0..programs.len()).max_by_key(|text| hir_plan::smallest_world(&programs[*text])).unwrap_or(0);
    if let Err(fault) = setup.limits.check_world(&programs[largest], ranks) {
        let mut diagnostics = warnings.swap_remove(largest);
        diagnostics.push(fault);
        return Err(JobFailure::Rejected(sources.swap_remove(largest), diagnostics));
    }
    let text_of = |rank: usize| rank.min(sources.len() - 1);
    let worlds: Vec<_> =
        (0..ranks).map(|rank| (&programs[text_of(rank)], &sources[text_of(rank)].lines)).collect();
    let unsupported = |plans: &[Plan]| {
        let mut calls = plans.iter().map(|it| (text_of(it.rank), it));
        let call =
            calls.find_map(|(text, it)| Some((text, vec![opaque_call_diagnostic(&programs[text], it)?])));
        call.or_else(|| unsupported_dtypes(&programs, plans, &text_of))
    };
    if let Some((rank, fault)) = hir_plan::one_rank_fault(&worlds) {
        let text = text_of(rank);
        let mut diagnostics = warnings.swap_remove(text);
        diagnostics.push(fault);
        return Err(JobFailure::Rejected(sources.swap_remove(text), diagnostics));
    }
    match hir_plan::build_per_rank(&worlds, &setup.limits, &setup.uses) {
        Ok(world) => match unsupported(&world) {
            Some((text, faults)) => {
                let mut diagnostics = warnings.swap_remove(text);
                diagnostics.extend(faults);
                Err(JobFailure::Rejected(sources.swap_remove(text), diagnostics))
            }
            None => Ok(Prepared {
                sources,
                world,
                warnings,
                header: programs[0].spans.header,
                smallest_world: smallest,
            }),
        },
        Err(faults) => {
            let text = text_of(faults.first().map_or(0, |(rank, _)| *rank));
            let mut diagnostics = warnings.swap_remove(text);
            // Scalars are not asked for if no values of them make the program run.
            let flags = faults.last().and_then(|(_, it)| it.remedy.as_ref());
            if let ([program], Some(flags)) = (&programs[..], flags) {
                let check = format!("hir-opt {} --check {flags}", sources[text].name);
                if let Some(fault) = hir_plan::unconditional_opaque_call_diagnostic(program, &check) {
                    diagnostics.push(fault);
                    return Err(JobFailure::Rejected(sources.swap_remove(text), diagnostics));
                }
            }
            diagnostics
                .extend(faults.into_iter().filter(|(rank, _)| text_of(*rank) == text).map(|(_, it)| it));
            Err(JobFailure::Rejected(sources.swap_remove(text), diagnostics))
        }
    }
}

/// Returns diagnostics for tensors with an element type that no engine can compute with, for the first
/// program that has any.
fn unsupported_dtypes(
    programs: &[Program],
    plans: &[Plan],
    text_of: &dyn Fn(usize) -> usize,
) -> Option<(usize, Vec<Diagnostic>)> {
    let unheld = |it: &&hir_plan::Buffer| Data::zeros(it.dtype, 0).is_err();
    let first = plans.iter().find(|plan| plan.buffers.iter().any(|it| unheld(&it)))?;
    let (text, buffers) = (text_of(first.rank), first.buffers.iter().filter(unheld));
    let program = &programs[text];
    let mut faults: Vec<Diagnostic> = Vec::new();
    for buffer in buffers {
        let is_it = |id: &TensorId| {
            program.tensor_name(*id) == buffer.name && program.tensors[*id].dtype == Some(buffer.dtype)
        };
        let span =
            program.tensors.ids().find(is_it).map_or(program.spans.header, |it| program.tensor_span(it));
        if faults.iter().all(|it| it.span() != span) {
            let message = format!("hir cannot run `{}`: {}", buffer.name, UnsupportedDtype(buffer.dtype));
            faults.push(Diagnostic::new(Code::Unsupported, span, message, "this element type"));
        }
    }
    Some((text, faults))
}

/// Returns whether all programs have the same text.
fn are_equal(programs: &[Program]) -> bool {
    let mut texts = programs.iter().map(grammar::print);
    let first = if programs.len() > 1 { texts.next() } else { None };
    first.is_none_or(|first| texts.all(|it| it == first))
}

/// A program with its text and its warnings.
type Loaded = (Source, Program, Vec<Diagnostic>);

/// Reads the programs, binds their symbols and transforms them: one for all ranks, or one for each.
fn load_all(texts: &ProgramFiles, setup: &PrepareOptions<'_>) -> Result<Vec<Loaded>> {
    match texts {
        ProgramFiles::One(path) => containers(load(path, setup)?, setup),
        ProgramFiles::PerRank(paths) => {
            paths.iter().map(|path| prepare_program(load(path, setup)?, setup, true)).collect()
        }
    }
}

/// Reads a file, and records its text for a crash.
fn load(path: &str, setup: &PrepareOptions<'_>) -> Result<Source> {
    let source = source::open_program(setup.session, path, setup.fusions)
        .map_err(|(path, fault)| JobFailure::CannotRead { path, cause: fault.to_string() })?;
    setup.session.crash_record.record_program(&source.text);
    Ok(source)
}

/// Prepares the programs of a text: the one that `--container` selects, the only one, or those that the ranks of a job have
/// printed to one log.
fn containers(source: Source, setup: &PrepareOptions<'_>) -> Result<Vec<Loaded>> {
    if setup.container.is_some() {
        return Ok(vec![prepare_program(source, setup, false)?]);
    }
    let (programs, diagnostics) = source.programs();
    if programs.len() <= 1 || has_errors(&diagnostics) {
        return Ok(vec![prepare_program(source, setup, false)?]);
    }
    let select = |container: usize, is_one_of_several: bool| {
        let setup = PrepareOptions { container: Some(container), ..*setup };
        prepare_program(source.clone(), &setup, is_one_of_several)
    };
    if are_equal(&programs) {
        return Ok(vec![select(0, false)?]);
    }
    let line = |program: &Program| source.lines.line(program.spans.header.start);
    let rank_of = |program: &Program| rank_of_container(source.lines.line_text(line(program), &source.text));
    let ranks: Option<Vec<usize>> = programs.iter().map(rank_of).collect();
    let mut by_rank: Vec<(usize, usize)> =
        ranks.unwrap_or_default().into_iter().enumerate().map(|(at, rank)| (rank, at)).collect();
    by_rank.sort_unstable();
    if !setup.is_reference
        && by_rank.len() == programs.len()
        && by_rank.iter().map(|it| it.0).eq(0..programs.len())
    {
        return by_rank.into_iter().map(|(_, container)| select(container, true)).collect();
    }
    let listed = programs.iter().enumerate().map(|(at, it)| format!("{at} on line {}", line(it)));
    let listed = list_text(listed, 8, "and");
    let path = &source.name;
    Err(JobFailure::Usage(if setup.is_reference {
        format!(
            "the reference `{path}` has {} containers; expected one: copy it into a file of its own",
            programs.len()
        )
    } else {
        format!(
            "`{path}` has {} different containers, {listed}: select one with `--container`",
            programs.len()
        )
    }))
}

/// Binds the symbols of one program in a source text and transforms it. Returns its warnings as well. If
/// `is_one_of_several`, bindings of other programs' symbols are ignored.
pub(super) fn prepare_program(
    source: Source,
    setup: &PrepareOptions<'_>,
    is_one_of_several: bool,
) -> Result<(Source, Program, Vec<Diagnostic>)> {
    let path = &source.name;
    let (mut programs, mut diagnostics) = source.programs();
    // If the command line sets the protocol, the warning about an inferred protocol does not apply.
    if setup.bindings.iter().any(|it| it.name == P2P_PROTOCOL) {
        diagnostics.retain(|it| it.code != Code::LossyProtocol);
    }
    // The fusions are those of the program that is compared with it, and may be those of the reference, too.
    if setup.is_reference {
        diagnostics.retain(|it| it.code != Code::UnusedFusions);
    }
    if has_errors(&diagnostics) {
        return Err(JobFailure::Rejected(source, diagnostics));
    }
    let count = programs.len();
    let usage = |message: String| JobFailure::Usage(message);
    let chosen = match setup.container {
        None if !are_equal(&programs) => {
            let message =
                format!("`{path}` has {count} containers: select one with `--container`, 0 to {}", count - 1);
            return Err(usage(message));
        }
        None => 0,
        Some(chosen) if chosen < count => chosen,
        Some(chosen) => {
            let expected = if count == 1 { "0".to_owned() } else { format!("0 to {}", count - 1) };
            return Err(usage(format!("`--container {chosen}`: expected {expected} for `{path}`")));
        }
    };
    let mut program = programs.swap_remove(chosen);
    let concerns = |it: &&Binding| {
        if is_one_of_several {
            it.applies_to(&program)
        } else {
            !setup.is_reference || program.find_symbol(&it.name).is_some()
        }
    };
    let bindings: Vec<Binding> = setup.bindings.iter().filter(concerns).cloned().collect();
    apply_bindings(&mut program, &bindings).map_err(|fault| JobFailure::bad_option(*fault))?;
    bind_extents(&mut program, setup.inputs, &setup.session.files)?;
    if setup.assume {
        diagnostics.extend(assume_scalars(&mut program, &source, setup.ranks, &setup.limits));
    }
    (setup.passes)(&mut program, &source)?;
    Ok((source, program, diagnostics))
}
