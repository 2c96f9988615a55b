//! select-algorithms: chooses the algorithm of every collective by its type, size and team.
//!
//! Before:
//! ```text
//! Communication 7 (type=Allreduce, team=(0 1), red_op=SUM, input=T1, output=T2, backend=NCCL)
//! ```
//! After, if T2 has 64 KiB on each rank:
//! ```text
//! Communication 7 (type=Allreduce, team=(0 1), red_op=SUM, input=T1, output=T2, backend=NCCL, algo=one-shot-ll)
//! ```
//!
//! All algorithms but `nccl`, `one-shot-copy` and `two-shot-copy` run as one kernel over peer memory. The table at the
//! top of `src/plan/transport/mod.rs` lists what each `algo=` does, and where it runs.
//!
//! An Allreduce of the CUDA backend gets the fastest of the backend's own algorithms. Its other collectives, and
//! those of UCC, are not changed: the CUDA backend copies with copy engines, which leave the multiprocessors to
//! other work, and reduces after them. A rule with `one-shot` does not apply to an Allgather, ReduceScatter or AllToAll
//! in which the part of a rank is not a multiple of 16 bytes: most parts would begin at addresses that allow narrow
//! accesses only. An existing `algo=` is overwritten, and an `epilogue=` that the algorithm cannot have is removed. The GPUs
//! have to be on one host (`hir-run` rejects these algorithms across hosts).
//!
//! `only=T4` and `except=T4` choose collectives by their input or output.
//!
//! `table=` contains the rules, or names a device that has rules: `h200`, which is the default, `h100` or `b200`. `hir-run` names
//! its GPU, and `--machine` that of its table; a remark says so of a GPU without rules. `grammar/src/algorithm_table.rs` has the
//! rules and their sources. Sizes are the bytes of one rank's part of the input or the output, whichever is larger.
//! The pass does not change a statement whose size is not a constant or is covered
//! by no rule, nor a statement in a branch that not all ranks take, because the matching statement that other ranks
//! post has to use the same algorithm. It keeps the algorithm of a collective whose input and output may share storage
//! where NCCL would be selected, unless they are one tensor and NCCL takes it in place. An algorithm over peer memory is selected
//! only if the block has a Wait for the collective: without one, NCCL keeps the operands and a kernel over peer memory does not, and the
//! default algorithm of the CUDA backend may be complete when the posting stream continues. The first collective of all ranks keeps NCCL in front of groups of sends and receives: it creates their communicator,
//! for which hosts may wait.

use grammar::{
    Algorithm, AxisKind, Backend, CommunicationType, Diagnostic, Op, OpStmt, ParallelType, Program, Stmt,
    StmtId, TensorId,
    algorithm_table::{self, AlgorithmTable, DEFAULT_RULES, facts, has_epilogue},
    attr,
};
use hir_ir::blocks;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{
        alias_analysis::{AliasClasses, OpaqueCallModel},
        bindings::analyze_bindings,
        communicators::{Communicators, is_of_nccl},
    },
    pass::{Arguments, Change, EXCEPT, ONLY, OptionKind, OptionSpec, Pass, Remarks},
    rewrite::fold::ConstantFolder,
};

/// The pass.
pub(crate) const PASS: Pass = Pass::new("select-algorithms", include_str!("select_algorithms.rs"), run)
    .about("choose the algorithm of every collective by its type, size and team")
    .with_options(&[
        OptionSpec::new("table", OptionKind::Text, Some(DEFAULT_RULES))
            .about("selection rules, such as `2:8M=one-shot-ll;*=nccl`, or `h200`, `h100` or `b200`"),
        ONLY,
        EXCEPT,
    ]);

