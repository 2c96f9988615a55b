//! Communications, their posts and Waits.

use std::rc::Rc;

use grammar::{
    arena::Id,
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    dtype::DType,
    ir::{OpStmt, Stmt, TensorId},
    ops::Op,
    words::{Backend, CommunicationType, P2pType, RedOp},
};
use ndarray::Axis;

use super::{Result, Unroller, is_integral};
use crate::{
    field::Combine,
    part::size,
    tape::{Channel, Effect, Function, Kind, Step},
    tensor::{Array, View, array, reshape},
};

/// The beginning and the end of transfers that are posted together.
pub(super) type Posted = [Step; 2];

/// How the input of a collective becomes the output.
struct Movement {
    /// Whether this member contributes its input.
    sends: bool,
    /// The members whose inputs the output has.
    sources: Vec<usize>,
    /// Whether the input has a part for each member.
    is_split: bool,
    /// Whether the parts are combined; else they follow each other.
    is_sum: bool,
}

impl Unroller<'_> {
    /// Posts transfers to the queue of their communicator, behind what the current stream has been issued.
    fn post(&mut self, number: Option<u32>, channel: &Channel, posted: Posted) -> Result<()> {
        // Transfers between two ranks share one communicator of all ranks. Those of the CUDA backend are copies of their own, of which one
        // number on one stream is not posted again before its Wait.
        let queue = match channel {
            Channel::Pair(Backend::Cuda, ..) => {
                Channel::Pair(Backend::Cuda, self.stmt.map_or(0, |it| it.index()), self.current)
            }
            Channel::Pair(backend, ..) => Channel::Pair(*backend, 0, 0),
            other => other.clone(),
        };
        let queue = self.chain(queue);
        let issued = self.frontiers[self.current].clone();
        self.wait_for(queue, &issued);
        let end = self.run(queue, posted)?;
        number.into_iter().for_each(|it| _ = self.posted.insert(it, Some(end)));
        Ok(())
    }

    /// Posts the transfers of a group, which is empty on a rank that holds none of its buffers.
    pub(super) fn post_group(&mut self, number: Option<u32>) -> Result<()> {
        match self.group.take().flatten() {
            Some((channel, posted)) => self.post(number, &channel, posted)?,
            None => number.into_iter().for_each(|it| _ = self.posted.insert(it, None)),
        }
        Ok(())
    }

    /// Begins and ends transfers on a chain, and returns the step that ends them.
    pub(super) fn run(&mut self, chain: usize, posted: Posted) -> Result<usize> {
        let [begin, end] = posted.map(|it| Step { stmt: self.stmt, chain, ..it });
        self.append(begin)?;
        self.append(end)
    }

    /// Returns the number of the next communication of a channel, and the first of its `count` buffers of `len` elements.
    pub(super) fn meet(
        &mut self,
        (channel, me): (&Channel, usize),
        kind: Kind,
        (count, len): (usize, usize),
    ) -> Result<(usize, usize)> {
        let posted = self.counts.entry((channel.clone(), me)).or_insert(0);
        *posted += 1;
        let place = (channel.clone(), *posted);
        let meeting = self.shared.meet(place, kind, count, len);
        let meeting =
            meeting.ok_or_else(|| self.disagreement("the members of the team post different collectives"))?;
        Ok((meeting, self.shared.meetings[meeting].buffer))
    }

    /// Hosts exchange handles that are new, and then wait for each other.
    pub(super) fn exchange(&mut self, stmt: &OpStmt) -> Result<()> {
        let mut is_new = false;
        for id in stmt.get(attr::TRANSFERS).unwrap_or_default() {
            let Stmt::Op(it) = &self.program.stmts[*id] else { continue };
            let buffer = it.get(attr::BUFFER).filter(|it| self.holds(*it));
            let Some((buffer, peer)) = buffer.zip(it.get(attr::PEER)) else { continue };
            let peer = self.need(size(&self.scalars, peer), "the peer")?;
            let View { buffer, places } = self.view(buffer)?;
            is_new |= self.handles.insert((it.number, peer, buffer, places.first().copied()));
        }
        self.tape.exchanges += usize::from(is_new);
        Ok(())
    }

    pub(super) fn wait(&mut self, stmt: &OpStmt) -> Result<()> {
        let number = self.need(stmt.get(attr::WORK), "the number of a Wait")?;
        let Some(end) = self.posted.remove(&number) else {
            let message = format!("this rank waits for communication {number}, but has not posted it");
            return Err(self.refuse(message));
        };
        end.into_iter().for_each(|it| self.wait_for(self.current, &[it]));
        Ok(())
    }

    pub(super) fn communicate(&mut self, stmt: &OpStmt) -> Result<()> {
        let backend = stmt.get(attr::BACKEND).unwrap_or(Backend::Nccl);
        let rank = self.rank.unwrap_or(0);
        let index = |key, n| {
            let value = stmt.get(key).map_or(Some(0), |it| size(&self.scalars, it));
            self.need(value.filter(|it| *it < n), "a root or a peer")
        };
        let team: Rc<[usize]> = stmt.get(attr::TEAM).unwrap_or_default().into();
        let (n, position) = (team.len(), team.iter().position(|it| *it == rank));
        let team = Channel::Team(backend, team);
        let buffer = stmt.get(attr::BUFFER).filter(|it| self.holds(*it));
        let (mut input, mut output) = (stmt.get(attr::INPUT), stmt.get(attr::OUTPUT));
        let of_input = |is: &dyn Fn(TensorId) -> bool| input.is_some_and(is);
        let is_bool = of_input(&|it| self.program.tensors[it].dtype == Some(DType::Bool));
        let mut kind = Kind {
            kind: CommunicationType::SendRecv,
            root: 0,
            combine: combine_of(stmt.get(attr::RED_OP).unwrap_or(RedOp::Sum), is_bool),
            integral: of_input(&|it| is_integral(self.program, it)),
            len: 0,
        };
        let (channel, me, movement) = match (stmt.op, position, buffer) {
            (Op::Communication, Some(me), _) => {
                kind.kind = stmt.get(attr::TYPE).unwrap_or(CommunicationType::Allreduce);
                kind.root = index(attr::ROOT, n)?;
                (team, me, movement(kind.kind, me, kind.root, n))
            }
            (Op::CollectivePermute, Some(me), _) => {
                kind.kind = CommunicationType::CollectivePermute;
                (team, me, movement(kind.kind, me, index(attr::RECV_PEER, n)?, n))
            }
            (Op::P2PCommunication, _, Some(_)) => {
                let peer = index(attr::PEER, self.ranks)?;
                let backend = if self.group.is_some() { Backend::Nccl } else { backend };
                let receives = stmt.get(attr::P2P_TYPE) == Some(P2pType::Recv);
                let (from, to) = if receives { (peer, rank) } else { (rank, peer) };
                (input, output) = (buffer, buffer);
                let me = usize::from(receives);
                (Channel::Pair(backend, from, to), me, movement(kind.kind, me, 0, 2))
            }
            (Op::Communication | Op::CollectivePermute | Op::P2PCommunication, ..) => {
                stmt.number.into_iter().for_each(|it| _ = self.posted.insert(it, None));
                return Ok(());
            }
            _ => return Err(self.unknown(stmt.op)),
        };
        let input = input.filter(|_| movement.sends).map(|it| self.view(it)).transpose()?;
        let output = output.filter(|it| !movement.sources.is_empty() && self.holds(*it));
        let output = output.map(|it| self.output_view(it)).transpose()?;
        let own = self.transfer((&channel, me), kind, movement, [input, output])?;
        match &mut self.group {
            Some(Some((_, posted))) => posted.iter_mut().zip(own).for_each(|(all, own)| all.extend(own)),
            Some(group) => *group = Some((channel, own)),
            None => self.post(stmt.number, &channel, own)?,
        }
        Ok(())
    }

    /// Returns a side of a communication: the input is copied to a buffer of the communication, and the output is made of those of the sources.
    fn transfer(
        &mut self,
        (channel, me): (&Channel, usize),
        kind: Kind,
        movement: Movement,
        [input, output]: [Option<View>; 2],
    ) -> Result<Posted> {
        let Movement { sources, is_split, is_sum, .. } = movement;
        let n = channel.ranks().len();
        let (sent, received) = (if is_split { n } else { 1 }, if is_sum { 1 } else { sources.len() });
        let size = |it: &Option<View>, count: usize| it.as_ref().map(|it| (it.places.len(), count));
        let mut sizes = [size(&input, sent), size(&output, received)].into_iter().flatten();
        let (all, count) = sizes.next().unwrap_or((0, 1));
        let len = all / count;
        if all != len * count || sizes.any(|(all, count)| all != len * count) {
            return Err(self.disagreement("the two sides of the communication have different sizes"));
        }
        let (meeting, buffer) = self.meet((channel, me), Kind { len, ..kind }, (n, len * sent))?;
        let part = |buffer: usize, places: &Array<usize>, at: usize| View {
            buffer,
            places: places.clone().index_axis_move(Axis(0), at),
        };
        let sent = array(&[sent, len], (0..len * sent).collect());
        let mut begin = Step { begins: vec![(meeting, me)], ..Step::default() };
        let mut end = Step::default();
        if let Some(input) = input {
            let own = View { buffer: buffer + me, places: sent.clone() };
            begin.effects.push(Effect {
                function: Function::Copy,
                reads: vec![input.clone()],
                writes: vec![own],
            });
            begin.reads.push(input);
        }
        if let Some(output) = output {
            let own = if is_split { me } else { 0 };
            let reads = sources.iter().map(|it| part(buffer + it, &sent, own)).collect();
            let places = reshape(&output.places, &[received, len]).unwrap_or_default();
            let writes = (0..received).map(|at| part(output.buffer, &places, at)).collect();
            let sum = Function::Reduce(kind.combine, kind.integral);
            end.effects.push(Effect { function: if is_sum { sum } else { Function::Copy }, reads, writes });
            end.ends.push((meeting, sources));
            begin.writes.push(output);
        } else {
            end.ends.push((meeting, Vec::new()));
        }
        Ok([begin, end])
    }

    fn disagreement(&self, message: &str) -> Box<Diagnostic> {
        let mut it = self.refuse(message);
        it.code = Code::Disagreement;
        it
    }
}

