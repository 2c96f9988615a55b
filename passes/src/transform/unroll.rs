//! unroll: unrolls loops with constant bounds.
//!
//! Before:
//! ```text
//! FOR i5 in iS4{2}:
//!   SetCurrentStream(Stream i5)
//!   T2 = ALLOCATE(buffer=T2, mem_type=global, size=i84, zero_init=false, resets_to_zero=false)
//!   Communication 7 (type=Broadcast, team=(0 1), root=i84, input=T0, output=T2)
//!   Wait(Communication 7)
//!
//! Index definitions:
//!   i84 = ( i5 + 1 ) % 2;
//! ```
//! After:
//! ```text
//! SetCurrentStream(Stream 0)
//! T2 = ALLOCATE(buffer=T2, mem_type=global, size=1, zero_init=false, resets_to_zero=false)
//! Communication 7 (type=Broadcast, team=(0 1), root=1, input=T0, output=T2)
//! Wait(Communication 7)
//! Deallocate {
//!   T2
//! }
//! SetCurrentStream(Stream 1)
//! …
//! ```
//!
//! `loop=all` unrolls every loop with constant bounds; `loop=i5` unrolls the loops with the index `i5`, whose
//! bounds have to be constants. `factor=4` combines four iterations into one and keeps a loop. The scalars of
//! unrolled statements are folded.
//!
//! A loop over an axis (`in`) unbinds, in every iteration, the names that depend on its index. If the first
//! statement of a copy that mentions such a name binds it, nothing else is needed; otherwise the name is
//! deallocated at the end of the copy. If this is not certain to have the same effect, the pass rejects the
//! loop. The copies after the first get new communication numbers, unless a statement outside the iteration
//! posts, waits for or shares the communication.

use crate::pass::Obstacle;
use grammar::{
    AxisId, BlockId, Code, Diagnostic, ExprId, For, InfixOp, Op, OpStmt, Operand, Program, Stmt, StmtId,
    SymbolId, TensorId, count_text, list_text, loop_variant_tensors,
};
use hir_ir::{
    blocks::nested_blocks,
    build::{self, IrBuilder},
    edit::{StmtEdit, number_streams, rewrite},
};
use indexmap::IndexSet;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{
        bindings::symbols_through,
        loop_body::{
            FirstUse, first_use, is_bound_after_iteration, is_unbound_after, iteration_local_works,
            work_numbers,
        },
    },
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks},
    rewrite::{fold::ConstantFolder, scalars, substitute::Substitution},
};

/// The pass.
pub(crate) const PASS: Pass = Pass::new("unroll", include_str!("unroll.rs"), run)
    .about("unroll loops with constant bounds")
    .with_options(&[
        OptionSpec::new("loop", OptionKind::Text, Some("all"))
            .about("index of the loops to unroll, or `all`"),
        OptionSpec::new("factor", OptionKind::Count, None)
            .about("number of iterations to combine into one; default: all"),
    ]);

/// The maximum number of statements of the unrolled program.
const MAX_STMTS: usize = 1_000_000;

fn run(program: &mut Program, arguments: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let wanted = arguments.text("loop").unwrap_or("all").to_owned();
    let factor = arguments.count("factor");
    if factor == Some(0) {
        return Err(arguments.error("factor", "cannot unroll by a factor of 0", "expected 1 or more"));
    }
    let mut fresh = IrBuilder::of(program);
    let (mut found, mut changed) = (false, false);
    // Unrolling a loop may make the bounds of an inner loop constant.
    loop {
        let round = round(program, body, &wanted, factor, &mut fresh, &mut found)?;
        changed |= round;
        if !round || factor.is_some() {
            break;
        }
    }
    if wanted != "all" && !found {
        let message = format!("no loop has the index `{wanted}`");
        let indices: IndexSet<&str> = nested_blocks(program, body)
            .into_iter()
            .flat_map(|block| program.block(block))
            .filter_map(|stmt| match &program.stmts[*stmt] {
                Stmt::For(it) => Some(program.symbols[it.index].as_str()),
                Stmt::Op(_) | Stmt::Let(..) | Stmt::If(_) => None,
            })
            .collect();
        let label = match indices.len() {
            0 => "the program has no loops".to_owned(),
            _ => format!("the loops have {}", list_text(indices.iter().copied(), 8, "and")),
        };
        return Err(arguments.error("loop", message, label));
    }
    if changed {
        // A loop that never runs may have contained a capture.
        number_streams(program);
    }
    Change::verified(program, changed)
}

