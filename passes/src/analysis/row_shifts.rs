//! Finds tensors that are another one with its rows moved, by the slices, cats and pads that move them.

use grammar::{BlockId, ExprId, Op, Operand, Program, Stmt, StmtId, TensorId, attr};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{
    alias_analysis::names_of_same_storage, bindings::analyze_bindings, name_uses::write_counts,
};

/// The number of statements that are followed back from one statement.
const MOST_STMTS: usize = 64;

/// Where the rows of tensors come from. Rows are the indices of any one dimension.
#[derive(Default)]
pub struct RowSources {
    /// The only statement that writes each tensor.
    definitions: FxHashMap<TensorId, StmtId>,
    /// Tensors that keep their elements.
    constant: FxHashSet<TensorId>,
}

/// A tensor whose row `i` is row `i + by` of another one.
pub struct RowShift {
    /// The other tensor.
    pub source: TensorId,
    /// The distance, less than the number of rows.
    pub by: i64,
    /// Whether rows from outside are zeros, and not those of the other end.
    pub is_padded: bool,
    /// The statements that move the rows.
    pub stmts: Vec<StmtId>,
}

/// Adjacent rows of a tensor, or of zeros.
#[derive(Clone, Copy, PartialEq)]
struct Segment {
    of: Option<TensorId>,
    start: i64,
    count: i64,
}

impl RowSources {
    /// Analyzes the statements of a block.
    pub fn of(program: &Program, body: BlockId) -> Self {
        let counts = write_counts(program, &|_| true);
        let inputs: FxHashSet<TensorId> = Program::tensors_of(&program.inputs).collect();
        let is_constant =
            |it: &TensorId| counts.get(it).copied().unwrap_or(0) == usize::from(!inputs.contains(it));
        let written = program.tensors.ids().filter(|it| !is_constant(it) && counts.contains_key(it));
        let written = names_of_same_storage(program, &analyze_bindings(program), written);
        // Rows are read where a source is computed and where its result is.
        let frees = program.stmts.iter().filter_map(|(_, it)| it.op()).filter(|it| it.op == Op::Deallocate);
        let deallocated: FxHashSet<TensorId> = frees.flat_map(|it| it.tensor_operands()).collect();
        let is_kept = |it: &TensorId| is_constant(it) && !written.contains(it) && !deallocated.contains(it);
        let constant = program.tensors.ids().filter(is_kept);
        let constant: FxHashSet<TensorId> = constant.collect();
        let definition = |stmt: &StmtId| {
            let out = program.stmts[*stmt].op()?.out_tensor();
            Some((out.filter(|out| constant.contains(out))?, *stmt))
        };
        let definitions = program.block(body).iter().filter_map(definition).collect();
        Self { definitions, constant }
    }

    /// Returns the only statement that writes a tensor.
    pub fn definition(&self, tensor: TensorId) -> Option<StmtId> {
        self.definitions.get(&tensor).copied()
    }

    /// Returns the shift along a dimension that a slice, cat or pad computes, of a tensor with `extent` rows, as its result has,
    /// for which `is_source` is true.
    pub fn shift(
        &self,
        program: &Program,
        stmt: StmtId,
        dim: usize,
        is_source: &dyn Fn(TensorId) -> bool,
    ) -> Option<RowShift> {
        let Stmt::Op(it) = &program.stmts[stmt] else { return None };
        let out = it.out_tensor().filter(|out| self.definitions.get(out) == Some(&stmt))?;
        if !matches!(it.op, Op::Slice | Op::Cat | Op::Pad) {
            return None;
        }
        let mut stmts = Vec::new();
        let segments = self.segments(program, is_source, (out, dim), &mut stmts)?;
        let (by, is_padded, source) = match segments[..] {
            [a, b] if a.of == b.of && b.start == 0 && a.start == b.count => (a.start, false, a.of?),
            [a, b] if b.of.is_none() && a.start == b.count => (a.start, true, a.of?),
            [a, b] if a.of.is_none() && b.start == 0 => (-a.count, true, b.of?),
            _ => return None,
        };
        let (rows, all) = (*extents(program, source)?.get(dim)?, *extents(program, out)?.get(dim)?);
        // The shorter way around.
        let by = if !is_padded && by > rows / 2 { by - rows } else { by };
        (rows == all).then_some(RowShift { source, by, is_padded, stmts })
    }

