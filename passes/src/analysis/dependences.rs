//! Whether iterations of two loop bodies can change places.
//!
//! Invariant: only what is certain counts; whatever is not known to be apart depends on each other.

use std::collections::hash_map::Entry;

use grammar::{
    attr::{self, AttrName},
    ir::{Attr, BlockId, For, OpStmt, Program, Stmt, TensorId},
    mentions,
    ops::{Effect, Mode, Op},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{iterations::is_different_in_each, loop_body::works, names::Names};

/// What a body does to names.
pub(crate) struct Body {
    /// The names that it mentions.
    pub(crate) names: FxHashMap<TensorId, Access>,
    /// How it reaches storage, by class.
    ways: FxHashMap<TensorId, FxHashSet<Way>>,
    /// The numbers of what it posts or awaits.
    works: FxHashSet<u32>,
    /// Communications in it, and how many of them every rank posts in every iteration with the same peers.
    posts: (usize, usize),
}

/// How a body reaches the elements of a name.
pub(crate) struct Access {
    reach: Reach,
    /// Whether it may give the name storage or a view.
    binds: bool,
    writes: bool,
}

/// Storage is reached in few ways, by however many names.
#[derive(PartialEq, Eq, Hash)]
struct Way {
    reach: Reach,
    writes: bool,
}

impl Access {
    fn way(&self) -> Way {
        Way { reach: self.reach.clone(), writes: self.writes }
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Reach {
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

impl Body {
    /// `None` where something stands in the body that keeps it from being merged.
    pub(crate) fn of(program: &Program, names: &Names, body: BlockId, around: &For) -> Option<Self> {
        // Scalars that the body itself assigns: the loop's own body may have grown by many others.
        let around = &For { body, ..around.clone() };
        let mut this = Self {
            names: FxHashMap::default(),
            ways: FxHashMap::default(),
            works: FxHashSet::default(),
            posts: (0, 0),
        };
        let (mut fits, mut binders) = (true, FxHashMap::<TensorId, Vec<&OpStmt>>::default());
        let mut results: FxHashSet<TensorId> = FxHashSet::default();
        program.walk(body, &mut |stmt| match &program.stmts[stmt] {
            Stmt::Op(it) => {
                let effect = it.op.row().effect;
                results.extend(Program::tensors_of(&it.outs));
                fits &=
                    !matches!(effect, Effect::Share | Effect::Deallocate) && it.op != Op::GetCurrentStream;
                this.works.extend(works(program, it).into_iter().map(|(number, _)| number));
                this.posts.0 += usize::from(effect == Effect::Communicate);
                mentions(program, it, &mut |tensor, mode| {
                    let base = Access { reach: Reach::Base, binds: false, writes: false };
                    let access = this.names.entry(tensor).or_insert(base);
                    access.writes |= matches!(mode, Mode::Write | Mode::Transfer);
                    access.binds |= matches!(mode, Mode::Write | Mode::Bind);
                    let is_base = effect == Effect::View && mode == Mode::Mention;
                    if !is_base && mode != Mode::Bind {
                        access.reach = Reach::Whole;
                    }
                });
                if let (Effect::View | Effect::Allocate, Some(out)) = (effect, it.out_tensor()) {
                    binders.entry(out).or_default().push(it);
                }
            }
            Stmt::Let(..) => fits = false,
            Stmt::For(_) | Stmt::If(_) => (),
        });
        // What is bound before anything else names it, by a statement of the body itself, is reached through that.
        let mut seen: FxHashSet<TensorId> = FxHashSet::default();
        let mut reached: Vec<(TensorId, Reach)> = Vec::new();
        for stmt in program.block(body) {
            let mut named = FxHashSet::default();
            let mut name = |it: &OpStmt| mentions(program, it, &mut |tensor, _| _ = named.insert(tensor));
            match &program.stmts[*stmt] {
                Stmt::Op(it) => {
                    name(it);
                    let collective =
                        it.op.row().effect == Effect::Communicate && it.op != Op::P2PCommunication;
                    this.posts.1 += usize::from(collective);
                    if let Some(out) = it.out_tensor().filter(|out| !seen.contains(out)) {
                        let all = binders.get(&out).map_or(&[][..], Vec::as_slice);
                        let same = all.iter().all(|other| *other == it);
                        reached.extend(
                            slice_or_fresh(program, it, around).filter(|_| same).map(|reach| (out, reach)),
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
                    for block in [Some(it.then), it.other].into_iter().flatten() {
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
                Reach::Slice(_, base, _) => !results.contains(base),
                Reach::Whole | Reach::Fresh | Reach::Base => true,
            };
            if let Some(access) = this.names.get_mut(&tensor).filter(|_| fixed) {
                access.reach = reach;
            }
        }
        // Names that operators bind are bound to who knows what.
        for (tensor, access) in &mut this.names {
            if access.reach == Reach::Base && binders.contains_key(tensor) {
                access.reach = Reach::Whole;
            }
        }
        for (tensor, access) in &this.names {
            this.ways.entry(names.class(*tensor)).or_default().insert(access.way());
        }
        fits.then_some(this)
    }

    /// What the body does when it has taken in another one that is `independent` of it.
    pub(crate) fn take_in(&mut self, names: &Names, other: Self) {
        for (tensor, theirs) in other.names {
            match self.names.entry(tensor) {
                Entry::Vacant(entry) => _ = entry.insert(theirs),
                Entry::Occupied(mut entry) => {
                    let access = entry.get_mut();
                    access.binds |= theirs.binds;
                    access.writes |= theirs.writes;
                    if access.reach != theirs.reach {
                        access.reach = Reach::Whole;
                    }
                    self.ways.entry(names.class(tensor)).or_default().insert(access.way());
                }
            }
        }
        for (class, theirs) in other.ways {
            self.ways.entry(class).or_default().extend(theirs);
        }
        self.works.extend(other.works);
        self.posts = (self.posts.0 + other.posts.0, self.posts.1 + other.posts.1);
    }
}

/// What a statement makes of its result's name, where that is certain to be independent of other iterations.
fn slice_or_fresh(program: &Program, it: &OpStmt, around: &For) -> Option<Reach> {
    match it.op.row().effect {
        Effect::Allocate => (it.op == Op::Allocate).then_some(Reach::Fresh),
        Effect::View => {
            let base = Program::tensors_of(&it.args).next()?;
            let index = it.get(attr::INDEX).or_else(|| it.get(attr::STREAM_INDEX))?;
            let held = program.tensors[base].mesh == program.tensors[it.out_tensor()?].mesh;
            (held && is_different_in_each(program, around, index))
                .then(|| Reach::Slice(it.op, base, it.attrs.clone()))
        }
        Effect::Compute
        | Effect::Map
        | Effect::Deallocate
        | Effect::Communicate
        | Effect::Wait
        | Effect::Stream
        | Effect::Group
        | Effect::Share
        | Effect::Unit
        | Effect::Opaque => None,
    }
}

/// Whether what the second body does in one iteration and the first in later ones can change places.
///
/// Looks at every name of the second body once, however many the first one has.
pub(crate) fn independent(owners: &Owners, one: &Body, two: &Body) -> bool {
    let own = |access: &Access| matches!(access.reach, Reach::Fresh | Reach::Slice(..));
    // A name that one of them binds, both have to bind before they use it.
    let renewed = |(tensor, y): (&TensorId, &Access)| {
        one.names.get(tensor).is_none_or(|x| !(x.binds || y.binds) || own(x) && own(y))
    };
    // Elements.
    let apart = |x: &Way, y: &Way| {
        !(x.writes || y.writes)
            || [x, y].iter().any(|it| matches!(it.reach, Reach::Fresh | Reach::Base))
            || matches!(x.reach, Reach::Slice(..)) && x.reach == y.reach
            || owners.separate(&x.reach, &y.reach)
    };
    let all_apart = |(class, theirs): (&TensorId, &FxHashSet<Way>)| {
        one.ways.get(class).is_none_or(|mine| mine.iter().all(|x| theirs.iter().all(|y| apart(x, y))))
    };
    // Transfers may match those of another iteration on another rank: in between, nothing else may be waited for.
    let ordered =
        [one, two].iter().all(|it| it.posts.0 == it.posts.1) || [one, two].iter().any(|it| it.posts.0 == 0);
    ordered
        && two.works.iter().all(|work| !one.works.contains(work))
        && two.names.iter().all(renewed)
        && two.ways.iter().all(all_apart)
}

/// Tensors whose storage is their own: two of them never share elements.
pub(crate) struct Owners(FxHashSet<TensorId>);

impl Owners {
    /// Inputs that no statement binds, and tensors that one ALLOCATE binds.
    pub(crate) fn of(program: &Program) -> Self {
        let mut owners: FxHashSet<TensorId> = Program::tensors_of(&program.inputs).collect();
        let mut bound: FxHashSet<TensorId> = FxHashSet::default();
        program.body.into_iter().for_each(|body| {
            program.walk(body, &mut |stmt| {
                let Stmt::Op(it) = &program.stmts[stmt] else { return };
                let effect = it.op.row().effect;
                let plain = effect == Effect::Allocate && it.get(attr::ALIAS).is_none();
                for out in Program::tensors_of(&it.outs).filter(|_| effect != Effect::Map) {
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
    fn separate(&self, x: &Reach, y: &Reach) -> bool {
        match (x, y) {
            (Reach::Slice(_, a, _), Reach::Slice(_, b, _)) => {
                a != b && self.0.contains(a) && self.0.contains(b)
            }
            (Reach::Whole | Reach::Fresh | Reach::Slice(..) | Reach::Base, _) => false,
        }
    }
}