/// Unrolls the loops that can be unrolled, inner loops first. Returns whether it unrolled any.
fn round(
    program: &mut Program,
    body: BlockId,
    wanted: &str,
    factor: Option<u64>,
    fresh: &mut IrBuilder,
    found: &mut bool,
) -> Result<bool, Diagnostic> {
    let mut survey = LiveRanges::default();
    survey.block(program, body, 0);
    let fixed = FixedSymbols::of(program);
    let mut fault = None;
    let changed = rewrite(program, body, &mut |program, stmt| {
        let Stmt::For(it) = program.stmts[stmt].clone() else { return StmtEdit::Keep };
        let name = &program.symbols[it.index];
        if fault.is_some() || wanted != "all" && wanted != name {
            return StmtEdit::Keep;
        }
        *found = true;
        let loop_fault = |code, why: String| {
            Diagnostic::new(
                code,
                program.stmt_span(stmt),
                format!("the loop over `{name}` {why}"),
                "not unrolled",
            )
        };
        let (Some(start), Some(stop)) = (program.constant(it.start), program.constant(it.stop)) else {
            if wanted != "all" {
                let why = "has bounds that are not constants".to_owned();
                let help = "run `inline-definitions,canonicalize` first, or write the bounds as constants";
                fault = Some(loop_fault(Code::Unsupported, why).help(help));
            }
            return StmtEdit::Keep;
        };
        let count = usize::try_from(stop.saturating_sub(start)).unwrap_or(0);
        let factor = factor.map_or(count, |it| usize::try_from(it).unwrap_or(usize::MAX));
        if count == 0 || factor == 1 && count > 1 {
            return StmtEdit::Keep;
        }
        if count % factor != 0 {
            let why = format!("has {}, which {factor} does not divide", count_text(count, "iteration"));
            fault = Some(
                loop_fault(Code::NotRewritten, why)
                    .help("choose a factor that divides the number of iterations"),
            );
            return StmtEdit::Keep;
        }
        let size = program.stmts_in(it.body).count();
        // Copies of an empty body are not made: their number has no limit.
        let copies = if size == 0 { 0 } else { factor };
        if size.saturating_mul(copies).saturating_add(program.stmts.len()) > MAX_STMTS {
            let why = format!("would produce more than {MAX_STMTS} statements");
            let help = "select small loops with `loop=…`, or unroll partially with `factor=…`";
            fault = Some(loop_fault(Code::TooLong, why).help(help));
            return StmtEdit::Keep;
        }
        let plan = match UnrollPlan::of(program, stmt, &it, (&survey, &fixed), factor < count) {
            Ok(plan) => plan,
            Err(why) => {
                fault = Some(
                    loop_fault(Code::Unsupported, why.to_string())
                        .help("select the loops to unroll with `loop=…`"),
                );
                return StmtEdit::Keep;
            }
        };
        let values: Vec<ExprId> = if factor == count {
            (start..stop).take(copies).map(|value| program.intern_int(value)).collect()
        } else {
            (0..copies as i64).map(|at| iteration_index(program, it.index, factor, start + at)).collect()
        };
        let block = plan.write(program, stmt, &it, &values, fresh);
        if factor == count {
            return StmtEdit::Splice(block);
        }
        let (start, stop) = (program.intern_int(0), program.intern_int((count / factor) as i64));
        program.stmts[stmt] = Stmt::For(For { axis: None, start, stop, body: block, ..it });
        StmtEdit::Changed
    });
    fault.map_or(Ok(changed), Err)
}