    /// Returns the rows of a tensor as rows of sources, and the statements that move them.
    fn segments(
        &self,
        program: &Program,
        is_source: &dyn Fn(TensorId) -> bool,
        (tensor, dim): (TensorId, usize),
        stmts: &mut Vec<StmtId>,
    ) -> Option<Vec<Segment>> {
        let all = extents(program, tensor)?;
        if !stmts.is_empty() && self.constant.contains(&tensor) && is_source(tensor) {
            return Some(vec![Segment { of: Some(tensor), start: 0, count: *all.get(dim)? }]);
        }
        let stmt = *self.definitions.get(&tensor).filter(|_| stmts.len() < MOST_STMTS)?;
        let Stmt::Op(it) = &program.stmts[stmt] else { return None };
        stmts.push(stmt);
        let args: Vec<TensorId> = Program::tensors_of(&it.args).collect();
        let others_stay = |arg: &TensorId| {
            extents(program, *arg).is_some_and(|theirs| {
                theirs.len() == all.len() && (0..all.len()).all(|at| at == dim || theirs[at] == all[at])
            })
        };
        if !args.iter().all(others_stay) {
            return None;
        }
        let mut found: Vec<Segment> = Vec::new();
        let zeros = |count| Segment { of: None, start: 0, count };
        let (from, to) = match it.op {
            Op::Cat => {
                let Some(Operand::Scalar(along)) = it.args.last() else { return None };
                let along = program.constant(*along)?;
                if along.rem_euclid(all.len() as i64) != dim as i64 {
                    return None;
                }
                for arg in args {
                    found.extend(self.segments(program, is_source, (arg, dim), stmts)?);
                }
                (0, all[dim])
            }
            Op::Slice => {
                found = self.segments(program, is_source, (args[0], dim), stmts)?;
                let ranges = it.get(attr::RANGES)?;
                let is_one_by_one = |[start, _, step]: &[ExprId; 3], at: usize| {
                    program.constant(*step) == Some(1) && (at == dim || program.constant(*start) == Some(0))
                };
                if !ranges.iter().enumerate().all(|(at, it)| is_one_by_one(it, at)) {
                    return None;
                }
                let [start, stop, _] = ranges.get(dim)?;
                (program.constant(*start)?, program.constant(*stop)?)
            }
            Op::Pad => {
                let widths = it.get(attr::WIDTHS)?;
                // A shift by more rows than there are is none.
                let width = |at: usize| {
                    program
                        .constant(*widths.get(at)?)
                        .filter(|it| it.unsigned_abs() <= all[dim].unsigned_abs())
                };
                let is_zero = |(at, it): (usize, &ExprId)| at / 2 == dim || program.constant(*it) == Some(0);
                if !widths.iter().enumerate().all(is_zero) {
                    return None;
                }
                let (before, behind) = (width(2 * dim)?, width(2 * dim + 1)?);
                found.push(zeros(before.max(0)));
                found.extend(self.segments(program, is_source, (args[0], dim), stmts)?);
                found.push(zeros(behind.max(0)));
                let start = (-before).max(0);
                (start, start + all[dim])
            }
            Op::Set => {
                found = self.segments(program, is_source, (args[0], dim), stmts)?;
                (0, all[dim])
            }
            _ => return None,
        };
        let found = rows_between(found, from, to);
        let rows = found.iter().fold(0i64, |sum, it| sum.saturating_add(it.count));
        (rows == all[dim]).then_some(found)
    }
}

/// Returns the rows of a list of segments from `from` to `to`, with adjacent ones joined.
fn rows_between(segments: Vec<Segment>, from: i64, to: i64) -> Vec<Segment> {
    let mut begin = 0i64;
    let mut kept: Vec<Segment> = Vec::new();
    for it in segments {
        let end = begin.saturating_add(it.count);
        let (first, last) = (from.max(begin), to.min(end));
        let skipped = first - begin;
        begin = end;
        if first >= last {
            continue;
        }
        let start = if it.of.is_some() { it.start + skipped } else { 0 };
        let new = Segment { start, count: last - first, ..it };
        match kept.last_mut() {
            Some(last) if last.of == new.of && (new.of.is_none() || last.start + last.count == new.start) => {
                last.count += new.count;
            }
            _ => kept.push(new),
        }
    }
    kept
}

fn extents(program: &Program, tensor: TensorId) -> Option<Vec<i64>> {
    program.dimensions(tensor).map(|axis| program.constant(program.axes[axis].extent)).collect()
}
