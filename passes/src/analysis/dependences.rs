//! Whether iterations of two loop bodies can change places.
//!
//! Invariant: only what is certain counts; whatever is not known to be apart depends on each other.

use std::collections::hash_map::Entry;

use grammar::{
    attr::{self, AttrName},
    for_each_tensor_use,
    ir::{Attr, BlockId, For, OpStmt, Program, Stmt, TensorId},
    ops::{AccessMode, Op, OpClass},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{loop_body::work_numbers, loop_carried::differs_per_iteration, name_uses::NameUses};

/// What a body does to names.
pub(crate) struct BodySummary {
    /// The names that it mentions.
    pub(crate) names: FxHashMap<TensorId, NameAccess>,
    /// How it reaches storage, by class.
    accesses_by_class: FxHashMap<TensorId, FxHashSet<StorageAccess>>,
    /// The numbers of what it posts or awaits.
    works: FxHashSet<u32>,
    /// Communications in it, and how many of them every rank posts in every iteration with the same peers.
    post_counts: (usize, usize),
}

/// How a body reaches the elements of a name.
pub(crate) struct NameAccess {
    reach: AccessRegion,
    /// Whether it may give the name storage or a view.
    binds: bool,
    writes: bool,
}

/// Storage is reached in few ways, by however many names.
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
    /// All of it, or nobody knows how much.
    Whole,
    /// Storage that the body allocates before it uses it.
    Fresh,
    /// The same statement in both bodies reaches the same elements, and in other iterations others: a view of a tensor,
    /// with its attributes.
    Slice(Op, TensorId, Vec<(AttrName, Attr)>),
    /// It only takes views of it.
    Base,
}

impl BodySummary {
    /// `None` where something stands in the body that keeps it from being merged.
    pub(crate) fn of(program: &Program, names: &NameUses, body: BlockId, around: &For) -> Option<Self> {
        // Scalars that the body itself assigns: the loop's own body may have grown by many others.
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
        // What is bound before anything else names it, by a statement of the body itself, is reached through that.
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
            // A view of what the body itself binds is as good as unknown, since that is bound in every iteration.
            let fixed = match &reach {
                AccessRegion::Slice(_, base, _) => !results.contains(base),
                AccessRegion::Whole | AccessRegion::Fresh | AccessRegion::Base => true,
            };
            if let Some(access) = this.names.get_mut(&tensor).filter(|_| fixed) {
                access.reach = reach;
            }
        }
        // Names that operators bind are bound to who knows what.
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

    /// What the body does when it has taken in another one that is `independent` of it.
    pub(crate) fn merge(&mut self, names: &NameUses, other: Self) {
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

/// What a statement makes of its result's name, where that is certain to be independent of other iterations.
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

/// Whether what the second body does in one iteration and the first in later ones can change places.
///
/// Looks at every name of the second body once, however many the first one has.
pub(crate) fn are_independent(owners: &DisjointStorage, one: &BodySummary, two: &BodySummary) -> bool {
    let own = |access: &NameAccess| matches!(access.reach, AccessRegion::Fresh | AccessRegion::Slice(..));
    // A name that one of them binds, both have to bind before they use it.
    let renewed = |(tensor, y): (&TensorId, &NameAccess)| {
        one.names.get(tensor).is_none_or(|x| !(x.binds || y.binds) || own(x) && own(y))
    };
    // Elements.
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
    // Transfers may match those of another iteration on another rank: in between, nothing else may be waited for.
    let ordered = [one, two].iter().all(|it| it.post_counts.0 == it.post_counts.1)
        || [one, two].iter().any(|it| it.post_counts.0 == 0);
    ordered
        && two.works.iter().all(|work| !one.works.contains(work))
        && two.names.iter().all(renewed)
        && two.accesses_by_class.iter().all(all_apart)
}

/// Tensors whose storage is their own: two of them never share elements.
pub(crate) struct DisjointStorage(FxHashSet<TensorId>);

impl DisjointStorage {
    /// Inputs that no statement binds, and tensors that one ALLOCATE binds.
    pub(crate) fn of(program: &Program) -> Self {
        let mut owners: FxHashSet<TensorId> = Program::tensors_of(&program.inputs).collect();
        let mut bound: FxHashSet<TensorId> = FxHashSet::default();
        program.body.into_iter().for_each(|body| {
            program.walk(body, &mut |stmt| {
                let Stmt::Op(it) = &program.stmts[stmt] else { return };
                let effect = it.op.def().class;
                let plain = effect == OpClass::Allocate && it.get(attr::ALIAS).is_none();
                for out in Program::tensors_of(&it.outs).filter(|_| effect != OpClass::Elementwise) {
                    // An input that is bound, or what is bound twice, may be anything.
                    let is_first = bound.insert(out) && !owners.contains(&out);
                    match is_first && plain {
                        true => owners.insert(out),
                        false => owners.remove(&out),
                    };
                }
            });
        });
        Self(owners)
    }

    /// Whether two slices are of storage that two allocations, or the header, keep apart.
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