/// Returns `( index * factor ) + offset`.
fn iteration_index(program: &mut Program, index: SymbolId, factor: usize, offset: i64) -> ExprId {
    let (index, factor) = (build::symbol(program, index), program.intern_int(factor as i64));
    let product = build::infix(program, InfixOp::Mul, index, factor);
    let offset = program.intern_int(offset);
    build::infix(program, InfixOp::Add, product, offset)
}

// ---- live ranges

/// The first and last position of each name and communication number, and the range of each loop, before
/// unrolling.
#[derive(Default)]
struct LiveRanges {
    position: usize,
    tensors: FxHashMap<TensorId, (usize, usize)>,
    works: FxHashMap<u32, (usize, usize)>,
    loops: FxHashMap<StmtId, LoopRange>,
}

/// The positions of a loop's statements.
#[derive(Clone, Copy)]
struct LoopRange {
    first: usize,
    last: usize,
    /// Whether the loop is inside another loop.
    is_nested: bool,
}

impl LiveRanges {
    fn block(&mut self, program: &Program, block: BlockId, depth: usize) {
        for stmt in program.block(block) {
            self.position += 1;
            match &program.stmts[*stmt] {
                Stmt::Op(it) => self.op(program, it),
                Stmt::Let(..) => (),
                Stmt::For(it) => {
                    let first = self.position;
                    self.block(program, it.body, depth + 1);
                    self.loops.insert(*stmt, LoopRange { first, last: self.position, is_nested: depth > 0 });
                }
                Stmt::If(it) => {
                    self.block(program, it.then_block, depth);
                    it.else_block.iter().for_each(|other| self.block(program, *other, depth));
                }
            }
        }
        let ports = Program::tensors_of(&program.inputs).chain(Program::tensors_of(&program.outputs));
        if depth == 0 && Some(block) == program.body {
            self.position += 1;
            ports.for_each(|tensor| _ = self.tensors.insert(tensor, (0, self.position)));
        }
    }

    fn op(&mut self, program: &Program, it: &OpStmt) {
        let place = self.position;
        it.mentions(program).for_each(|it| self.tensors.entry(it).or_insert((place, place)).1 = place);
        for (number, _) in work_numbers(program, it) {
            self.works.entry(number).or_insert((place, place)).1 = place;
        }
    }
}

// ---- copies

/// The statements and numbers that the copies of a loop's body need in addition to the body.
struct UnrollPlan {
    /// The names that are deallocated at the end of each copy.
    dropped: Vec<TensorId>,
    /// Whether the last copy deallocates them too.
    drops_in_last: bool,
    /// The communication numbers that the copies after the first replace.
    works: Vec<u32>,
}

impl UnrollPlan {
    /// Plans the unrolling of a loop, or returns the reason why it cannot be unrolled.
    fn of(
        program: &Program,
        stmt: StmtId,
        it: &For,
        (survey, fixed): (&LiveRanges, &FixedSymbols),
        leaves_loop: bool,
    ) -> Result<Self, Obstacle> {
        fixed.check_replaceable(program, it)?;
        let Some(range) = survey.loops.get(&stmt) else {
            return Err("is not part of the program".into());
        };
        let repeats = range.is_nested || leaves_loop;
        let (mut dropped, mut drops_in_last) = (Vec::new(), true);
        let forgotten = if it.axis.is_some() { loop_variant_tensors(program, it) } else { Vec::new() };
        for tensor in forgotten {
            if first_use(program, it.body, tensor) != FirstUse::Uses {
                continue;
            }
            let name = program.tensor_name(tensor);
            let (first, last) = survey.tensors.get(&tensor).copied().unwrap_or_default();
            let (before, after) = (first < range.first, last > range.last);
            if !before && is_unbound_after(program, it.body, tensor) {
                continue;
            }
            if !is_bound_after_iteration(program, it.body, tensor) {
                return Err(format!(
                    "unbinds `{name}` in every iteration, but an iteration may end with `{name}` unbound already"
                ).into());
            }
            if before || after && repeats {
                return Err(format!("unbinds `{name}`, which is also used outside of the loop").into());
            }
            // One flag for all names suffices: a name that nothing uses after the loop may stay bound.
            drops_in_last &= !after;
            dropped.push(tensor);
        }
        let own = |number: &u32| {
            let (first, last) = survey.works.get(number).copied().unwrap_or_default();
            first >= range.first && last <= range.last
        };
        let works = iteration_local_works(program, it.body).into_iter().filter(own).collect();
        Ok(Self { dropped, drops_in_last, works })
    }

