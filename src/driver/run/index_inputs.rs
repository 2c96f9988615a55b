//! Finds the inputs that a program uses as indices, so that generated values are inside of their dimension.

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use hir_plan::{
    Access, BufferNo, Direction, GroupedDim, InstKind, P2pOp, Routine, RoutineKind, View, ViewOnRank, World,
    sync::{CommKey, CommPart, CommRole, InstRef},
};

/// The values of an input that is used as indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexRange {
    /// From 0 to below this number.
    Below(usize),
    /// The ends of this many groups of equal size, in a dimension of this extent.
    Ends { groups: usize, extent: usize },
}

/// Where elements are: a buffer of a rank, or of the body of a resharding operator, which is on no rank but of one instruction.
type Place = (usize, Option<usize>, BufferNo);

/// Returns, by position, the inputs whose elements are indices of some statement, as they are or moved: copied, resharded, sent or
/// gathered.
pub(super) fn index_inputs(world: &World) -> FxHashMap<usize, IndexRange> {
    let flow = Flow::of(world, false);
    let mut found = FxHashMap::default();
    for (place, (range, _)) in &flow.uses {
        for input in flow.inputs_of(*place) {
            let known = found.entry(input).or_insert(*range);
            *known = known.and(*range);
        }
    }
    found
}

/// Returns, by position, the inputs from which the indices of a statement are computed. `line` is that of the statement of a rank.
pub(super) fn inputs_behind_indices(world: &World, rank: usize, line: u32) -> BTreeSet<usize> {
    let flow = Flow::of(world, true);
    let is_used = |inst: &usize| {
        let origin = world[rank].code[*inst].origin;
        world[rank].origins[origin as usize].line == line
    };
    let uses = flow.uses.iter().filter(|((of, ..), (_, inst))| *of == rank && is_used(inst));
    uses.flat_map(|(place, _)| flow.inputs_of(*place)).collect()
}

impl IndexRange {
    /// Returns the values that are in both ranges. Of ranges of two kinds, the first one counts.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Below(own), Self::Below(other)) => Self::Below(own.min(other)),
            (Self::Ends { groups, extent }, Self::Ends { extent: other, .. }) => {
                Self::Ends { groups, extent: extent.min(other) }
            }
            (Self::Below(_), Self::Ends { .. }) | (Self::Ends { .. }, Self::Below(_)) => self,
        }
    }
}

/// Where elements move, and which of them are indices.
#[derive(Default)]
struct Flow {
    /// Whether what is computed from elements counts as well.
    computes: bool,
    /// By place: those whose elements it receives.
    from: FxHashMap<Place, FxHashSet<Place>>,
    /// The places of indices, with one of the instructions that use them.
    uses: FxHashMap<Place, (IndexRange, usize)>,
    /// The inputs, by position.
    inputs: FxHashMap<Place, usize>,
}

impl Flow {
    fn of(world: &World, computes: bool) -> Self {
        let mut flow = Self { computes, ..Self::default() };
        for plan in world.plans() {
            for (inst, it) in plan.code.iter().enumerate() {
                let at = InstRef { rank: plan.rank, inst };
                match &it.kind {
                    InstKind::Reshard(it) => it.body.iter().for_each(|kind| flow.add(at, Some(inst), kind)),
                    kind => flow.add(at, None, kind),
                }
            }
            let inputs = plan.inputs.iter().enumerate();
            let inputs =
                inputs.filter_map(|(at, it)| Some(((plan.rank, None, it.shard.view.as_ref()?.buffer), at)));
            flow.inputs.extend(inputs);
        }
        if !flow.uses.is_empty() {
            flow.add_communications(world);
        }
        flow
    }

    fn link(&mut self, from: Place, to: Place) {
        self.from.entry(to).or_default().insert(from);
    }