fn run(program: &mut Program, arguments: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    let text = arguments.text("table").unwrap_or(DEFAULT_RULES);
    let is_other_gpu = text.starts_with("NVIDIA ") && algorithm_table::device(text).is_none();
    if is_other_gpu {
        let message = format!("`select-algorithms` has no rules for `{text}`, and uses those for `h200`");
        remarks.note(program.spans.header, message, "`hir tune collectives` measures rules for `table=`");
    }
    let text = if is_other_gpu { DEFAULT_RULES } else { text };
    let table = AlgorithmTable::parse(text).map_err(|it| {
        arguments
            .error("table", format!("`{}` is not a selection rule", it.rule), it.reason.to_string())
            .help("write rules such as `Allreduce/2:8M=one-shot;4:512K=one-shot-ll;*=nccl`, or `h200`, `h100` or `b200`")
    })?;
    arguments.check_names(program)?;
    let (mut changed, mut all) = (false, Vec::new());
    let divergent = blocks::stmts_in_divergent_branches(program);
    let awaited = awaited_posts(program);
    let overlap = Overlap::of(program);
    let creates = creation_for_groups(program);
    for id in program.stmts.ids().filter(|it| !divergent.contains(it)) {
        let Stmt::Op(it) = program.stmts[id].clone() else { continue };
        let tensors: Vec<TensorId> =
            [it.get(attr::INPUT), it.get(attr::OUTPUT)].into_iter().flatten().collect();
        let is_selected = arguments.selects(program, &tensors);
        if !tensors.is_empty() {
            all.push(tensors);
        }
        if !is_selected {
            continue;
        }
        let Some(algorithm) = choose(program, &it, &table) else { continue };
        let is_over_memory = algorithm != Algorithm::Nccl;
        if is_over_memory && creates == Some(id) {
            let message = "`select-algorithms` does not change this: it creates the communicator of the groups behind it";
            remarks.no_effect(program.stmt_span(id), message.to_owned(), "the first collective of all ranks");
            continue;
        }
        if (is_over_memory || it.get(attr::BACKEND) == Some(Backend::Cuda)) && !awaited.contains(&id) {
            let message = match it.number {
                Some(number) => format!(
                    "`select-algorithms` does not change Communication {number}: its algorithms need a `Wait(Communication {number})` behind it"
                ),
                None => "`select-algorithms` does not change this: its algorithms need a Wait, for which it needs a number".to_owned(),
            };
            remarks.no_effect(program.stmt_span(id), message, "no Wait for this in its block");
            continue;
        }
        if algorithm == Algorithm::Nccl && overlap.keeps_algorithm(&it) {
            let message = match it.number {
                Some(number) => format!("`select-algorithms` does not change Communication {number}: NCCL may not take an input and an output that overlap"),
                None => "`select-algorithms` does not change this: NCCL may not take an input and an output that overlap".to_owned(),
            };
            remarks.no_effect(program.stmt_span(id), message, "its input and its output may share storage");
            continue;
        }
        let Stmt::Op(it) = &mut program.stmts[id] else { continue };
        changed |= it.get(attr::ALGO) != Some(algorithm);
        it.set(attr::ALGO, algorithm);
        if it.get(attr::TYPE).is_some_and(|kind| !has_epilogue(algorithm, kind)) {
            it.attrs.retain(|(key, _)| *key != attr::EPILOGUE);
        }
    }
    arguments.remark_unmatched(program, &all, remarks);
    Ok(Change::from_flag(changed))
}

/// Which collectives have an input and an output that may overlap.
struct Overlap(Option<AliasClasses>);

impl Overlap {
    fn of(program: &Program) -> Self {
        let classes =
            |body| AliasClasses::of(program, body, &analyze_bindings(program), OpaqueCallModel::MayAlias);
        Self(program.body.map(classes))
    }

    /// Returns whether a collective has an algorithm that is not NCCL's, and an overlap that NCCL may not take. Whether different views
    /// of one storage are the in-place form of NCCL is not known here.
    fn keeps_algorithm(&self, it: &OpStmt) -> bool {
        let is_own = it.get(attr::ALGO).is_some_and(|it| it != Algorithm::Nccl);
        let Some((input, output)) = it.get(attr::INPUT).zip(it.get(attr::OUTPUT)) else { return false };
        let overlaps = self.0.as_ref().is_some_and(|it| it.alias_class(input) == it.alias_class(output));
        let is_in_place = input == output && it.get(attr::TYPE).is_some_and(|it| it.facts().may_be_in_place);
        is_own && overlaps && !is_in_place
    }
}

