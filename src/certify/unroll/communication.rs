//! Communications, their posts and Waits.

use super::{CommunicationType as Type, *};

/// A step that a rank posts to the queue of a communicator; `None`: one that the current stream executes.
pub(super) type Posted<'p> = (Option<Channel>, Step<'p>);

/// Where a rank meets others, as which of how many members, in what communication, and the position of its root or 0.
type Meeting = (Channel, usize, usize, Type, usize);

impl<'p> Unroller<'p, '_> {
    /// Posts a group of steps to their queue, behind what the current stream has been issued. It is empty on a rank that holds none of its
    /// buffers. A Wait does not wait for what a stream executes.
    pub(super) fn post(&mut self, number: Option<u32>, group: Vec<Posted<'p>>) -> Computed<()> {
        let mut ends = BTreeSet::new();
        if let Some((queue, _)) = group.first() {
            let issued = self.trace.chains[self.own.current].clone();
            let chain = queue.clone().map_or(self.own.current, |it| self.chain(it));
            self.trace.chains[chain].extend(issued);
            let steps = self.append(chain, group.into_iter().map(|it| it.1).collect())?;
            ends.extend(steps.into_iter().filter(|_| chain != self.own.current));
        }
        self.own.posted.extend(number.map(|it| (it, ends)));
        Ok(())
    }

    /// Returns the step of this rank as the member `me` of the next action of a channel, which has `count` members.
    fn meet(&mut self, channel: Channel, me: usize, count: usize, kind: Option<Kind>) -> Step<'p> {
        let posted = self.trace.counts.entry((channel.clone(), me)).or_insert(0);
        *posted += 1;
        let next = self.trace.actions.len();
        let action = *self.trace.posted.entry((channel, kind, *posted)).or_insert(next);
        if action == next {
            self.trace.actions.push(vec![None; count]);
        }
        self.step(action, me)
    }

    /// Returns the memory handle of a transfer, whose buffer this rank holds.
    fn handle(&self, stmt: &OpStmt, buffer: TensorId) -> Computed<Handle> {
        let peer = stmt.get(attr::PEER).and_then(|it| size(&self.scalars, it));
        let peer = peer.filter(|it| Some(*it) != self.rank && *it < self.ranks);
        let peer = peer.ok_or("the peer is this rank, or has no value that hir-certify can compute")?;
        let View { buffer, places, .. } = self.view(buffer)?;
        Ok((stmt.number, peer, buffer, places.first().copied()))
    }

    /// Both hosts of a transfer exchange handles that are new, and then all hosts wait for each other.
    pub(super) fn exchange(&mut self, stmt: &OpStmt) -> Computed<()> {
        let (rank, mut group) = (self.rank.unwrap_or(0), Vec::new());
        for id in stmt.get(attr::TRANSFERS).unwrap_or_default() {
            let Stmt::Op(it) = &self.program.stmts[*id] else { continue };
            let Some(buffer) = it.get(attr::BUFFER).filter(|it| self.holds(*it)) else { continue };
            let handle = self.handle(it, buffer)?;
            if !self.own.handles.contains_key(&handle) {
                let pair = pair(it, rank, handle.1);
                let step = self.meet(Channel::Handle(pair), usize::from(pair[1] == rank), 2, None);
                self.own.handles.insert(handle, step.action);
                group.push(step);
            }
        }
        if !group.is_empty() {
            let host = self.chain(Channel::Hosts);
            self.append(host, group)?;
            let all = self.meet(Channel::Hosts, rank, self.ranks, None);
            self.append(host, vec![all]).map(|steps| self.block_host(steps))?;
        }
        Ok(())
    }

    pub(super) fn wait(&mut self, stmt: &OpStmt) -> Computed<()> {
        let end = stmt.get(attr::WORK).and_then(|it| self.own.posted.remove(&it));
        self.trace.chains[self.own.current].extend(end.ok_or("this rank has not posted what it waits for")?);
        Ok(())
    }

    pub(super) fn communicate(&mut self, stmt: &'p OpStmt) -> Computed<()> {
        let (rank, ranks) = (self.rank.unwrap_or(0), self.ranks);
        let team: Rc<[usize]> = stmt.get(attr::TEAM).unwrap_or_default().into();
        let index = |key, n| {
            let value = stmt.get(key).map_or(Some(0), |it| size(&self.scalars, it));
            value.filter(|it| *it < n).ok_or("a root or a peer has no value that hir-certify can compute")
        };
        let backend = stmt.get(attr::BACKEND).unwrap_or(Backend::Nccl);
        let library = if self.own.group.is_some() { Backend::Nccl } else { backend };
        // All transfers between two ranks share the communicator of all ranks, whose team is empty here.
        let own: Rc<[usize]> = if team.iter().copied().eq(0..ranks) { Rc::default() } else { team.clone() };
        let channel = |pair| Channel::Team(library, own.clone(), pair);
        // A kernel or a copy of the CUDA backend follows only those that its stream has posted.
        let is_cuda = library == Backend::Cuda;
        let mut queue =
            if is_cuda { Channel::Post(self.own.stmt, self.own.current, None) } else { channel(None) };
        let protocol = stmt.get(attr::PROTOCOL).or(self.program.p2p_protocol()).unwrap_or(P2pProtocol::Get);
        let buffer = stmt.get(attr::BUFFER).filter(|it| self.holds(*it));
        let meetings: Vec<Meeting> = match (stmt.op, team.iter().position(|it| *it == rank), buffer) {
            (Op::Communication, Some(me), _) => {
                let kind = stmt.get(attr::TYPE).filter(|it| *it != Type::CollectivePermute);
                let kind = kind.ok_or_else(|| unknown(stmt.op))?;
                vec![(channel(None), me, team.len(), kind, index(attr::ROOT, team.len())?)]
            }
            (Op::CollectivePermute, Some(me), _) => {
                let [from, to] = [index(attr::RECV_PEER, team.len())?, index(attr::SEND_PEER, team.len())?];
                let (sends, receives) = (([me, to], 0), ([from, me], 1));
                [sends, receives].map(|(pair, me)| (channel(Some(pair)), me, 2, Type::SendRecv, 0)).into()
            }
            (Op::P2PCommunication, _, Some(buffer)) => {
                let pair = pair(stmt, rank, index(attr::PEER, ranks)?);
                let mut link = channel(Some(pair));
                if backend == Backend::Cuda {
                    let handle = self.own.handles.get(&self.handle(stmt, buffer)?).filter(|_| is_cuda);
                    let why = "no earlier ShareMemHandles shares the handle of its buffer with its peer";
                    link = Channel::Copy(*handle.ok_or(why)?, protocol);
                    queue = Channel::Post(self.own.stmt, self.own.current, Some(pair));
                }
                vec![(link, (stmt.get(attr::P2P_TYPE) == Some(P2pType::Recv)).into(), 2, Type::SendRecv, 0)]
            }
            (Op::Communication | Op::CollectivePermute | Op::P2PCommunication, ..) => Vec::new(),
            _ => return Err(unknown(stmt.op)),
        };
        let (mut group, mut kernels) = (Vec::new(), Vec::new());
        for meeting in meetings {
            let (_, me, _, kind, root) = meeting;
            let step = self.transfer(stmt, meeting)?;
            // The CUDA backend copies on the stream of the post, and a Wait is one for peers. The side that the protocol names copies, or the
            // root; else each member may copy.
            let copies = match (stmt.op, kind) {
                (Op::P2PCommunication, _) => Some(stmt.get(attr::P2P_TYPE) == Some(protocol.copier())),
                (Op::CollectivePermute, _) | (_, Type::Gather) => None,
                _ => kind.is_rooted().then_some(me == root),
            };
            if is_cuda && copies.is_none() {
                let kernel = self.step(step.action, self.trace.actions[step.action].len());
                self.trace.actions[step.action].push(None);
                let (reads, writes) = (step.reads.clone(), step.writes.clone());
                let function: Option<Function<'p>> = Some(Box::new(|_, _| Ok(Vec::new())));
                kernels.push(Step { reads, writes, function, ..kernel });
            }
            let step = Step { copies: step.is_late && copies == Some(true), ..step };
            group.push((Some(queue.clone()).filter(|_| !is_cuda || copies != Some(true)), step));
        }
        match &mut self.own.group {
            Some(open) => open.extend(group),
            None => self.post(stmt.number, group)?,
        }
        // A Wait for peers does not wait for the kernel of this rank, which begins when their kernels do.
        if !kernels.is_empty() {
            self.append(self.own.current, kernels)?;
        }
        Ok(())
    }

    /// Returns the step of this rank in a communication.
    fn transfer(&mut self, stmt: &OpStmt, (channel, me, n, kind, root): Meeting) -> Computed<Step<'p>> {
        let (facts, sends, receives) =
            (kind.facts(), kind.reads_input(Some(root), me), kind.has_result(Some(root), me, n));
        let members: Vec<usize> = (0..n).filter(|it| kind.reads_input(Some(root), *it)).collect();
        // With the CUDA backend, the side that copies waits until the other one is ready, which waits for the copy.
        let is_late = matches!(channel, Channel::Copy(..));
        let sources = if is_late { vec![0, 1] } else { members.clone() };
        let buffer = stmt.get(attr::BUFFER);
        let (input, output) = (stmt.get(attr::INPUT).or(buffer), stmt.get(attr::OUTPUT).or(buffer));
        let of = input.or(output).and_then(|it| self.program.tensors[it].dtype).unwrap_or(DType::Float);
        let word = stmt.get(attr::RED_OP).unwrap_or(RedOp::Sum).text();
        let why = "hir-certify does not know its `red_op` of these elements";
        let combine = kind.is_reduction().then(|| Combine::named(word, of).ok_or(why)).transpose()?;
        let (input, output) = (input.filter(|_| sends), output.filter(|it| receives && self.holds(*it)));
        let slice = input.and_then(|it| self.slice(it));
        let bound = |it| if buffer.is_some() { self.view(it) } else { self.output_view(it, slice) };
        let writes = Vec::from_iter(output.map(bound).transpose()?);
        let reads = Vec::from_iter(input.map(|it| self.view(it)).transpose()?);
        // The input may have a part for each member. Parts that are not combined follow each other.
        let sent = if facts.is_split { n } else { 1 };
        let received = if combine.is_some() { 1 } else { members.len() };
        let sizes = [(&reads, sent), (&writes, received)];
        let mut sizes = sizes.iter().flat_map(|(it, n)| it.iter().map(move |it| (it.places.len(), *n)));
        let len = sizes.clone().next().map_or(0, |(all, parts)| all / parts);
        let fits = sizes.all(|(all, parts)| all == len * parts);
        require(fits, "the two sides of the communication have different sizes")?;
        let how =
            (stmt.op, stmt.get(attr::ALGO).unwrap_or(Algorithm::Nccl), stmt.get(attr::MULTICAST_PROTOCOL));
        let step = self.meet(channel, me, n, Some((how, kind, root, combine, len, of)));
        let own = if facts.is_split { me * len } else { 0 };
        let function = move |algebra: &Algebra, all: &[Vec<Values>]| {
            let rows = members.iter().map(|it| all[*it].first()?.get(own..own + len));
            let rows = rows.collect::<Option<Vec<_>>>().ok_or("a member sends nothing")?;
            let column = |at: usize| rows.iter().map(|row| row[at]).collect::<Vec<_>>();
            let element = |how, at| algebra.in_range(algebra.combine(how, &column(at), of), of);
            let combined = |how| (0..len).map(|at| element(how, at)).collect();
            Ok(vec![combine.map_or_else(|| rows.concat(), combined)])
        };
        Ok(Step { reads, writes, function: Some(Box::new(function)), sources, is_late, ..step })
    }
}

/// Returns the rank that sends and the one that receives in a transfer with a peer.
fn pair(stmt: &OpStmt, rank: usize, peer: usize) -> [usize; 2] {
    if stmt.get(attr::P2P_TYPE) == Some(P2pType::Recv) { [peer, rank] } else { [rank, peer] }
}
