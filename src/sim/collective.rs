//! What communications do to memory, once all who take part are there.
//!
//! Every collective is: each output is a row of parts of what the members give, or of all of it combined.
//!
//! Invariant: all inputs are read before any output is written.

use grammar::dtype::DType;

use super::{
    Fault, InstRef, Notes,
    kernels::{self, KernelError},
    located,
    memory::{Cell, Memory, scatter},
    reshard,
    step::{Space, StepError},
};
use crate::{
    io::dense::DenseTensor,
    plan::{Collective, CollectiveKind, Delivery, InstKind, Plan, Reshard, Side, Source, View},
};

/// Runs one collective, or one resharding operator, for all its members, which are in team order.
pub(super) fn run(
    plans: &[Plan],
    members: &[InstRef],
    memories: &mut [Memory],
    notes: &mut Notes,
) -> Result<(), Fault> {
    let kind = |it: &InstRef| &plans[it.rank].code[it.inst].kind;
    let collectives: Option<Vec<&Collective>> = members
        .iter()
        .map(|it| if let InstKind::Collective(it) = kind(it) { Some(&**it) } else { None })
        .collect();
    let reshards: Option<Vec<&Reshard>> = members
        .iter()
        .map(|it| if let InstKind::Reshard(it) = kind(it) { Some(&**it) } else { None })
        .collect();
    let mut space = Space::World(memories);
    match (collectives, reshards) {
        (Some(them), _) => TeamCollective { plans, members, them: &them }.run(&mut space, notes),
        (_, Some(them)) => {
            reshard::run(&them, members, &mut space, notes).map_err(|it| it.at(plans, members[0]))
        }
        (None, None) => {
            Err(Fault::Internal("a collective and a resharding operator in one communication".to_owned()))
        }
    }
}

/// Moves what a send gives to where its receive wants it.
pub(super) fn deliver(
    plans: &[Plan],
    (from, send): (InstRef, &Side),
    (to, recv): (InstRef, &Side),
    memories: &mut [Memory],
    notes: &mut Notes,
) -> Result<(), Fault> {
    let mut space = Space::World(memories);
    notes.at = Some(from);
    let block = space.read(from.rank, &send.view, notes).map_err(|it| it.at(plans, from))?;
    let dtype = space.dtype(to.rank, &recv.view).map_err(|it| it.at(plans, to))?;
    if block.data.len() != recv.view.len() || block.data.dtype() != dtype {
        let other = located(plans, to).1;
        let (given, wanted) = (amount_of(&block), amount(recv.view.len(), dtype));
        let message = format!("sends {given}, but rank {} at {other} receives {wanted}", to.rank);
        return Err(Fault::program(plans, from, message));
    }
    space.store(to.rank, &recv.view, &block, notes).map_err(|it| it.at(plans, to))
}

/// One collective of all members.
struct TeamCollective<'a> {
    plans: &'a [Plan],
    /// Where each member posted it, in team order.
    members: &'a [InstRef],
    /// What each posted.
    them: &'a [&'a Collective],
}

