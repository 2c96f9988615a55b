//! Executes the memory effects of communications.
//!
//! The output of each member of a collective is a concatenation of parts of the members' inputs, or of the
//! reduction of all inputs. Either all members run at once, or each member reads its input first, and writes
//! its output after the members that it receives from have read theirs.

use grammar::DType;

use super::{
    InstRef, RunNotes, SimError,
    kernels::{self, KernelError},
    memory::{BufferData, Memory, scatter},
    outcome::line_and_location,
    reshard,
    step::{Memories, Result, StepError},
};
use hir_plan::{Collective, InstKind, OutputPiece, P2pOp, PermutePeers, PieceSource, Plan, Reshard, View};
use hir_tensor::dense::DenseTensor;

/// Runs one collective or one resharding operator for all its members, which are in team order.
pub(super) fn run(
    plans: &[Plan],
    members: &[InstRef],
    memories: &mut [Memory],
    notes: &mut RunNotes,
) -> Result<(), SimError> {
    let kind = |it: &InstRef| &plans[it.rank].code[it.inst].kind;
    let reshards: Option<Vec<&Reshard>> = members
        .iter()
        .map(|it| if let InstKind::Reshard(it) = kind(it) { Some(&**it) } else { None })
        .collect();
    if let Some(reshards) = reshards {
        let mut space = Memories::World(memories);
        return reshard::run(&reshards, members, &mut space, notes)
            .map_err(|it| it.into_sim_error(plans, members[0]));
    }
    let mut team = TeamCollective::of(plans, members.to_vec())?;
    // All members read before any member writes.
    for member in 0..members.len() {
        team.gather_inputs(member, memories, notes)?;
    }
    (0..members.len()).try_for_each(|member| team.write_output(member, memories, notes))
}

/// Marks the elements that a communication will write as unwritten. They have no value until the
/// communication completes.
pub(super) fn mark_unwritten(
    plans: &[Plan],
    at: InstRef,
    view: &View,
    memories: &mut [Memory],
) -> Result<(), SimError> {
    Memories::World(memories).mark_unwritten(at.rank, view).map_err(|it| it.into_sim_error(plans, at))
}

/// Reads the elements that a send transfers.
pub(super) fn read_message(
    plans: &[Plan],
    (from, send): (InstRef, &P2pOp),
    memories: &mut [Memory],
    notes: &mut RunNotes,
) -> Result<DenseTensor, SimError> {
    notes.current = Some(from);
    Memories::World(memories).read(from.rank, &send.view, notes).map_err(|it| it.into_sim_error(plans, from))
}

/// Writes the elements that a send at `from` read to the view of the receive.
pub(super) fn write_message(
    plans: &[Plan],
    (from, block): (InstRef, DenseTensor),
    (to, recv): (InstRef, &P2pOp),
    memories: &mut [Memory],
    notes: &mut RunNotes,
) -> Result<(), SimError> {
    let mut space = Memories::World(memories);
    let dtype = space.dtype(to.rank, &recv.view).map_err(|it| it.into_sim_error(plans, to))?;
    if block.data.len() != recv.view.len() || block.data.dtype() != dtype {
        let other = line_and_location(plans, to).1;
        let (given, wanted) = (tensor_size_text(&block), size_text(recv.view.len(), dtype));
        let message = format!("sends {given}, but rank {} at {other} receives {wanted}", to.rank);
        return Err(SimError::program(plans, from, message));
    }
    space.store(to.rank, &recv.view, block, notes).map_err(|it| it.into_sim_error(plans, to))
}

/// One collective of all members, and the inputs that have been read.
pub(super) struct TeamCollective<'a> {
    plans: &'a [Plan],
    /// The instruction of each member, in team order.
    members: Vec<InstRef>,
    /// The collective that each member posted.
    posted: Vec<&'a Collective>,
    /// The inputs of the members, as far as they have been read.
    inputs: Vec<Option<DenseTensor>>,
    /// The reduction of all inputs.
    reduced: Option<DenseTensor>,
}

