//! Determines whether loops that write to one tensor write disjoint regions of it.
//!
//! `T9 = slice( T2, {…} )` makes T9 a view of a region of T2 as long as T9 has no storage of its own. Two
//! regions are disjoint if the constant ranges of such slices do not intersect. In all other cases, a name
//! stands for its whole base tensor.

use grammar::{AccessMode, For, OpClass, OpStmt, Program, Stmt, StmtId, TensorId, TypeRule, attr};
use rustc_hash::FxHashMap;

use crate::analysis::{bindings, memory_effects::MemoryEffects};

/// The statement that makes each name a view; `None` if there are several.
pub(super) struct ViewDefs(FxHashMap<TensorId, Option<StmtId>>);

/// A region of a tensor.
#[derive(Clone, PartialEq)]
struct Region {
    base: TensorId,
    /// The half-open index range in each dimension; `None`: the whole tensor.
    ranges: Option<Vec<(i64, i64)>>,
}

/// The storage that a loop reads and writes.
pub(super) struct Footprint {
    /// For each access: the alias class of the storage, the region, and whether it is a write.
    accesses: Vec<(TensorId, Region, bool)>,
}

impl ViewDefs {
    /// Collects the views that the statements of a program make.
    pub(super) fn of(program: &Program) -> Self {
        let bound = bindings::analyze_bindings(program).already_bound;
        let mut views: FxHashMap<TensorId, Option<StmtId>> = FxHashMap::default();
        let Some(body) = program.body else { return Self(views) };
        for (stmt, it) in program.ops_in(body) {
            if let Some(out) = it.out_tensor()
                && (it.op.def().class == OpClass::View || is_slice_or_copy(it) && !bound.contains(&stmt))
            {
                views.entry(out).and_modify(|it| *it = None).or_insert(Some(stmt));
            }
        }
        Self(views)
    }

    /// Returns the region that a name stands for, or one that contains it.
    fn region(&self, program: &Program, tensor: TensorId) -> Region {
        let mut region = Region { base: tensor, ranges: None };
        // Views do not form a cycle in a program that runs. The bound ends the walk for other programs.
        for _ in 0..program.tensors.len() {
            let Some(Some(view)) = self.0.get(&region.base) else { break };
            let Stmt::Op(it) = &program.stmts[*view] else { break };
            let Some(base) = Program::tensors_of(&it.args).next() else { break };
            let ranges = match it.op.def().type_rule {
                TypeRule::Slice => ranges(program, it),
                TypeRule::Same => region.ranges,
                _ => None,
            };
            region = Region { base, ranges };
        }
        region
    }
}

impl Footprint {
    /// Collects the accesses of a loop.
    pub(super) fn of(program: &Program, storage: &MemoryEffects, views: &ViewDefs, it: &For) -> Self {
        let mut accesses = Vec::new();
        for (stmt, op) in program.ops_in(it.body) {
            let binds = op.out_tensor().filter(|out| views.0.get(out) == Some(&Some(stmt)));
            for (tensor, mode) in op.tensor_uses(program) {
                let written = match mode {
                    AccessMode::Read => false,
                    AccessMode::Write | AccessMode::Transfer => true,
                    AccessMode::Bind | AccessMode::NoAccess => continue,
                };
                if binds != Some(tensor) {
                    accesses.push((storage.alias_class(tensor), views.region(program, tensor), written));
                }
            }
        }
        Self { accesses }
    }

    /// Returns whether the two accesses conflict, so that the order of the loops matters.
    pub(super) fn conflicts(&self, other: &Self) -> bool {
        let meets = |(class, region, written): &(TensorId, Region, bool)| {
            let same = other.accesses.iter().filter(|it| it.0 == *class && (it.2 || *written));
            same.into_iter().any(|it| !it.1.is_disjoint(region))
        };
        self.accesses.iter().any(meets)
    }

    /// Returns whether the loop writes storage of this alias class.
    pub(super) fn writes(&self, class: TensorId) -> bool {
        self.accesses.iter().any(|it| it.0 == class && it.2)
    }

    /// Returns whether the loop reads or writes storage of this alias class.
    pub(super) fn uses(&self, class: TensorId) -> bool {
        self.accesses.iter().any(|it| it.0 == class)
    }
}

impl Region {
    /// Returns whether the two regions certainly have no element in common.
    fn is_disjoint(&self, other: &Self) -> bool {
        let (true, Some(a), Some(b)) = (self.base == other.base, &self.ranges, &other.ranges) else {
            return false;
        };
        a.iter().zip(b).any(|(a, b)| a.1 <= b.0 || b.1 <= a.0)
    }
}

/// Returns whether a statement makes its result a view if the result has no storage.
pub(super) fn is_slice_or_copy(it: &OpStmt) -> bool {
    it.op.def().class == OpClass::Compute
        && matches!(it.op.def().type_rule, TypeRule::Slice | TypeRule::Same)
        && !it.args.is_empty()
}

fn ranges(program: &Program, it: &OpStmt) -> Option<Vec<(i64, i64)>> {
    let ranges = it.get(attr::RANGES)?;
    let constant = |[start, stop, step]: &[_; 3]| {
        let (start, stop) = (program.constant(*start)?, program.constant(*stop)?);
        (program.constant(*step) == Some(1) && start >= 0 && stop >= 0).then_some((start, stop))
    };
    ranges.iter().map(constant).collect()
}
