//! Who names, binds and writes which storage, over a whole container.
//!
//! Invariant: names that may stand for the same storage are in one class; the order of statements is not looked at.

use grammar::{
    arena::Id,
    ir::{Axis, AxisId, BlockId, Domains, Program, Stmt, StmtId, TensorId, Transform},
    mentions,
    ops::{Effect, Mode},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{accesses::may_rearrange, bindings};

/// What statements do to names.
#[derive(Default)]
pub(crate) struct Storage {
    /// The representative of each tensor's class, by index; itself where it is alone.
    class: Vec<usize>,
    /// Statements that mention a tensor, in the order of the text.
    pub(crate) mentions: FxHashMap<TensorId, Vec<(StmtId, Mode)>>,
    /// Statements that write a class.
    writers: FxHashMap<usize, FxHashSet<StmtId>>,
    /// Classes that the header's tensors belong to.
    ports: FxHashSet<usize>,
    /// Where each operator stands.
    pub(crate) place: FxHashMap<StmtId, usize>,
}

impl Storage {
    /// Looks at all statements of a container.
    pub(crate) fn of(program: &Program, body: BlockId) -> Self {
        let mut this = Self { class: (0..program.tensors.len()).collect(), ..Self::default() };
        let mut writes = Vec::new();
        let facts = bindings::facts(program);
        program.walk(body, &mut |stmt| {
            let Stmt::Op(it) = &program.stmts[stmt] else { return };
            this.place.insert(stmt, this.place.len());
            mentions(program, it, &mut |tensor, mode| {
                this.mentions.entry(tensor).or_default().push((stmt, mode));
                if matches!(mode, Mode::Write | Mode::Transfer) {
                    writes.push((tensor, stmt));
                }
            });
            let effect = it.op.row().effect;
            let shares = match effect {
                Effect::View | Effect::Allocate => true,
                // A result that has storage is copied into.
                Effect::Compute => may_rearrange(it.op.row().rule) && !facts.bound.contains(&stmt),
                // A unit's statements and a kernel may hand out what they are given.
                Effect::Unit | Effect::Opaque => true,
                Effect::Map
                | Effect::Deallocate
                | Effect::Communicate
                | Effect::Wait
                | Effect::Stream
                | Effect::Group
                | Effect::Share => false,
            };
            if shares {
                let mut first = None;
                mentions(program, it, &mut |tensor, _| this.join(*first.get_or_insert(tensor), tensor));
            }
        });
        for (tensor, stmt) in writes {
            let class = this.class(tensor);
            this.writers.entry(class).or_default().insert(stmt);
        }
        let ports = Program::tensors_of(&program.inputs).chain(Program::tensors_of(&program.outputs));
        for port in ports {
            let class = this.class(port);
            this.ports.insert(class);
        }
        this
    }

    /// The class of a tensor's storage.
    pub(crate) fn class(&self, tensor: TensorId) -> usize {
        let mut at = tensor.index();
        while self.class[at] != at {
            at = self.class[at];
        }
        at
    }

    fn join(&mut self, a: TensorId, b: TensorId) {
        let (a, b) = (self.class(a), self.class(b));
        self.class[a.max(b)] = a.min(b);
    }

    /// Whether the header lists a name of this storage.
    pub(crate) fn is_port(&self, tensor: TensorId) -> bool {
        self.ports.contains(&self.class(tensor))
    }

    /// The statements that write a tensor's storage, under any name.
    pub(crate) fn writers(&self, tensor: TensorId) -> impl Iterator<Item = StmtId> {
        self.writers.get(&self.class(tensor)).into_iter().flatten().copied()
    }

    /// What mentions a tensor, in the order of the text.
    pub(crate) fn of_tensor(&self, tensor: TensorId) -> &[(StmtId, Mode)] {
        self.mentions.get(&tensor).map_or(&[], Vec::as_slice)
    }
}

/// Which axis of `a` each axis of `b` corresponds to, where the tensors are the same but for numbers.
pub(crate) fn correspondence(
    program: &Program,
    a: TensorId,
    b: TensorId,
) -> Option<FxHashMap<AxisId, AxisId>> {
    let (x, y) = (&program.tensors[a], &program.tensors[b]);
    let alike = (x.memory, x.dtype, &x.mesh, &x.positions, x.unit)
        == (y.memory, y.dtype, &y.mesh, &y.positions, y.unit);
    let axes = |it: &grammar::ir::Tensor| -> Vec<Vec<AxisId>> {
        let Domains { logical, transforms, allocation } = &it.domains;
        let mut lists = vec![it.loops.clone(), logical.clone(), allocation.clone().unwrap_or_default()];
        lists.extend(transforms.iter().map(|step| match step {
            Transform::Split { input, outer, inner, .. } => vec![*input, *outer, *inner],
            Transform::Merge { outer, inner, output } => vec![*outer, *inner, *output],
            Transform::Swizzle1D { input, output } => vec![*input, *output],
        }));
        lists
    };
    let steps = x.domains.transforms.iter().zip(&y.domains.transforms);
    let same_steps = steps.fold(x.domains.transforms.len() == y.domains.transforms.len(), |same, (s, t)| {
        same && match (s, t) {
            (
                Transform::Split { factor: f, outer_split: o, .. },
                Transform::Split { factor: g, outer_split: p, .. },
            ) => (f, o) == (g, p),
            (Transform::Merge { .. }, Transform::Merge { .. })
            | (Transform::Swizzle1D { .. }, Transform::Swizzle1D { .. }) => true,
            (Transform::Split { .. } | Transform::Merge { .. } | Transform::Swizzle1D { .. }, _) => false,
        }
    });
    let (lists, others) = (axes(x), axes(y));
    let sizes = |lists: &[Vec<AxisId>]| lists.iter().map(Vec::len).collect::<Vec<_>>();
    let allocated = x.domains.allocation.is_some() == y.domains.allocation.is_some();
    if !alike || !same_steps || !allocated || sizes(&lists) != sizes(&others) {
        return None;
    }
    let mut map: FxHashMap<AxisId, AxisId> = FxHashMap::default();
    for (to, from) in lists.iter().flatten().zip(others.iter().flatten()) {
        let (p, q) = (&program.axes[*to], &program.axes[*from]);
        if (Axis { number: 0, ..p.clone() }) != (Axis { number: 0, ..q.clone() })
            || *map.entry(*from).or_insert(*to) != *to
        {
            return None;
        }
    }
    Some(map)
}