impl<'a> TeamCollective<'a> {
    /// Creates the state before any input is read. The members are in team order.
    ///
    /// # Errors
    /// Two members posted different kinds of collectives.
    pub fn of(plans: &'a [Plan], members: Vec<InstRef>) -> Result<Self, SimError> {
        let collective = |it: &InstRef| {
            let InstKind::Collective(it) = &plans[it.rank].code[it.inst].kind else {
                let message = "a collective and a resharding operator in one communication";
                return Err(SimError::Internal(message.to_owned()));
            };
            Ok(&**it)
        };
        let posted = members.iter().map(collective).collect::<Result<Vec<_>, _>>()?;
        let it = Self { plans, inputs: vec![None; members.len()], members, posted, reduced: None };
        for (member, other) in it.posted.iter().enumerate() {
            if !other.kind.is_compatible_with(it.posted[0].kind) {
                return Err(it.mismatch_error(
                    member,
                    other.kind.describe(),
                    0,
                    it.posted[0].kind.describe(),
                ));
            }
        }
        Ok(it)
    }

    /// Reads the input of a member, and marks the elements of its output as unwritten.
    pub fn read_input(
        &mut self,
        member: usize,
        memories: &mut [Memory],
        notes: &mut RunNotes,
    ) -> Result<(), SimError> {
        let it = self.posted[member];
        if it.input.is_some() {
            self.load(member, memories, notes)?;
        }
        match &it.output {
            // Only members that receive something write their output.
            Some(output) if it.kind.piece_count(member, self.members.len()) > 0 => {
                mark_unwritten(self.plans, self.members[member], output, memories)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the members from which a member receives data.
    pub fn givers(&self, member: usize) -> Result<Vec<usize>, SimError> {
        let it = self.posted[member];
        if it.receives() {
            self.deliveries(member)?;
        }
        Ok(it.givers(member, self.members.len()))
    }

    /// Reads the inputs that a member receives, as far as they have not been read.
    pub fn gather_inputs(
        &mut self,
        member: usize,
        memories: &mut [Memory],
        notes: &mut RunNotes,
    ) -> Result<(), SimError> {
        if self.posted[member].output.is_none() {
            return Ok(());
        }
        for delivery in self.deliveries(member)? {
            match delivery.source {
                PieceSource::Member(from) => self.load(from, memories, notes)?,
                PieceSource::Reduced if self.reduced.is_none() => self.peer_reduce(memories, notes)?,
                PieceSource::Reduced => {}
            }
        }
        Ok(())
    }

    /// Writes the output of a member. Everything that it receives has been read.
    pub fn write_output(
        &self,
        member: usize,
        memories: &mut [Memory],
        notes: &mut RunNotes,
    ) -> Result<(), SimError> {
        let Some(output) = &self.posted[member].output else { return Ok(()) };
        let mut pieces = Vec::new();
        for it in self.deliveries(member)? {
            let whole = it.source_member().map_or(self.reduced.as_ref(), |from| self.inputs[from].as_ref());
            if let Some(whole) = whole {
                pieces.push((whole, self.piece_range(member, whole.data.len(), it)?));
            }
        }
        match concatenate(&pieces).map_err(|it| self.error_at(member, it))? {
            Some(block) => self.deliver(member, output, block, &mut Memories::World(memories), notes),
            None => Ok(()),
        }
    }

    /// Writes the result of a member to its output view.
    fn deliver(
        &self,
        member: usize,
        output: &View,
        block: DenseTensor,
        space: &mut Memories<'_>,
        notes: &mut RunNotes,
    ) -> Result<(), SimError> {
        let rank = self.members[member].rank;
        let dtype = space.dtype(rank, output).map_err(|it| self.error_at(member, it))?;
        if block.data.len() != output.len() || block.data.dtype() != dtype {
            let (mine, theirs) = (size_text(output.len(), dtype), tensor_size_text(&block));
            let message = format!(
                "{} delivers {theirs}, but the output holds {mine}",
                self.posted[member].kind.describe()
            );
            return Err(SimError::program(self.plans, self.members[member], message));
        }
        space.store(rank, output, block, notes).map_err(|it| self.error_at(member, it))
    }

    /// Returns the parts that make up a member's output, in order.
    fn deliveries(&self, member: usize) -> Result<Vec<OutputPiece>, SimError> {
        let kind = self.posted[member].kind;
        if let Some(PermutePeers { recv, .. }) = kind.peers
            && let Some(PermutePeers { send, .. }) = self.posted.get(recv).and_then(|it| it.kind.peers)
            && send != member
        {
            let mine = format!("receives from member {recv}");
            return Err(self.mismatch_error(member, mine, recv, format!("sends to member {send}")));
        }
        Ok(kind.output_pieces(member, self.posted.len()))
    }

    /// Reads the input of a member. All inputs must have the same element type and size.
    fn load(&mut self, from: usize, memories: &mut [Memory], notes: &mut RunNotes) -> Result<(), SimError> {
        let kind = self.posted[0].kind.describe();
        let Some(at) = self.members.get(from).copied() else {
            let message = format!("{kind}: the team has no member {from}");
            return Err(SimError::program(self.plans, self.members[0], message));
        };
        if self.inputs[from].is_some() {
            return Ok(());
        }
        let Some(view) = &self.posted[from].input else {
            return Err(SimError::program(self.plans, at, format!("{kind} has no input")));
        };
        notes.current = Some(at);
        let mut block =
            Memories::World(memories).read(at.rank, view, notes).map_err(|it| self.error_at(from, it))?;
        // The inputs may be views of different shapes but equal size.
        block.shape = vec![block.data.len()];
        // All inputs that have been read are alike.
        let first = self.inputs.iter().enumerate().find_map(|(other, it)| Some((other, it.as_ref()?)));
        if let Some((other, theirs)) = first
            && (theirs.data.len(), theirs.data.dtype()) != (block.data.len(), block.data.dtype())
        {
            let mine = format!("gives {} to {kind}", tensor_size_text(&block));
            let theirs = format!("gives {}", tensor_size_text(theirs));
            return Err(self.mismatch_error(from, mine, other, theirs));
        }
        self.inputs[from] = Some(block);
        Ok(())
    }

    /// Reduces all members' inputs.
    fn peer_reduce(&mut self, memories: &mut [Memory], notes: &mut RunNotes) -> Result<(), SimError> {
        for from in 0..self.posted.len() {
            self.load(from, memories, notes)?;
        }
        // A reduction delivers nothing else, so the inputs are no longer needed.
        let parts: Vec<DenseTensor> = self.inputs.iter_mut().filter_map(Option::take).collect();
        let Some(op) = self.posted[0].kind.op else {
            return Err(SimError::Internal(
                "a collective without a reduction operation cannot reduce".to_owned(),
            ));
        };
        let reduced = kernels::peer_reduce(op, &parts, parts[0].data.dtype(), &mut notes.exactness);
        self.reduced = Some(reduced.map_err(|it| self.error_at(0, it.into()))?);
        Ok(())
    }

    /// Returns the part of the input that a delivery contains.
    fn piece_range(&self, member: usize, given: usize, it: OutputPiece) -> Result<View, SimError> {
        let count = self.posted.len();
        if it.part.is_some() && !given.is_multiple_of(count) {
            let kind = self.posted[member].kind.describe();
            let message = format!("{kind} of {given} elements cannot be split equally among {count} members");
            return Err(SimError::program(self.plans, self.members[member], message));
        }
        let elements = it.source_range(given, count);
        Ok(flat_range(elements.start, elements.len()))
    }

    fn error_at(&self, member: usize, error: StepError) -> SimError {
        error.into_sim_error(self.plans, self.members[member])
    }

    /// Returns the error of two members that do not match.
    fn mismatch_error(&self, member: usize, mine: String, other: usize, theirs: String) -> SimError {
        let at = self.members[other];
        let place = line_and_location(self.plans, at).1;
        let message = format!("{mine}; rank {} at {place}: {theirs}", at.rank);
        SimError::program(self.plans, self.members[member], message)
    }
}

/// Concatenates parts of tensors of one element type. Returns `None` if there are no parts.
pub(super) fn concatenate(pieces: &[(&DenseTensor, View)]) -> Result<Option<DenseTensor>> {
    let Some((first, _)) = pieces.first() else { return Ok(None) };
    let total = pieces.iter().map(|(_, view)| view.len()).sum();
    let mut cell = BufferData::unwritten(first.data.dtype(), total).map_err(KernelError::from)?;
    let mut offset = 0;
    for (block, view) in pieces {
        let piece = DenseTensor {
            shape: vec![view.len()],
            data: block.data.gather(view),
            written: block.written.gather(view),
            shadow: block.shadow.as_ref().map(|it| it.gather(view)),
        };
        scatter(&mut cell, &flat_range(offset, view.len()), &piece);
        offset += view.len();
    }
    let BufferData { data, written, shadow } = cell;
    Ok(Some(DenseTensor { shape: vec![total], data, written, shadow }))
}

/// Returns a contiguous view of `len` elements from `offset`.
pub(super) fn flat_range(offset: usize, len: usize) -> View {
    View { offset, ..View::contiguous(0, vec![len]) }
}

/// Formats a size, such as `1024 x bf16`.
fn size_text(len: usize, dtype: DType) -> String {
    format!("{len} x {}", dtype.short_name())
}

fn tensor_size_text(block: &DenseTensor) -> String {
    size_text(block.data.len(), block.data.dtype())
}
