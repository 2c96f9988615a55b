//! Communications, their posts and Waits.

use super::*;

/// The beginning and the end of a transfer.
pub(super) type Posted<'p> = [Step<'p>; 2];

impl<'p> Unroller<'p, '_> {
    /// Posts transfers to the queue of their communicator, behind what the current stream has been issued. A group is empty on a rank that
    /// holds none of its buffers.
    pub(super) fn post(&mut self, number: Option<u32>, group: Vec<(Channel, Posted<'p>)>) -> Result<()> {
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
            let (queue, issued) = (self.chain(queue), self.frontiers[self.current].clone());
            self.wait_for(queue, &issued);
            end = Some(self.run(queue, group.into_iter().map(|it| it.1).collect())?);
        }
        number.into_iter().for_each(|it| _ = self.posted.insert(it, end));
        Ok(())
    }

    /// Begins and then ends transfers on a chain, and returns the last step. What they access is in use to the end.
    pub(super) fn run(&mut self, chain: usize, posted: Vec<Posted<'p>>) -> Result<usize> {
        let mut left = 2 * posted.len() as u32;
        let (begins, ends): (Vec<_>, Vec<_>) = posted.into_iter().map(<(_, _)>::from).unzip();
        let mut last = 0;
        for step in begins.into_iter().chain(ends) {
            left -= 1;
            last = self.append(Step { chain, lasts: left, ..step })?;
        }
        Ok(last)
    }

    /// Returns the number of the next communication of a channel, and the first of its `count` buffers of `len` elements.
    pub(super) fn meet(
        &mut self,
        (channel, me): (&Channel, usize),
        kind: Kind,
        buffers: (usize, usize),
    ) -> Result<(usize, usize)> {
        let posted = self.counts.entry((channel.clone(), me)).or_insert(0);
        *posted += 1;
        let found = self.shared.meet((channel.clone(), *posted), kind, buffers);
        Ok(found.ok_or("the members of the team post different collectives")?)
    }

    /// Hosts exchange handles that are new, and then wait for each other.
    pub(super) fn exchange(&mut self, stmt: &OpStmt) -> Result<()> {
        let mut is_new = false;
        for id in stmt.get(attr::TRANSFERS).unwrap_or_default() {
            let Stmt::Op(it) = &self.program.stmts[*id] else { continue };
            let buffer = it.get(attr::BUFFER).filter(|it| self.holds(*it));
            let Some((buffer, peer)) = buffer.zip(it.get(attr::PEER)) else { continue };
            let peer =
                size(&self.scalars, peer).ok_or("the peer has no value that hir-certify can compute")?;
            let View { buffer, places } = self.view(buffer)?;
            is_new |= self.handles.insert((it.number, peer, buffer, places.first().copied()));
        }
        self.tape.exchanges += usize::from(is_new);
        Ok(())
    }

    pub(super) fn wait(&mut self, stmt: &OpStmt) -> Result<()> {
        let number = stmt.get(attr::WORK).ok_or("the Wait has no number")?;
        let missing = || format!("this rank waits for communication {number}, but has not posted it");
        let end = self.posted.remove(&number).ok_or_else(missing)?;
        end.into_iter().for_each(|it| self.wait_for(self.current, &[it]));
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
        let (channel, me, kind, root) = match (stmt.op, position, buffer) {
            (Op::Communication, Some(me), _) => {
                (team, me, stmt.get(attr::TYPE).unwrap_or(Type::Allreduce), index(attr::ROOT, n)?)
            }
            // The root is the member from which this one receives.
            (Op::CollectivePermute, Some(me), _) => {
                (team, me, Type::CollectivePermute, index(attr::RECV_PEER, n)?)
            }
            (Op::P2PCommunication, _, Some(_)) => {
                let peer = index(attr::PEER, self.ranks)?;
                let backend = if self.group.is_some() { Backend::Nccl } else { backend };
                let receives = stmt.get(attr::P2P_TYPE) == Some(P2pType::Recv);
                let (from, to) = if receives { (peer, rank) } else { (rank, peer) };
                (Channel::Pair(backend, from, to), usize::from(receives), Type::SendRecv, 0)
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
        let (sent, received) = (if is_split { n } else { 1 }, if is_sum { 1 } else { sources.len() });
        let sides = [(&input, sent), (&output, received)].into_iter();
        let sides: Vec<_> =
            sides.filter_map(|(it, count)| Some((it.as_ref()?.places.len(), count))).collect();
        let len = sides.first().map_or(0, |(all, count)| all / count);
        if sides.iter().any(|(all, count)| *all != len * count) {
            return Err("the two sides of the communication have different sizes".to_owned());
        }
        let agreed = if kind == Type::CollectivePermute { 0 } else { root };
        let kind = (kind, agreed, combine, integral, len);
        let (meeting, buffer) = self.meet((&channel, me), kind, (n, len * sent))?;
        let sent = array(&[sent, len], (0..len * sent).collect());
        let part = |buffer: usize, places: &Array<usize>, at: usize| View {
            buffer,
            places: places.clone().index_axis_move(Axis(0), at),
        };
        let mut begin = Step { stmt: self.stmt, begins: Some((meeting, me)), ..Step::default() };
        let mut end = Step { stmt: self.stmt, ends: Some((meeting, Vec::new())), ..Step::default() };
        if let Some(input) = input {
            begin.accesses.push((input.clone(), false));
            begin.reads.push(input);
            begin.writes.push(View { buffer: buffer + me, places: sent.clone() });
        }
        if let Some(output) = output {
            let own = if is_split { me } else { 0 };
            let places = reshape(&output.places, &[received, len]).unwrap_or_default();
            end.reads = sources.iter().map(|it| part(buffer + it, &sent, own)).collect();
            end.writes = (0..received).map(|at| part(output.buffer, &places, at)).collect();
            end.ends = Some((meeting, sources));
            begin.accesses.push((output, true));
        }
        if is_sum && !end.writes.is_empty() {
            end.function = Some(Box::new(move |algebra, args| {
                let data: Vec<_> = args.iter().map(|it| it.data.clone()).collect();
                let data = map(&[len], &data, |row| algebra.combine(combine, integral, row))?;
                let products = if combine == Combine::Product { args.len() as u64 } else { 1 };
                let degree = args.iter().map(|it| it.degree).max().unwrap_or(0).saturating_mul(products);
                Ok(vec![Values { data, degree }])
            }));
        }
        match &mut self.group {
            Some(group) => group.push((channel, [begin, end])),
            None => self.post(stmt.number, vec![(channel, [begin, end])])?,
        }
        Ok(())
    }
}
