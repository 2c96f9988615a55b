//! Warns about communication errors without running the program.

use grammar::{BlockId, Code, Diagnostic, LineIndex, OpClass, Program, Stmt};

use crate::{Plan, build_with_limits, limits::Limits, scalar::Scalars, smallest_world, sync::Deadlock};

/// Larger programs are not checked, so that reading a program stays fast.
const MAX_RANKS: usize = 64;
const MAX_STATEMENTS: i64 = 100_000;
const MAX_MEMORY: usize = 1 << 28;
/// The limit for all ranks, after the communications have been lowered.
const MAX_LOWERED_INSTRUCTIONS: usize = 1_000_000;

/// Returns warnings for the case that all ranks of a world run the program: communications that do not match,
/// or a deadlock. Programs of one rank, programs that cannot be planned without further options, and large
/// programs are not checked.
pub fn lint(program: &Program, lines: &LineIndex, ranks: Option<usize>) -> Vec<Diagnostic> {
    let world = ranks.unwrap_or_else(|| smallest_world(program));
    let Some(body) = program.body.filter(|_| (2..=MAX_RANKS).contains(&world)) else { return Vec::new() };
    let is_small = || {
        let count = unrolled_statement_count(program, &Scalars::new(program, 0), body);
        count.is_some_and(|it| it.saturating_mul(world as i64) <= MAX_STATEMENTS)
    };
    if program.is_of_one_rank() || !communicates(program) || !is_small() {
        return Vec::new();
    }
    let limits = Limits { ranks: MAX_RANKS, memory: MAX_MEMORY, instructions: MAX_LOWERED_INSTRUCTIONS };
    match build_with_limits(program, lines, world, &limits) {
        Ok(plans) => plans.deadlock().map(|it| warning(program, &plans, &it)).into_iter().collect(),
        Err(faults) => faults
            .into_iter()
            .filter(|it| it.code == Code::Disagreement)
            .map(|it| {
                let message = format!("{world} ranks that run this program disagree: {}", it.message);
                Diagnostic { code: Code::Mismatch, message, ..it }
            })
            .collect(),
    }
}

fn warning(program: &Program, plans: &[Plan], deadlock: &Deadlock) -> Diagnostic {
    let stmt = deadlock.stmt(plans);
    let span = stmt.map_or(program.spans.header, |it| program.stmt_span(it));
    let message = format!("{} ranks that run this program deadlock: {}", plans.len(), deadlock.headline());
    deadlock.diagnostic(Code::Deadlock, span, plans, message)
}

fn communicates(program: &Program) -> bool {
    let mut ops = program.stmts.iter().filter_map(|(_, it)| it.op());
    ops.any(|it| matches!(it.op.def().class, OpClass::Communicate | OpClass::ShareHandles))
}

/// Returns the maximum number of statements that rank 0 executes; `None` if the bounds of a loop are not
/// known in advance.
fn unrolled_statement_count(program: &Program, scalars: &Scalars<'_>, block: BlockId) -> Option<i64> {
    let mut count: i64 = 0;
    for stmt in program.block(block) {
        let inner = match &program.stmts[*stmt] {
            Stmt::Op(_) | Stmt::Let(..) => 1,
            Stmt::For(it) => {
                let trips = scalars.int(it.stop).ok()?.saturating_sub(scalars.int(it.start).ok()?).max(0);
                unrolled_statement_count(program, scalars, it.body)?
                    .saturating_mul(trips)
                    .saturating_add(trips)
            }
            Stmt::If(it) => {
                let other =
                    it.else_block.map_or(Some(0), |it| unrolled_statement_count(program, scalars, it))?;
                unrolled_statement_count(program, scalars, it.then_block)?
                    .saturating_add(other)
                    .saturating_add(1)
            }
        };
        count = count.saturating_add(inner);
    }
    Some(count)
}
