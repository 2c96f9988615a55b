//! Communications, their posts and Waits.

use super::*;

/// A rank's part of a communication: the step that begins it, with what is in use to the end, and the members whose data the rank receives.
pub(super) type Posted = (Step, Vec<usize>);

impl<'p> Unroller<'p, '_> {
    /// Posts transfers to the queue of their communicator, behind what the current stream has been issued. A group is empty on a rank that
    /// holds none of its buffers.
    pub(super) fn post(&mut self, number: Option<u32>, group: Vec<(Channel, Posted)>) -> Result<()> {
        // Transfers between two ranks share one communicator of all ranks. Those of the CUDA backend are copies of their own, of which one
        // number on one stream is not posted again before its Wait.
        let queue = match group.first().map(|it| &it.0) {
            Some(Channel::Pair(Backend::Cuda, ..)) => {
                Some(Channel::Pair(Backend::Cuda, self.stmt.map_or(0, |it| it.index()), self.current))
            }
            Some(Channel::Pair(backend, ..)) => Some(Channel::Pair(*backend, 0, 0)),
            other => other.cloned(),
        };
        let mut end = None;
        if let Some(queue) = queue {
            let (queue, issued) = (self.chain(queue), self.trace.chains[self.current].frontier.clone());
            self.trace.wait_for(queue, &issued);
            end = Some(self.run(queue, group.into_iter().map(|it| it.1).collect())?);
        }
        number.into_iter().for_each(|it| _ = self.posted.insert(it, end));
        Ok(())
    }

    /// Makes this rank a member of an action.
    pub(super) fn join(
        &mut self,
        action: usize,
        me: usize,
        sources: Vec<usize>,
        member: Member<'p>,
    ) -> Posted {
        let accesses = accesses(&member.reads, &member.writes);
        self.trace.actions[action].members[me] = Some(member);
        (Step { stmt: self.stmt, accesses, begins: Some((action, me)), ..Step::default() }, sources)
    }

    /// Begins and then ends transfers on a chain, and returns the last step.
    pub(super) fn run(&mut self, chain: usize, posted: Vec<Posted>) -> Result<usize> {
        let (mut lasts, mut ends, mut last) = (2 * posted.len() as u32, Vec::new(), 0);
        for (begin, sources) in posted {
            lasts -= 1;
            ends.extend(begin.begins.map(|(action, _)| (begin.stmt, action, sources)));
            self.append(Step { chain, lasts, ..begin })?;
        }
        for (stmt, action, sources) in ends {
            last = self.append(Step { stmt, chain, ends: Some(action), ..Step::default() })?;
            self.trace.actions[action].ends.push((last, sources));
        }
        Ok(last)
    }

    /// Returns the next communication of a channel.
    pub(super) fn meet(&mut self, channel: &Channel, me: usize, kind: Kind) -> Result<usize> {
        let posted = self.counts.entry((channel.clone(), me)).or_insert(0);
        *posted += 1;
        let found = self.trace.meet((channel.clone(), *posted), kind);
        Ok(found.ok_or("the members of the team post different collectives")?)
    }

    /// Returns the memory handle of a transfer, whose buffer this rank holds.
    fn handle(&self, stmt: &OpStmt, buffer: TensorId) -> Result<Handle> {
        let peer =
            stmt.get(attr::PEER).and_then(|it| size(&self.scalars, it)).filter(|it| Some(*it) != self.rank);
        let peer = peer.ok_or("the peer is this rank, or has no value that hir-certify can compute")?;
        let View { buffer, places } = self.view(buffer)?;
        Ok((stmt.number, peer, buffer, places.first().copied()))
    }

    /// Both hosts of a transfer exchange handles that are new, and then all hosts wait for each other.
    pub(super) fn exchange(&mut self, stmt: &OpStmt) -> Result<()> {
        let (mut posted, me) = (Vec::new(), self.rank.unwrap_or(0));
        for id in stmt.get(attr::TRANSFERS).unwrap_or_default() {
            let Stmt::Op(it) = &self.program.stmts[*id] else { continue };
            let Some(buffer) = it.get(attr::BUFFER).filter(|it| self.holds(*it)) else { continue };
            let handle = self.handle(it, buffer)?;
            if self.handles.insert(handle) {
                let receives = it.get(attr::P2P_TYPE) == Some(P2pType::Recv);
                let sides = if receives { [handle.1, me] } else { [me, handle.1] };
                posted.push(self.meet_hosts(sides.into(), usize::from(receives), Type::SendRecv)?);
            }
        }
        if !posted.is_empty() {
            posted.push(self.meet_hosts((0..self.ranks).collect(), me, Type::Allgather)?);
            let host = self.chain(Channel::Hosts([].into()));
            self.run(host, posted)?;
        }
        Ok(())
    }

    fn meet_hosts(&mut self, hosts: Rc<[usize]>, me: usize, communication: Type) -> Result<Posted> {
        let kind = Kind { communication, root: 0, combine: Combine::Sum, integral: false, len: 0 };
        let action = self.meet(&Channel::Hosts(hosts), me, kind)?;
        Ok(self.join(action, me, Vec::new(), self.member(None, Vec::new(), Vec::new())))
    }

    pub(super) fn wait(&mut self, stmt: &OpStmt) -> Result<()> {
        let number = stmt.get(attr::WORK).ok_or("the Wait has no number")?;
        let missing = || format!("this rank waits for communication {number}, but has not posted it");
        let end = self.posted.remove(&number).ok_or_else(missing)?;
        end.into_iter().for_each(|it| self.trace.wait_for(self.current, &[it]));
        Ok(())
    }

    pub(super) fn communicate(&mut self, stmt: &OpStmt) -> Result<()> {
        let (rank, program) = (self.rank.unwrap_or(0), self.program);
        let backend = stmt.get(attr::BACKEND).unwrap_or(Backend::Nccl);
        let index = |key, n| {
            let value = stmt.get(key).map_or(Some(0), |it| size(&self.scalars, it));
            value.filter(|it| *it < n).ok_or("a root or a peer has no value that hir-certify can compute")
        };
        let team: Rc<[usize]> = stmt.get(attr::TEAM).unwrap_or_default().into();
        let (n, position) = (team.len(), team.iter().position(|it| *it == rank));
        let team = Channel::Team(backend, team);
        let buffer = stmt.get(attr::BUFFER).filter(|it| self.holds(*it));
        let (channel, me, kind, root, peers) = match (stmt.op, position, buffer) {
            (Op::Communication, Some(me), _) => {
                (team, me, stmt.get(attr::TYPE).unwrap_or(Type::Allreduce), index(attr::ROOT, n)?, None)
            }
            // The root is the member from which this one receives.
            (Op::CollectivePermute, Some(me), _) => {
                let [from, to] = [index(attr::RECV_PEER, n)?, index(attr::SEND_PEER, n)?];
                (team, me, Type::CollectivePermute, from, Some([from, to]))
            }
            (Op::P2PCommunication, _, Some(buffer)) => {
                let is_grouped = self.group.is_some();
                if backend == Backend::Cuda
                    && (is_grouped || !self.handles.contains(&self.handle(stmt, buffer)?))
                {
                    return Err(
                        "no earlier ShareMemHandles shares the handle of its buffer with its peer".to_owned()
                    );
                }
                let peer = index(attr::PEER, self.ranks)?;
                let backend = if is_grouped { Backend::Nccl } else { backend };
                let receives = stmt.get(attr::P2P_TYPE) == Some(P2pType::Recv);
                let (from, to) = if receives { (peer, rank) } else { (rank, peer) };
                (Channel::Pair(backend, from, to), usize::from(receives), Type::SendRecv, 0, None)
            }
            (Op::Communication | Op::CollectivePermute | Op::P2PCommunication, ..) => {
                stmt.number.into_iter().for_each(|it| _ = self.posted.insert(it, None));
                return Ok(());
            }
            _ => return Err(unknown(stmt.op)),
        };
        let n = channel.ranks().len();
        let sends = me == root || !matches!(kind, Type::Broadcast | Type::Scatter | Type::SendRecv);
        let receives = match kind {
            Type::SendRecv => n == 1 || me == usize::from(root == 0),
            _ => me == root || kind.writes_on_every_rank(),
        };
        let is_of_root =
            matches!(kind, Type::Broadcast | Type::Scatter | Type::SendRecv | Type::CollectivePermute);
        let sources: Vec<usize> = if is_of_root { vec![root] } else { (0..n).collect() };
        // Whether the input has a part for each member, and whether the parts are combined; else they follow each other.
        let is_split = matches!(kind, Type::Scatter | Type::ReduceScatter | Type::AllToAll);
        let is_sum = kind.is_reduction();

        let (input, output) = (stmt.get(attr::INPUT).or(buffer), stmt.get(attr::OUTPUT).or(buffer));
        let is_bool = input.is_some_and(|it| program.tensors[it].dtype == Some(DType::Bool));
        let integral = input.is_some_and(|it| is_integral(program, it));
        let combine = Combine::named(stmt.get(attr::RED_OP).unwrap_or(RedOp::Sum).text(), is_bool);
        let combine = combine.ok_or("its `red_op` is unknown")?;
        let input = input.filter(|_| sends).map(|it| self.view(it)).transpose()?;
        let output =
            output.filter(|it| receives && self.holds(*it)).map(|it| self.output_view(it)).transpose()?;
        let (sent_parts, received) = (if is_split { n } else { 1 }, if is_sum { 1 } else { sources.len() });
        let sides = [(&input, sent_parts), (&output, received)].into_iter();
        let sides: Vec<_> =
            sides.filter_map(|(it, count)| Some((it.as_ref()?.places.len(), count))).collect();
        let len = sides.first().map_or(0, |(all, count)| all / count);
        if sides.iter().any(|(all, count)| *all != len * count) {
            return Err("the two sides of the communication have different sizes".to_owned());
        }
        let agreed = if kind == Type::CollectivePermute { 0 } else { root };
        let kind = Kind { communication: kind, root: agreed, combine, integral, len };
        let action = self.meet(&channel, me, kind)?;
        let own = if is_split { me } else { 0 };
        let members = sources.clone();
        let function = move |algebra: &Algebra, all: &[Vec<Values>]| {
            let sent: Vec<&Values> = members.iter().filter_map(|it| all[*it].first()).collect();
            let row = |it: &&Values| it.data.get(own * len..(own + 1) * len).map(<[_]>::to_vec);
            let rows = sent.iter().map(row).collect::<Option<Vec<_>>>().ok_or("a member sends nothing")?;
            let mut degree = sent.iter().map(|it| it.degree).max().unwrap_or(0);
            let data = if is_sum {
                degree =
                    degree.saturating_mul(if combine == Combine::Product { sent.len() as u64 } else { 1 });
                let column = |at: usize| rows.iter().map(|row| row[at]).collect::<Vec<_>>();
                (0..len).map(|at| algebra.combine(combine, integral, &column(at))).collect()
            } else {
                rows.concat().into()
            };
            Ok(vec![Values { data, degree }])
        };
        let [reads, writes] = [input, output].map(Vec::from_iter);
        let function: Option<Function<'p>> = Some(Box::new(function));
        let posted = self.join(action, me, sources, Member { peers, ..self.member(function, reads, writes) });
        // Of the two members of each transfer, the one that posts it later compares them.
        let members = &self.trace.actions[action].members;
        let differs = |at: usize, end: usize| {
            members[at].as_ref().and_then(|it| it.peers).is_some_and(|it| it[end] != me)
        };
        if peers.is_some_and(|[from, to]| differs(from, 1) || differs(to, 0)) {
            return Err("a member receives from one that sends to another member".to_owned());
        }
        match &mut self.group {
            Some(group) => group.push((channel, posted)),
            None => self.post(stmt.number, vec![(channel, posted)])?,
        }
        Ok(())
    }
}