    /// Returns a block with one copy of the body for each value of the index.
    fn write(
        &self,
        program: &mut Program,
        stmt: StmtId,
        it: &For,
        values: &[ExprId],
        fresh: &mut IrBuilder,
    ) -> BlockId {
        let span = program.stmt_span(stmt);
        let mut stmts = Vec::new();
        for (at, value) in values.iter().enumerate() {
            let mut names = Substitution::of_symbol(it.index, *value);
            if at > 0 {
                names.works = self.works.iter().map(|number| (*number, fresh.work())).collect();
            }
            let copy = names.block(program, it.body);
            let folder = ConstantFolder::default();
            scalars::rewrite_in_block(program, copy, &mut |program, expr| folder.fold(program, expr));
            stmts.append(&mut program.blocks[copy]);
            if at + 1 < values.len() || self.drops_in_last {
                for tensor in &self.dropped {
                    let args = vec![Operand::Tensor(*tensor)];
                    stmts.push(build::add(program, OpStmt { args, ..build::op(Op::Deallocate) }, span));
                }
            }
        }
        build::block(program, stmts)
    }
}

/// The scalars that cannot be replaced, because something that all copies share depends on them.
struct FixedSymbols {
    /// For each scalar: an assigned scalar whose definition depends on it.
    defining: FxHashMap<SymbolId, SymbolId>,
    /// For each scalar: an axis whose extent depends on it.
    extents: FxHashMap<SymbolId, AxisId>,
}

impl FixedSymbols {
    fn of(program: &Program) -> Self {
        let mut this = Self { defining: FxHashMap::default(), extents: FxHashMap::default() };
        let mut symbols = FxHashSet::default();
        let bound = scalars::assigned_symbols(program);
        for (symbol, value) in program.definitions.iter().filter(|(symbol, _)| bound.contains(*symbol)) {
            symbols_through(program, *value, &mut symbols);
            symbols.drain().for_each(|it| _ = this.defining.entry(it).or_insert(*symbol));
        }
        // Most axes share their extents.
        let mut seen = FxHashSet::default();
        for (id, axis) in program.axes.iter() {
            let bounds = [Some(axis.extent), axis.start, axis.stop, axis.expanded];
            for bound in bounds.into_iter().flatten().filter(|it| seen.insert(*it)) {
                symbols_through(program, bound, &mut symbols);
                symbols.drain().for_each(|it| _ = this.extents.entry(it).or_insert(id));
            }
        }
        this
    }

    /// Checks that a loop's index can be replaced everywhere.
    fn check_replaceable(&self, program: &Program, it: &For) -> Result<(), Obstacle> {
        let assigns =
            |stmt: StmtId| matches!(&program.stmts[stmt], Stmt::Let(symbol, _) if *symbol == it.index);
        if program.stmts_in(it.body).any(assigns) {
            return Err("assigns its index".into());
        }
        if let Some(symbol) = self.defining.get(&it.index) {
            let name = &program.symbols[*symbol];
            return Err(format!(
                "has an index that the definition of `{name}` depends on, and a statement assigns `{name}`"
            )
            .into());
        }
        match self.extents.get(&it.index) {
            Some(axis) => Err(format!(
                "has an index that the extent of `{}` depends on",
                grammar::axis_text(program, *axis)
            )
            .into()),
            None => Ok(()),
        }
    }
}