impl TeamCollective<'_> {
    fn run(&self, space: &mut Space<'_>, notes: &mut Notes) -> Result<(), Fault> {
        for (member, it) in self.them.iter().enumerate() {
            if !it.kind.is_same_as(self.them[0].kind) {
                return Err(self.clash(member, it.kind.name(), 0, self.them[0].kind.name()));
            }
        }
        let mut wanted = Vec::new();
        for (member, it) in self.them.iter().enumerate() {
            if let Some(output) = &it.output {
                wanted.push((member, output, self.deliveries(member)?));
            }
        }
        let mut inputs = vec![None; self.them.len()];
        let mut combined = None;
        for delivery in wanted.iter().flat_map(|(_, _, deliveries)| deliveries) {
            match delivery.from {
                Source::Member(from) => self.load(from, &mut inputs, space, notes)?,
                Source::Combined if combined.is_none() => {
                    combined = Some(self.combine(&mut inputs, space, notes)?);
                }
                Source::Combined => {}
            }
        }
        for (member, output, deliveries) in wanted {
            let mut pieces = Vec::new();
            for it in deliveries {
                let whole = it.member().map_or(combined.as_ref(), |from| inputs[from].as_ref());
                if let Some(whole) = whole {
                    pieces.push((whole, self.part(member, whole.data.len(), it)?));
                }
            }
            if let Some(block) = concatenate(&pieces).map_err(|it| self.fault(member, it))? {
                self.deliver(member, output, &block, space, notes)?;
            }
        }
        Ok(())
    }

    /// Puts a member's result where it wants it.
    fn deliver(
        &self,
        member: usize,
        output: &View,
        block: &DenseTensor,
        space: &mut Space<'_>,
        notes: &mut Notes,
    ) -> Result<(), Fault> {
        let rank = self.members[member].rank;
        let dtype = space.dtype(rank, output).map_err(|it| self.fault(member, it))?;
        if block.data.len() != output.len() || block.data.dtype() != dtype {
            let (mine, theirs) = (amount(output.len(), dtype), amount_of(block));
            let message =
                format!("{} delivers {theirs}, the output holds {mine}", self.them[member].kind.name());
            return Err(Fault::program(self.plans, self.members[member], message));
        }
        space.store(rank, output, block, notes).map_err(|it| self.fault(member, it))
    }

    /// What the output of a member is made of, in order.
    fn deliveries(&self, member: usize) -> Result<Vec<Delivery>, Fault> {
        let kind = self.them[member].kind;
        if let CollectiveKind::Permute { recv_peer, .. } = kind
            && let Some(CollectiveKind::Permute { send_peer, .. }) =
                self.them.get(recv_peer).map(|it| it.kind)
            && send_peer != member
        {
            let mine = format!("permutes from member {recv_peer}");
            return Err(self.clash(member, mine, recv_peer, format!("sends to member {send_peer}")));
        }
        Ok(kind.deliveries(member, self.them.len()))
    }

    /// Reads what a member gives. All that are read must be of one type and size.
    fn load(
        &self,
        from: usize,
        inputs: &mut [Option<DenseTensor>],
        space: &mut Space<'_>,
        notes: &mut Notes,
    ) -> Result<(), Fault> {
        let kind = self.them[0].kind.name();
        let Some(at) = self.members.get(from) else {
            let message = format!("{kind}: the team has no member {from}");
            return Err(Fault::program(self.plans, self.members[0], message));
        };
        if inputs[from].is_some() {
            return Ok(());
        }
        let Some(view) = &self.them[from].input else {
            return Err(Fault::program(self.plans, *at, format!("{kind} without an input")));
        };
        notes.at = Some(*at);
        let mut block = space.read(at.rank, view, notes).map_err(|it| self.fault(from, it))?;
        // Members may give differently shaped views of the same size.
        block.shape = vec![block.data.len()];
        for (other, theirs) in inputs.iter().enumerate() {
            if let Some(theirs) = theirs
                && (theirs.data.len(), theirs.data.dtype()) != (block.data.len(), block.data.dtype())
            {
                let mine = format!("gives {} to {kind}", amount_of(&block));
                return Err(self.clash(from, mine, other, format!("gives {}", amount_of(theirs))));
            }
        }
        inputs[from] = Some(block);
        Ok(())
    }

    /// All members' inputs combined.
    fn combine(
        &self,
        inputs: &mut [Option<DenseTensor>],
        space: &mut Space<'_>,
        notes: &mut Notes,
    ) -> Result<DenseTensor, Fault> {
        for from in 0..self.them.len() {
            self.load(from, inputs, space, notes)?;
        }
        // What combines delivers nothing else: the inputs are not wanted any more.
        let parts: Vec<DenseTensor> = inputs.iter_mut().filter_map(Option::take).collect();
        let Some(op) = self.them[0].kind.reduce_op() else {
            return Err(Fault::Internal("a collective that combines nothing".to_owned()));
        };
        kernels::combine(op, &parts, parts[0].data.dtype(), &mut notes.exactness)
            .map_err(|it| self.fault(0, it.into()))
    }

    /// Where a piece lies in what its giver gives.
    fn part(&self, member: usize, given: usize, it: Delivery) -> Result<View, Fault> {
        let count = self.them.len();
        if it.part.is_some() && !given.is_multiple_of(count) {
            let kind = self.them[member].kind.name();
            let message = format!("{kind} of {given} elements does not divide by {count} members");
            return Err(Fault::program(self.plans, self.members[member], message));
        }
        let elements = it.elements(given, count);
        Ok(stretch(elements.start, elements.len()))
    }

    fn fault(&self, member: usize, error: StepError) -> Fault {
        error.at(self.plans, self.members[member])
    }

    /// Two members that do not go together.
    fn clash(&self, member: usize, mine: String, other: usize, theirs: String) -> Fault {
        let at = self.members[other];
        let place = located(self.plans, at).1;
        let message = format!("{mine}; rank {} at {place}: {theirs}", at.rank);
        Fault::program(self.plans, self.members[member], message)
    }
}

/// Pieces of blocks of one type, one after the other; `None` where there is none.
pub(super) fn concatenate(pieces: &[(&DenseTensor, View)]) -> Result<Option<DenseTensor>, StepError> {
    let Some((first, _)) = pieces.first() else { return Ok(None) };
    let total = pieces.iter().map(|(_, view)| view.len()).sum();
    let mut cell = Cell::unwritten(first.data.dtype(), total).map_err(KernelError::from)?;
    let mut offset = 0;
    for (block, view) in pieces {
        let piece = DenseTensor {
            shape: vec![view.len()],
            data: block.data.gather(view),
            written: block.written.gather(view),
            shadow: block.shadow.as_ref().map(|it| it.gather(view)),
        };
        scatter(&mut cell, &stretch(offset, view.len()), &piece);
        offset += view.len();
    }
    let Cell { data, written, shadow } = cell;
    Ok(Some(DenseTensor { shape: vec![total], data, written, shadow }))
}

/// So many elements in a row.
pub(super) fn stretch(offset: usize, len: usize) -> View {
    View { offset, ..View::contiguous(0, vec![len]) }
}

/// `1024 x bf16`.
fn amount(len: usize, dtype: DType) -> String {
    format!("{len} x {}", dtype.short_name())
}

fn amount_of(block: &DenseTensor) -> String {
    amount(block.data.len(), block.data.dtype())
}