/// Returns what a member of a team of `n` sends and receives. The root of a permutation is the member from which this one receives.
fn movement(kind: CommunicationType, me: usize, root: usize, n: usize) -> Movement {
    use CommunicationType as Type;
    let of_all = |receives: bool| if receives { (0..n).collect() } else { Vec::new() };
    let is_root = me == root;
    let (sends, sources, is_split, is_sum) = match kind {
        Type::Broadcast => (is_root, vec![root], false, false),
        Type::Scatter => (is_root, vec![root], true, false),
        Type::Gather => (true, of_all(is_root), false, false),
        Type::Reduce => (true, of_all(is_root), false, true),
        Type::Allgather => (true, of_all(true), false, false),
        Type::Allreduce => (true, of_all(true), false, true),
        Type::ReduceScatter => (true, of_all(true), true, true),
        Type::AllToAll => (true, of_all(true), true, false),
        Type::CollectivePermute => (true, vec![root], false, false),
        Type::SendRecv if n == 1 || me == usize::from(root == 0) => (is_root, vec![root], false, false),
        Type::SendRecv => (is_root, Vec::new(), false, false),
    };
    Movement { sends, sources, is_split, is_sum }
}

/// Returns how a collective combines elements.
fn combine_of(op: RedOp, is_bool: bool) -> Combine {
    match op {
        RedOp::Sum => Combine::Sum,
        RedOp::Avg => Combine::Average,
        RedOp::Product => Combine::Product,
        RedOp::Max => Combine::lattice("max", is_bool),
        RedOp::Min => Combine::lattice("min", is_bool),
        RedOp::BitAnd => Combine::Lattice("and"),
        RedOp::BitOr => Combine::Lattice("or"),
        RedOp::BitXor => Combine::Lattice("xor"),
    }
}