/// Returns the first collective of all ranks, if groups of sends and receives follow it.
fn creation_for_groups(program: &Program) -> Option<StmtId> {
    let all: Vec<StmtId> = program.body().iter().flat_map(|it| program.stmts_at(*it)).collect();
    let is_group = |it: &StmtId| program.stmts[*it].op().is_some_and(|it| it.op == Op::StartCoalescing);
    let ranks = Communicators::world(program).len();
    let is_of_all = |it: &StmtId| {
        let team = program.stmts[*it].op().filter(|it| is_of_nccl(it)).and_then(|it| it.get(attr::TEAM));
        team.is_some_and(|it| it.len() == ranks)
    };
    let (first, group) = (all.iter().position(is_of_all)?, all.iter().position(is_group)?);
    (first < group).then(|| all[first])
}

/// Returns the statements whose communication a later statement of the same block waits for, before its number is used
/// again.
fn awaited_posts(program: &Program) -> FxHashSet<StmtId> {
    let mut awaited = FxHashSet::default();
    for block in program.blocks.ids() {
        let mut pending = FxHashMap::default();
        for stmt in program.block(block) {
            match &program.stmts[*stmt] {
                Stmt::Op(it) if it.op == Op::Wait => {
                    awaited.extend(it.get(attr::WORK).and_then(|number| pending.remove(&number)));
                }
                Stmt::Op(_) | Stmt::Let(..) => {
                    pending.extend(program.posted_work(*stmt).map(|number| (number, *stmt)));
                }
                // A later Wait may be for what a nested block posts.
                Stmt::For(_) | Stmt::If(_) => {
                    let posted = program.stmts_at(*stmt).filter_map(|it| program.posted_work(it));
                    posted.for_each(|number| _ = pending.remove(&number));
                }
            }
        }
    }
    awaited
}

/// Bytes of the widest access to memory.
const ACCESS_BYTES: u64 = 16;

/// Returns the algorithm of a collective by the rules; `None` if they do not apply to it.
pub(super) fn choose(program: &mut Program, it: &OpStmt, table: &AlgorithmTable) -> Option<Algorithm> {
    let kind = it.get(attr::TYPE)?;
    let members = it.get(attr::TEAM)?.len();
    let bytes = bytes_of(program, it.get(attr::INPUT)?)?.max(bytes_of(program, it.get(attr::OUTPUT)?)?);
    let has_library = match it.get(attr::BACKEND) {
        // Dialects before February 2025 do not print the backend. The default is NCCL.
        None | Some(Backend::Nccl) => true,
        Some(Backend::Cuda) if kind == CommunicationType::Allreduce => false,
        Some(Backend::Cuda | Backend::Ucc | Backend::Gloo | Backend::Nixl) => return None,
    };
    let has_wide_parts = bytes.is_multiple_of(ACCESS_BYTES * members as u64);
    let is_available = |it| {
        let has_its_parts = kind == CommunicationType::Allreduce || has_wide_parts;
        let needs_them = facts(it, kind).is_some_and(|it| it.needs_wide_parts);
        if it == Algorithm::Nccl { has_library } else { has_its_parts || !needs_them }
    };
    let algorithm = table.choose(kind, (members, bytes), is_available)?;
    // `nccl` is the default of a statement, so it is written only where it replaces another algorithm or concerns an
    // Allreduce, whose default depends on the backend.
    let is_default = algorithm == Algorithm::Nccl && kind != CommunicationType::Allreduce;
    (!is_default || it.get(attr::ALGO).is_some()).then_some(algorithm)
}

/// Returns the size in bytes of one rank's part of a tensor; `None` if an extent is not a constant.
fn bytes_of(program: &mut Program, tensor: TensorId) -> Option<u64> {
    let split = program.is_split_by_stream(tensor);
    let it = program.tensors[tensor].clone();
    let mut bytes = u64::try_from(it.dtype?.size()).ok()?;
    for axis in it.loop_domain {
        let axis = program.axes[axis].clone();
        let spread = match axis.parallel {
            ParallelType::Device(_) => true,
            ParallelType::Stream => split,
            ParallelType::Serial | ParallelType::Kernel(_) => false,
        };
        if spread || axis.kind == AxisKind::Reduction {
            continue;
        }
        let extent = ConstantFolder::default().fold(program, axis.expanded.unwrap_or(axis.extent));
        bytes = bytes.checked_mul(u64::try_from(program.constant(extent)?).ok()?)?;
    }
    Some(bytes)
}