    /// Adds an instruction of a rank, or of the body of a resharding operator.
    fn add(&mut self, at: InstRef, body: Option<usize>, kind: &InstKind) {
        match kind {
            InstKind::Copy { from, to } => {
                let place =
                    |it: &ViewOnRank| (if body.is_some() { at.rank } else { it.rank }, body, it.view.buffer);
                self.link(place(from), place(to));
            }
            InstKind::Routine(it) => {
                let Some((view, range)) = indices(it) else { return };
                let (known, _) = self.uses.entry((at.rank, body, view.buffer)).or_insert((range, at.inst));
                *known = known.and(range);
            }
            _ => (),
        }
        if self.computes {
            let accesses = kind.accesses(at.rank);
            let place =
                |it: &Access<'_>| (if body.is_some() { at.rank } else { it.rank }, body, it.view.buffer);
            for to in accesses.iter().filter(|it| it.is_write) {
                accesses.iter().filter(|it| !it.is_write).for_each(|from| self.link(place(from), place(to)));
            }
        }
    }

    /// Adds the communications that move elements as they are, and the operands and results of resharding operators.
    fn add_communications(&mut self, world: &World) {
        for comm in &world.matching().comms {
            let (mut given, mut taken) = (Vec::new(), Vec::new());
            for &CommPart { inst_ref: at, role } in &comm.parts {
                let own = |view: &View| (at.rank, None, view.buffer);
                match &world[at.rank].code[at.inst].kind {
                    InstKind::Collective(it) if self.computes || !it.kind.of.is_reduction() => {
                        given.extend(it.input.as_ref().map(|it| (0, own(it))));
                        taken.extend(it.output.as_ref().map(|it| (0, own(it))));
                    }
                    InstKind::P2pGroup(it) => {
                        let CommKey::Message(_, from, to, _) = comm.key else { continue };
                        let peer = if at.rank == from { to } else { from };
                        let is_side = |it: &&P2pOp| it.peer == peer && role == CommRole::Side(it.direction);
                        for side in it.ops.iter().filter(is_side) {
                            let side_of = match side.direction {
                                Direction::Send => &mut given,
                                Direction::Recv => &mut taken,
                            };
                            side_of.push((0, own(&side.view)));
                        }
                    }
                    InstKind::Reshard(it) => {
                        let body = |number: usize| (at.rank, Some(at.inst), number as BufferNo);
                        let operands = it.operands.iter().enumerate();
                        for (number, view) in operands.filter_map(|it| Some((it.0, it.1.view.as_ref()?))) {
                            given.push((number, own(view)));
                        }
                        taken.extend((0..it.operands.len()).map(|number| (number, body(number))));
                        if let Some(view) = &it.result.view {
                            self.link(body(it.operands.len()), own(view));
                        }
                    }
                    _ => (),
                }
            }
            for (number, from) in given {
                let same = taken.iter().filter(|it| it.0 == number);
                same.for_each(|(_, to)| self.link(from, *to));
            }
        }
    }

    /// Returns the inputs from which elements move to a place.
    fn inputs_of(&self, place: Place) -> impl Iterator<Item = usize> {
        let (mut found, mut open) = (FxHashSet::from_iter([place]), vec![place]);
        while let Some(it) = open.pop() {
            open.extend(self.from.get(&it).into_iter().flatten().filter(|it| found.insert(**it)));
        }
        found.into_iter().filter_map(|it| self.inputs.get(&it).copied())
    }
}

/// Returns the operand of a routine that consists of indices.
fn indices(it: &Routine) -> Option<(&View, IndexRange)> {
    let extent = |view: Option<&View>, dim: usize| view.and_then(|it| it.shape.get(dim)).copied();
    Some(match it.kind {
        RoutineKind::Gather { dim, first } => {
            let extent = extent(it.inputs.first(), dim)?;
            (it.inputs.get(1)?, IndexRange::Below(first.unwrap_or(0) + extent))
        }
        RoutineKind::Scatter { dim, .. } => {
            (it.inputs.get(1)?, IndexRange::Below(extent(it.outs.first(), dim)?))
        }
        RoutineKind::GroupedGemm(dim) => {
            let ends = it.inputs.get(2)?;
            let extent = match dim {
                GroupedDim::Rows => extent(it.inputs.first(), 0),
                GroupedDim::Depth => extent(it.inputs.first(), 1),
                GroupedDim::Columns => extent(it.inputs.get(1), 1),
            };
            (ends, IndexRange::Ends { groups: ends.len(), extent: extent? })
        }
        RoutineKind::Sort { .. } | RoutineKind::Scan { .. } => return None,
    })
}
