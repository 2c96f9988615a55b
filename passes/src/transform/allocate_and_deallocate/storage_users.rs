//! Finds the statements that use the storage of each name: those that mention the name or a view of it, and the Waits for
//! communications of either.
//!
//! The users of a name are summarized, so that a chain of views costs as much as its names.

use grammar::{OpClass, Program, Stmt, StmtId, TensorId, attr};
use hir_ir::streams::{StreamValue, uses_stream};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{TensorUses, may_become_view, stream_order::StreamOrder};
use crate::analysis::{posted_work::for_each_posted_communication, stmt_path::StmtPaths};

/// A summary of the statements that use the storage of a name. Statements are indices of `StmtPaths::order`.
#[derive(Clone, Default)]
pub(super) struct Users {
    /// The number of names that share the storage: the name and its views.
    pub(super) names: usize,
    /// The first and the last statement.
    range: Option<(usize, usize)>,
    /// Whether one of the statements shares a memory handle.
    pub(super) shares_handle: bool,
    /// The last statement on each stream.
    pub(super) last_on_stream: FxHashMap<StreamValue, usize>,
    /// Whether some of the names are views of several names, so that a sum would count them more than once.
    is_shared: bool,
}

impl Users {
    /// Returns the first and the last statement.
    pub(super) fn ends(&self, places: &StmtPaths) -> Option<[StmtId; 2]> {
        self.range.map(|(first, last)| [places.order[first], places.order[last]])
    }

    fn add_stmt(&mut self, program: &Program, places: &StmtPaths, streams: &StreamOrder, stmt: StmtId) {
        let Some(at) = places.position(stmt) else { return };
        let (first, last) = self.range.unwrap_or((at, at));
        self.range = Some((first.min(at), last.max(at)));
        self.shares_handle |=
            matches!(&program.stmts[stmt], Stmt::Op(it) if it.op.def().class == OpClass::ShareHandles);
        let uses_stream = program.stmts[stmt].op().is_some_and(|it| uses_stream(it.op.def().class));
        if let Some(stream) = streams.current(stmt).filter(|_| uses_stream) {
            let last = self.last_on_stream.entry(stream).or_insert(at);
            *last = at.max(*last);
        }
    }

    fn add(&mut self, other: &Self) {
        self.names += other.names;
        self.is_shared |= other.is_shared;
        self.shares_handle |= other.shares_handle;
        if let Some((first, last)) = other.range {
            let own = self.range.unwrap_or((first, last));
            self.range = Some((first.min(own.0), last.max(own.1)));
        }
        for (stream, at) in &other.last_on_stream {
            let last = self.last_on_stream.entry(*stream).or_insert(*at);
            *last = (*at).max(*last);
        }
    }
}

/// The users of the storage of each name.
pub(super) struct StorageUsers {
    /// The users of each name itself.
    own: FxHashMap<TensorId, Users>,
    /// The views of each name.
    views: FxHashMap<TensorId, FxHashSet<TensorId>>,
    /// The users of each name and of its views, unless `is_shared`.
    all: FxHashMap<TensorId, Users>,
}

impl StorageUsers {
    pub(super) fn of(
        program: &Program,
        places: &StmtPaths,
        uses: &TensorUses,
        streams: &StreamOrder,
    ) -> Self {
        let mut own: FxHashMap<TensorId, Users> = FxHashMap::default();
        for (tensor, stmts) in &places.uses {
            let users = own.entry(*tensor).or_default();
            stmts.iter().for_each(|stmt| users.add_stmt(program, places, streams, *stmt));
        }
        let mut waits: FxHashMap<u32, Users> = FxHashMap::default();
        for stmt in &places.order {
            let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
            if let (OpClass::Wait, Some(number)) = (it.op.def().class, it.get(attr::WORK)) {
                waits.entry(number).or_default().add_stmt(program, places, streams, *stmt);
            }
        }
        let mut added: FxHashSet<(u32, TensorId)> = FxHashSet::default();
        for_each_posted_communication(program, &mut |number, it| {
            let Some(waits) = waits.get(&number) else { return };
            for tensor in it.mentions(program).filter(|it| added.insert((number, *it))) {
                own.entry(tensor).or_default().add(waits);
            }
        });
        own.values_mut().for_each(|users| users.names = 1);
        let views = views(program, places, uses);
        let all = with_views(&own, &views);
        Self { own, views, all }
    }

    /// Returns the users of the storage of a name.
    pub(super) fn users(&self, tensor: TensorId) -> Users {
        match self.all.get(&tensor) {
            Some(users) if !users.is_shared => users.clone(),
            Some(_) | None => {
                let (mut names, mut seen) = (vec![tensor], FxHashSet::from_iter([tensor]));
                let mut users = Users::default();
                while let Some(name) = names.pop() {
                    self.own.get(&name).into_iter().for_each(|it| users.add(it));
                    names.extend(self.views.get(&name).into_iter().flatten().filter(|it| seen.insert(**it)));
                }
                users
            }
        }
    }
}

/// Returns the views of each name.
fn views(
    program: &Program,
    places: &StmtPaths,
    uses: &TensorUses,
) -> FxHashMap<TensorId, FxHashSet<TensorId>> {
    let mut views: FxHashMap<TensorId, FxHashSet<TensorId>> = FxHashMap::default();
    for stmt in &places.order {
        let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
        let effect = it.op.def().class;
        let unbound =
            |out: TensorId| effect == OpClass::Compute && !uses.bound.contains(&out) && may_become_view(it);
        let is_view = matches!(effect, OpClass::View | OpClass::Allocate);
        if let Some(out) = it.out_tensor().filter(|out| is_view || unbound(*out)) {
            for base in it.mentions(program).filter(|base| *base != out) {
                views.entry(base).or_default().insert(out);
            }
        }
    }
    views
}

/// Returns the users of each name and of its views.
fn with_views(
    own: &FxHashMap<TensorId, Users>,
    views: &FxHashMap<TensorId, FxHashSet<TensorId>>,
) -> FxHashMap<TensorId, Users> {
    let mut bases: FxHashMap<TensorId, usize> = FxHashMap::default();
    views.values().flatten().for_each(|view| *bases.entry(*view).or_default() += 1);
    let (mut all, mut begun): (FxHashMap<TensorId, Users>, _) = (FxHashMap::default(), FxHashSet::default());
    // The names to visit, each for the second time if its views have been visited.
    let mut names: Vec<(TensorId, bool)> = own.keys().map(|name| (*name, false)).collect();
    while let Some((name, has_views)) = names.pop() {
        let of_name = || views.get(&name).into_iter().flatten();
        if has_views {
            let mut users = own.get(&name).cloned().unwrap_or_default();
            for view in of_name() {
                // A name that is not finished is a view of itself, through this one.
                users.is_shared |= bases.get(view).is_some_and(|count| *count > 1) || !all.contains_key(view);
                all.get(view).into_iter().for_each(|it| users.add(it));
            }
            all.insert(name, users);
        } else if begun.insert(name) {
            names.push((name, true));
            names.extend(of_name().map(|view| (*view, false)));
        }
    }
    all
}
