//! Decides whether iterations of two loop bodies may be reordered.
//!
//! Invariant: accesses that are not known to be independent are treated as dependent.

use std::collections::hash_map::Entry;

use grammar::{
    attr::{self, AttrName},
    for_each_tensor_use,
    ir::{Attr, BlockId, For, OpStmt, Program, Stmt, TensorId},
    ops::{AccessMode, Op, OpClass},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{loop_body::work_numbers, loop_carried::differs_per_iteration, name_uses::NameUses};

/// Accesses of a loop body, by name and by storage.
pub struct BodySummary {
    /// The names that the body mentions.
    pub names: FxHashMap<TensorId, NameAccess>,
    /// Accesses to storage, by alias class.
    accesses_by_class: FxHashMap<TensorId, FxHashSet<StorageAccess>>,
    /// Numbers of the communications that the body posts or waits for.
    works: FxHashSet<u32>,
    /// The number of communications in the body, and the number of those that are collectives directly in the
    /// body, which every rank posts in every iteration with the same peers.
    post_counts: (usize, usize),
}

/// How a body accesses the elements of a name.
pub struct NameAccess {
    reach: AccessRegion,
    /// True if the body may bind the name to storage or to a view.
    binds: bool,
    writes: bool,
}

/// An access to storage. Many names of an alias class usually share few distinct accesses.
#[derive(PartialEq, Eq, Hash)]
struct StorageAccess {
    reach: AccessRegion,
    writes: bool,
}

impl NameAccess {
    fn storage_access(&self) -> StorageAccess {
        StorageAccess { reach: self.reach.clone(), writes: self.writes }
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum AccessRegion {
    /// All elements, or an unknown part of them.
    Whole,
    /// Storage that the body allocates before it uses it.
    Fresh,
    /// A view of a tensor, with its attributes. The same statement in both bodies selects the same elements,
    /// and other elements in every other iteration.
    Slice(Op, TensorId, Vec<(AttrName, Attr)>),
    /// The body only takes views of the name.
    Base,
}

impl BodySummary {
    /// Summarizes a loop body. Returns `None` if the body contains a statement that prevents merging.
    pub fn of(program: &Program, names: &NameUses, body: BlockId, around: &For) -> Option<Self> {
        // Only scalars that this body assigns count. The loop's own body may already contain several merged
        // bodies.
        let around = &For { body, ..around.clone() };
        let mut this = Self {
            names: FxHashMap::default(),
            accesses_by_class: FxHashMap::default(),
            works: FxHashSet::default(),
            post_counts: (0, 0),
        };
        let (mut fits, mut binders) = (true, FxHashMap::<TensorId, Vec<&OpStmt>>::default());
        let mut results: FxHashSet<TensorId> = FxHashSet::default();
        program.walk(body, &mut |stmt| match &program.stmts[stmt] {
            Stmt::Op(it) => {
                let effect = it.op.def().class;
                results.extend(Program::tensors_of(&it.outs));
                fits &= !matches!(effect, OpClass::ShareHandles | OpClass::Deallocate)
                    && it.op != Op::GetCurrentStream;
                this.works.extend(work_numbers(program, it).into_iter().map(|(number, _)| number));
                this.post_counts.0 += usize::from(effect == OpClass::Communicate);
                for_each_tensor_use(program, it, &mut |tensor, mode| {
                    let base = NameAccess { reach: AccessRegion::Base, binds: false, writes: false };
                    let access = this.names.entry(tensor).or_insert(base);
                    access.writes |= matches!(mode, AccessMode::Write | AccessMode::Transfer);
                    access.binds |= matches!(mode, AccessMode::Write | AccessMode::Bind);
                    let is_base = effect == OpClass::View && mode == AccessMode::NoAccess;
                    if !is_base && mode != AccessMode::Bind {
                        access.reach = AccessRegion::Whole;
                    }
                });
                if let (OpClass::View | OpClass::Allocate, Some(out)) = (effect, it.out_tensor()) {
                    binders.entry(out).or_default().push(it);
                }
            }
            Stmt::Let(..) => fits = false,
            Stmt::For(_) | Stmt::If(_) => (),
        });
        // A name that a top-level statement of the body binds before anything else mentions it is accessed as
        // that statement defines it.
        let mut seen: FxHashSet<TensorId> = FxHashSet::default();
        let mut reached: Vec<(TensorId, AccessRegion)> = Vec::new();
        for stmt in program.block(body) {
            let mut named = FxHashSet::default();
            let mut name =
                |it: &OpStmt| for_each_tensor_use(program, it, &mut |tensor, _| _ = named.insert(tensor));
            match &program.stmts[*stmt] {
                Stmt::Op(it) => {
                    name(it);
                    let collective =
                        it.op.def().class == OpClass::Communicate && it.op != Op::P2PCommunication;
                    this.post_counts.1 += usize::from(collective);
                    if let Some(out) = it.out_tensor().filter(|out| !seen.contains(out)) {
                        let all = binders.get(&out).map_or(&[][..], Vec::as_slice);
                        let same = all.iter().all(|other| *other == it);
                        reached.extend(
                            iteration_local_region(program, it, around)
                                .filter(|_| same)
                                .map(|reach| (out, reach)),
                        );
                    }
                }
                Stmt::Let(..) => (),
                Stmt::For(it) => program.walk(it.body, &mut |stmt| {
                    if let Stmt::Op(it) = &program.stmts[stmt] {
                        name(it);
                    }
                }),
                Stmt::If(it) => {
                    for block in [Some(it.then_block), it.else_block].into_iter().flatten() {
                        program.walk(block, &mut |stmt| {
                            if let Stmt::Op(it) = &program.stmts[stmt] {
                                name(it);
                            }
                        });
                    }
                }
            }
            seen.extend(named);
        }
        for (tensor, reach) in reached {
            // The base of a view must be fixed. If the body itself binds the base, the base differs between
            // iterations and the region is unknown.
            let fixed = match &reach {
                AccessRegion::Slice(_, base, _) => !results.contains(base),
                AccessRegion::Whole | AccessRegion::Fresh | AccessRegion::Base => true,
            };
            if let Some(access) = this.names.get_mut(&tensor).filter(|_| fixed) {
                access.reach = reach;
            }
        }
        // The region of a name that an operator binds is otherwise unknown.
        for (tensor, access) in &mut this.names {
            if access.reach == AccessRegion::Base && binders.contains_key(tensor) {
                access.reach = AccessRegion::Whole;
            }
        }
        for (tensor, access) in &this.names {
            this.accesses_by_class
                .entry(names.alias_class(*tensor))
                .or_default()
                .insert(access.storage_access());
        }
        fits.then_some(this)
    }

    /// Adds the accesses of another body, for which `are_independent` holds, to this body.
    pub fn merge(&mut self, names: &NameUses, other: Self) {
        for (tensor, theirs) in other.names {
            match self.names.entry(tensor) {
                Entry::Vacant(entry) => _ = entry.insert(theirs),
                Entry::Occupied(mut entry) => {
                    let access = entry.get_mut();
                    access.binds |= theirs.binds;
                    access.writes |= theirs.writes;
                    if access.reach != theirs.reach {
                        access.reach = AccessRegion::Whole;
                    }
                    self.accesses_by_class
                        .entry(names.alias_class(tensor))
                        .or_default()
                        .insert(access.storage_access());
                }
            }
        }
        for (class, theirs) in other.accesses_by_class {
            self.accesses_by_class.entry(class).or_default().extend(theirs);
        }
        self.works.extend(other.works);
        self.post_counts =
            (self.post_counts.0 + other.post_counts.0, self.post_counts.1 + other.post_counts.1);
    }
}

/// Returns the region that a statement binds its result to, if that region is certainly independent of other
/// iterations.
fn iteration_local_region(program: &Program, it: &OpStmt, around: &For) -> Option<AccessRegion> {
    match it.op.def().class {
        OpClass::Allocate => (it.op == Op::Allocate).then_some(AccessRegion::Fresh),
        OpClass::View => {
            let base = Program::tensors_of(&it.args).next()?;
            let index = it.get(attr::INDEX).or_else(|| it.get(attr::STREAM_INDEX))?;
            let held = program.tensors[base].mesh == program.tensors[it.out_tensor()?].mesh;
            (held && differs_per_iteration(program, around, index))
                .then(|| AccessRegion::Slice(it.op, base, it.attrs.clone()))
        }
        OpClass::Compute
        | OpClass::Elementwise
        | OpClass::Deallocate
        | OpClass::Communicate
        | OpClass::Wait
        | OpClass::Stream
        | OpClass::Coalescing
        | OpClass::ShareHandles
        | OpClass::HostUnit
        | OpClass::Opaque => None,
    }
}

/// Returns true if one iteration of the second body may be reordered with later iterations of the first body.
///
/// Visits each name of the second body once, so the cost does not depend on the number of names in the first.
pub fn are_independent(owners: &DisjointStorage, one: &BodySummary, two: &BodySummary) -> bool {
    let own = |access: &NameAccess| matches!(access.reach, AccessRegion::Fresh | AccessRegion::Slice(..));
    // If one body binds a name, both bodies must bind it before they use it.
    let renewed = |(tensor, y): (&TensorId, &NameAccess)| {
        one.names.get(tensor).is_none_or(|x| !(x.binds || y.binds) || own(x) && own(y))
    };
    // Elements of storage.
    let apart = |x: &StorageAccess, y: &StorageAccess| {
        !(x.writes || y.writes)
            || [x, y].iter().any(|it| matches!(it.reach, AccessRegion::Fresh | AccessRegion::Base))
            || matches!(x.reach, AccessRegion::Slice(..)) && x.reach == y.reach
            || owners.are_disjoint(&x.reach, &y.reach)
    };
    let all_apart = |(class, theirs): (&TensorId, &FxHashSet<StorageAccess>)| {
        one.accesses_by_class
            .get(class)
            .is_none_or(|mine| mine.iter().all(|x| theirs.iter().all(|y| apart(x, y))))
    };
    // Transfers may match those of another iteration on another rank, so no other communication may be waited
    // for in between.
    let ordered = [one, two].iter().all(|it| it.post_counts.0 == it.post_counts.1)
        || [one, two].iter().any(|it| it.post_counts.0 == 0);
    ordered
        && two.works.iter().all(|work| !one.works.contains(work))
        && two.names.iter().all(renewed)
        && two.accesses_by_class.iter().all(all_apart)
}

/// Tensors with storage of their own. Two of them never share elements.
pub struct DisjointStorage(FxHashSet<TensorId>);

impl DisjointStorage {
    /// Collects the inputs that no statement binds, and the tensors that exactly one ALLOCATE binds.
    pub fn of(program: &Program) -> Self {
        let mut owners: FxHashSet<TensorId> = Program::tensors_of(&program.inputs).collect();
        let mut bound: FxHashSet<TensorId> = FxHashSet::default();
        program.body.into_iter().for_each(|body| {
            program.walk(body, &mut |stmt| {
                let Stmt::Op(it) = &program.stmts[stmt] else { return };
                let effect = it.op.def().class;
                let plain = effect == OpClass::Allocate && it.get(attr::ALIAS).is_none();
                for out in Program::tensors_of(&it.outs).filter(|_| effect != OpClass::Elementwise) {
                    // An input that is bound again, or a tensor that is bound twice, may alias anything.
                    let is_first = bound.insert(out) && !owners.contains(&out);
                    if is_first && plain {
                        owners.insert(out)
                    } else {
                        owners.remove(&out)
                    };
                }
            });
        });
        Self(owners)
    }

    /// Returns true if the two regions are slices of different tensors with storage of their own.
    fn are_disjoint(&self, x: &AccessRegion, y: &AccessRegion) -> bool {
        match (x, y) {
            (AccessRegion::Slice(_, a, _), AccessRegion::Slice(_, b, _)) => {
                a != b && self.0.contains(a) && self.0.contains(b)
            }
            (AccessRegion::Whole | AccessRegion::Fresh | AccessRegion::Slice(..) | AccessRegion::Base, _) => {
                false
            }
        }
    }
}
