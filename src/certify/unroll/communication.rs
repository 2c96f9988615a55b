//! Communications, their posts and Waits.

use super::{CommunicationType as Type, *};

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

    /// Begins and then ends transfers on a chain, and returns the last step.
    fn run(&mut self, chain: usize, posted: Vec<Posted>) -> Result<usize> {
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

    /// Makes this rank a member of the next communication of a channel, which has `count` members, and returns the step that begins it.
    fn meet(
        &mut self,
        channel: &Channel,
        (me, count): (usize, usize),
        kind: Kind,
        member: Member<'p>,
    ) -> Result<Step> {
        let posted = self.counts.entry((channel.clone(), me)).or_insert(0);
        *posted += 1;
        let next = self.trace.actions.len();
        let action = *self.trace.posted.entry((channel.clone(), *posted)).or_insert(next);
        if action == next {
            let members = (0..count).map(|_| None).collect();
            self.trace.actions.push(Action { kind: Some(kind), members, ends: Vec::new() });
        }
        let Action { kind: other, members, .. } = &self.trace.actions[action];
        if *other != Some(kind) {
            return Err("the members of the team post different collectives".to_owned());
        }
        // Of two members, the one that posts later compares what they send to each other.
        let sides = |of: &Member<'_>, with: usize, flip: bool| {
            let sides = of.sides.iter().filter(|it| it.0 == with);
            let mut sides: Vec<bool> = sides.map(|it| it.1 != flip).collect();
            sides.sort_unstable();
            sides
        };
        let others = members.iter().enumerate().filter_map(|(at, it)| Some((at, it.as_ref()?)));
        if others.chain([(me, &member)]).any(|(at, it)| sides(it, me, false) != sides(&member, at, true)) {
            return Err("a member receives from one that sends to another member".to_owned());
        }
        Ok(self.begin(action, me, member))
    }

    /// Returns the memory handle of a transfer, whose buffer this rank holds.
    fn handle(&self, stmt: &OpStmt, buffer: TensorId) -> Result<Handle> {
        let peer = stmt.get(attr::PEER).and_then(|it| size(&self.scalars, it));
        let peer = peer.filter(|it| Some(*it) != self.rank && *it < self.ranks);
        let peer = peer.ok_or("the peer is this rank, or has no value that hir-certify can compute")?;
        let View { buffer, places } = self.view(buffer, &self.part(buffer, None)?)?;
        Ok((stmt.number, peer, buffer, places.first().copied()))
    }

    /// All hosts wait for each other, and both hosts of a transfer exchange handles that are new.
    pub(super) fn exchange(&mut self, stmt: &OpStmt) -> Result<()> {
        let mut member = self.member(None, Vec::new(), Vec::new());
        for id in stmt.get(attr::TRANSFERS).unwrap_or_default() {
            let Stmt::Op(it) = &self.program.stmts[*id] else { continue };
            let Some(buffer) = it.get(attr::BUFFER).filter(|it| self.holds(*it)) else { continue };
            let handle = self.handle(it, buffer)?;
            if self.handles.insert(handle) {
                member.sides.push((handle.1, it.get(attr::P2P_TYPE) == Some(P2pType::Recv)));
            }
        }
        if !member.sides.is_empty() {
            let (combine, me) = (Combine::Sum, (self.rank.unwrap_or(0), self.ranks));
            let kind = Kind { communication: Type::Allgather, root: 0, combine, integral: false, len: 0 };
            let begin = self.meet(&Channel::Hosts, me, kind, member)?;
            let host = self.chain(Channel::Hosts);
            self.run(host, vec![(begin, Vec::new())])?;
        }
        Ok(())
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
        let mut sides = Vec::new();
        let (channel, me, n, kind, root) = match (stmt.op, position, buffer) {
            (Op::Communication, Some(me), _) => {
                (team, me, n, stmt.get(attr::TYPE).unwrap_or(Type::Allreduce), index(attr::ROOT, n)?)
            }
            // The root is the member from which this one receives.
            (Op::CollectivePermute, Some(me), _) => {
                let [from, to] = [index(attr::RECV_PEER, n)?, index(attr::SEND_PEER, n)?];
                sides = vec![(from, true), (to, false)];
                (team, me, n, Type::CollectivePermute, from)
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
                (Channel::Pair(backend, from, to), usize::from(receives), 2, Type::SendRecv, 0)
            }
            (Op::Communication | Op::CollectivePermute | Op::P2PCommunication, ..) => {
                stmt.number.into_iter().for_each(|it| _ = self.posted.insert(it, None));
                return Ok(());
            }
            _ => return Err(unknown(stmt.op)),
        };
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
        let (input, output) = (input.filter(|_| sends), output.filter(|it| receives && self.holds(*it)));
        output.map_or(Ok(()), |it| self.output_view(it, None))?;
        let view = |it: TensorId| self.view(it, &self.part(it, None)?);
        let [reads, writes] = [input, output].map(|it| it.map(view).transpose());
        let [reads, writes] = [reads?, writes?].map(Vec::from_iter);
        let (sent_parts, received) = (if is_split { n } else { 1 }, if is_sum { 1 } else { sources.len() });
        let sizes = reads.iter().map(|it| (it, sent_parts)).chain(writes.iter().map(|it| (it, received)));
        let mut sizes = sizes.map(|(view, parts)| (view.places.len(), parts));
        let len = sizes.clone().next().map_or(0, |(all, parts)| all / parts);
        if sizes.any(|(all, parts)| all != len * parts) {
            return Err("the two sides of the communication have different sizes".to_owned());
        }
        let agreed = if kind == Type::CollectivePermute { 0 } else { root };
        let kind = Kind { communication: kind, root: agreed, combine, integral, len };
        let own = if is_split { me * len } else { 0 };
        let members = sources.clone();
        let function = move |algebra: &Algebra, all: &[Vec<Values>]| {
            let sent: Vec<&Values> = members.iter().filter_map(|it| all[*it].first()).collect();
            let rows = sent.iter().map(|it| it.data.get(own..own + len)).collect::<Option<Vec<_>>>();
            let rows = rows.filter(|it| it.len() == members.len()).ok_or("a member sends nothing")?;
            let mut degree = sent.iter().map(|it| it.degree).max().unwrap_or(0);
            if combine == Combine::Product {
                degree = degree.saturating_mul(sent.len() as u64);
            }
            let column = |at: usize| rows.iter().map(|row| row[at]).collect::<Vec<_>>();
            let combined = (0..len).map(|at| algebra.combine(combine, integral, &column(at)));
            let data = if is_sum { combined.collect() } else { rows.concat().into() };
            Ok(vec![Values { data, degree }])
        };
        let member = Member { sides, ..self.member(Some(Box::new(function)), reads, writes) };
        let posted = (self.meet(&channel, (me, n), kind, member)?, sources);
        match &mut self.group {
            Some(group) => group.push((channel, posted)),
            None => self.post(stmt.number, vec![(channel, posted)])?,
        }
        Ok(())
    }
}
