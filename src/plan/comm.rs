//! Lowers the communications of one rank.
//!
//! This module posts every communication to its communicator, whatever its backend. Once the views of all
//! members are known, `transport` replaces the communications that no library executes by copies, reductions
//! and signals.

use std::sync::Arc;

use super::{
    Backend, Collective, CollectiveKind, Communicator, CommunicatorNo, Direction, InstKind, MemHandle,
    P2pGroup, P2pOp, ReduceOp, View, WorkNo,
    context::{NOT_IMPLEMENTED, PlanBuilder, Result},
    limits::too_few_ranks_text,
    missing_handles::insertions,
    posted::{PostedComm, Request},
    teams::position_in,
};
use grammar::{
    Code, CommunicationType, Diagnostic, ExprId, Op, OpStmt, Span, Stmt, StmtId, TensorId, attr, words,
};

impl PlanBuilder<'_> {
    pub(super) fn communicate(&mut self, stmt: &OpStmt) -> Result<()> {
        if let Some(number) = stmt.number {
            self.posted.insert(number, PostedComm::Elsewhere);
        }
        match stmt.op {
            Op::P2PCommunication => self.p2p(stmt),
            Op::CollectivePermute => self.permute(stmt),
            Op::Communication => self.collective(stmt),
            Op::Dispatch | Op::Combine => self.exchange_tokens(stmt),
            _ => Err(self.unsupported(stmt.op, NOT_IMPLEMENTED)),
        }
    }

    pub(super) fn number(&self, stmt: &OpStmt) -> u32 {
        stmt.number.unwrap_or(u32::MAX)
    }

    /// Returns the number of a communicator, and adds it to the plan if it is new. `team` must come from
    /// `Teams`, which stores equal teams once, so that teams can be compared by address.
    pub(super) fn communicator(&mut self, backend: Backend, team: Arc<[usize]>) -> CommunicatorNo {
        let next = self.plan.communicators.len() as CommunicatorNo;
        let number = *self.comm.communicators.entry((backend, Arc::as_ptr(&team))).or_insert(next);
        if number == next {
            self.plan.communicators.push(Communicator { backend, team, pair_of: None });
        }
        number
    }

    pub(super) fn new_work(&mut self, number: Option<u32>, request: Request) -> WorkNo {
        let work = self.plan.work_count as WorkNo;
        self.plan.work_count += 1;
        self.requests.push(request);
        if let Some(number) = number {
            self.posted.insert(number, PostedComm::Here(work));
        }
        work
    }

    // ---- waiting

    pub(super) fn wait(&mut self, stmt: &OpStmt) -> Result<()> {
        let (Some(number), Some(wait)) = (stmt.get(attr::WORK), self.current_stmt()) else { return Ok(()) };
        let earlier = match self.posted.insert(number, PostedComm::WaitedFor(wait)) {
            Some(PostedComm::Here(work)) => {
                self.emit(InstKind::Wait { work });
                self.end_of_wait(work);
                return Ok(());
            }
            Some(PostedComm::Elsewhere) => return Ok(()),
            Some(PostedComm::WaitedFor(earlier)) => Some(earlier),
            None => None,
        };
        self.nothing_to_wait_for(number, wait, earlier)
    }

    /// Reports a Wait for a communication that this rank has not posted since `earlier`, the Wait that ended it
    /// last. nvFuser's interpreter ends the program there: each Wait takes the communication from `works_`
    /// (`csrc/host_ir/evaluator.cpp`). For the CUDA backend it reads a semaphore instead, as often as the program
    /// waits.
    fn nothing_to_wait_for(&self, number: u32, wait: StmtId, earlier: Option<StmtId>) -> Result<()> {
        let program = self.program;
        let posts = program.stmts.ids().filter(|it| program.posted_work(*it) == Some(number));
        let posts: Vec<(StmtId, &OpStmt)> = posts.filter_map(|it| Some((it, program.op(it)?))).collect();
        if posts.iter().any(|(_, it)| it.get(attr::BACKEND) == Some(words::Backend::Cuda)) {
            return Ok(());
        }
        let op = posts.first().map_or("communication", |it| it.1.op.name());
        let (message, help) = match earlier {
            None => (
                format!("this rank waits for {op} {number}, but has not posted it"),
                "move this Wait into the block that posts the communication",
            ),
            Some(earlier) if earlier == wait => (
                format!("this rank waits for {op} {number} again, but has not posted it again"),
                "move this Wait out of the loop, or post the communication in each iteration",
            ),
            Some(_) => (
                format!("this rank waits for {op} {number} again, but has not posted it again"),
                "remove this Wait",
            ),
        };
        let mut it = self.error(Code::NotPosted, message, "nothing is left to wait for").help(help);
        match (earlier, posts.first()) {
            (Some(earlier), _) if earlier != wait => {
                it = it.label(program.stmt_span(earlier), "this Wait has ended it");
            }
            (None, Some((post, _))) => {
                it = it.label(program.stmt_span(*post), "this rank does not execute this");
            }
            _ => (),
        }
        Err(Box::new(it.note("nvFuser ends the program with an error at this Wait")))
    }

    // ---- collectives

    fn team(&self, stmt: &OpStmt) -> Result<Arc<[usize]>> {
        let Some(team) = stmt.get(attr::TEAM) else { return Ok(Arc::default()) };
        self.teams.team(stmt, || match team.iter().find(|rank| **rank >= self.plan.world) {
            None => Ok(team.to_vec()),
            Some(outside) => {
                let message = too_few_ranks_text("the program", outside.saturating_add(1), self.plan.world);
                let label = format!("this team contains rank {outside}");
                Err(self.error(Code::WorldTooSmall, message, label))
            }
        })
    }

    /// Returns the view that this rank receives into, or `None` if it receives nothing. Allocates storage for
    /// it if the dialect prints no ALLOCATE.
    fn receive_view(&mut self, tensor: Option<TensorId>, needed: bool) -> Result<Option<View>> {
        match tensor.filter(|it| needed && self.holds_part(*it)) {
            Some(tensor) => Ok(Some(self.output_view(tensor)?.with_parts(self.dtype(tensor)))),
            None => Ok(None),
        }
    }

    /// Returns the view that this rank sends.
    pub(super) fn sent(&self, tensor: TensorId) -> Result<View> {
        Ok(self.view(tensor)?.with_parts(self.dtype(tensor)))
    }

    fn send_view(&self, tensor: Option<TensorId>, needed: bool) -> Result<Option<View>> {
        tensor.filter(|_| needed).map(|tensor| self.sent(tensor)).transpose()
    }

    fn collective(&mut self, stmt: &OpStmt) -> Result<()> {
        let team = self.team(stmt)?;
        let Some(me) = position_in(&team, self.rank()) else { return Ok(()) };
        let root = match stmt.get(attr::ROOT) {
            Some(root) => self.index(root, team.len(), "the root", self.attr_span(attr::ROOT.name()))?,
            None => 0,
        };
        let op = stmt.get(attr::RED_OP).map_or(ReduceOp::Sum, ReduceOp::from);
        let of = stmt.get(attr::TYPE).filter(|it| *it != CommunicationType::CollectivePermute);
        let of = of.ok_or_else(|| self.unsupported(stmt.op, "its type is not that of a collective"))?;
        let is_complex = stmt.get(attr::INPUT).is_some_and(|it| self.dtype(it).part().is_some());
        if is_complex && !matches!(op, ReduceOp::Sum | ReduceOp::Avg) {
            return Err(self.unsupported(stmt.op, "complex numbers are only added"));
        }
        self.post(stmt, team, me, CollectiveKind::new(of, root, op))
    }

    /// Posts this member's part of a collective.
    fn post(&mut self, stmt: &OpStmt, team: Arc<[usize]>, me: usize, kind: CollectiveKind) -> Result<()> {
        let backend = self.backend(stmt)?;
        let algo = self.algorithm(stmt, backend, kind)?;
        let fuses_epilogue = self.fuses_epilogue(stmt, algo, kind)?;
        self.check_multicast_protocol(stmt, backend)?;
        if kind.reads_input(me)
            && let Some(input) = stmt.get(attr::INPUT).filter(|it| self.binding(*it).is_none())
            && !self.holds_part(input)
        {
            return Err(self.outside_mesh(input));
        }
        // Collectives over peer memory post no counts.
        if backend != Backend::Cuda
            && algo.is_none()
            && !kind.may_lack_output(me, team.len())
            && let Some(output) = stmt.get(attr::OUTPUT).filter(|it| self.binding(*it).is_none())
            && !self.holds_part(output)
        {
            return Err(self.no_output(output));
        }
        let input = self.send_view(stmt.get(attr::INPUT), kind.reads_input(me))?;
        let gets = kind.piece_count(me, team.len()) > 0;
        let output = self.receive_view(stmt.get(attr::OUTPUT), gets)?;
        let communicator = self.communicator(backend, team);
        let work = self.new_work(stmt.number, Request { algo, fuses_epilogue, ..Request::default() });
        let it = Collective { communicator, kind, input, output, work };
        self.emit(InstKind::Collective(Box::new(it)));
        Ok(())
    }

    /// Returns the error for a member of a team that holds no part of the tensor that it sends.
    fn outside_mesh(&self, tensor: TensorId) -> Box<Diagnostic> {
        let name = self.program.tensor_name(tensor);
        let rank = self.rank();
        let message = format!("the team contains rank {rank}, but `{name}` is not on rank {rank}");
        let label = format!("rank {rank} is in this team");
        let it = Diagnostic::new(Code::BadTeam, self.attr_span(attr::TEAM.name()), message, label);
        let it = it.label(self.attr_span(attr::INPUT.name()), self.mesh_text(tensor));
        Box::new(it.help(format!(
            "let the team contain ranks of the mesh only, or add rank {rank} to the mesh of `{name}`"
        )))
    }

    /// Returns the error for a member of a team that receives, but holds no part of the output. nvFuser gives the backend no tensor
    /// there, so the member posts another count than its peers.
    fn no_output(&self, tensor: TensorId) -> Box<Diagnostic> {
        let (name, rank) = (self.program.tensor_name(tensor), self.rank());
        let message =
            format!("rank {rank} receives in this collective, but its output `{name}` is not on rank {rank}");
        let it = Diagnostic::new(
            Code::Disagreement,
            self.attr_span(attr::OUTPUT.name()),
            message,
            self.mesh_text(tensor),
        );
        let it = it.label(self.attr_span(attr::TEAM.name()), format!("rank {rank} is in this team"));
        Box::new(it.help(format!(
            "add rank {rank} to the mesh of `{name}`, or let the team contain only ranks that receive"
        )))
    }

    /// Returns the mesh of a tensor, for labels.
    fn mesh_text(&self, tensor: TensorId) -> String {
        let devices: Vec<String> =
            self.program.tensors[tensor].mesh.devices.iter().map(ToString::to_string).collect();
        format!("mesh {{{}}}", devices.join(" "))
    }

    fn permute(&mut self, stmt: &OpStmt) -> Result<()> {
        let team = self.team(stmt)?;
        let Some(me) = position_in(&team, self.rank()) else { return Ok(()) };
        let peer = |this: &Self, key: attr::Key<ExprId>| match stmt.get(key) {
            Some(peer) => this.index(peer, team.len(), "the peer", this.attr_span(key.name())),
            None => Ok(0),
        };
        let kind = CollectiveKind::permute(peer(self, attr::SEND_PEER)?, peer(self, attr::RECV_PEER)?);
        self.post(stmt, team, me, kind)
    }

    // ---- transfers

    fn p2p(&mut self, stmt: &OpStmt) -> Result<()> {
        // The tensor belongs to another mesh: like all statements on it, this one does nothing on this rank.
        if stmt.get(attr::BUFFER).is_some_and(|buffer| !self.holds_part(buffer)) {
            self.skip_outside_mesh(stmt);
            return Ok(());
        }
        let (direction, peer, view) = self.p2p_operands(stmt, self.attr_span(attr::PEER.name()))?;
        if let (Direction::Recv, Some(buffer)) = (direction, stmt.get(attr::BUFFER)) {
            self.check_written(buffer, &view)?;
        }
        let origin = self.origin_no();
        let backend = self.backend(stmt)?;
        let protocol = self.protocol(stmt, backend)?;
        let handle = match backend {
            Backend::Cuda => Some(self.shared_handle(stmt, peer, &view)?),
            Backend::Nccl | Backend::Ucc => None,
        };
        let side = P2pOp { direction, peer, view, origin };
        if let Some(ops) = &mut self.coalesced_ops {
            ops.push(side);
            return Ok(());
        }
        let request = Request { protocol, handle, ..Request::default() };
        self.transfer(backend, request, (vec![side], false), stmt.number);
        Ok(())
    }

    fn p2p_operands(&self, stmt: &OpStmt, place: Span) -> Result<(Direction, usize, View)> {
        let direction = stmt.get(attr::P2P_TYPE).unwrap_or(Direction::Send);
        let (Some(buffer), Some(peer)) = (stmt.get(attr::BUFFER), stmt.get(attr::PEER)) else {
            return Err(self.unsupported(stmt.op, "its buffer or its peer is missing"));
        };
        let world = self.plan.world;
        let rank = self.index(peer, world, "the peer", place).map_err(|it| match it.code {
            Code::BadIndex if it.help.is_none() => Box::new(it.help(format!(
                "let the last rank wrap around, as in `peer=( ( rank + 1 ) % {world} )`, or execute this only on ranks that have the peer, in an `IF Manual`"
            ))),
            _ => it,
        })?;
        Ok((direction, rank, self.sent(buffer)?))
    }

    fn transfer(
        &mut self,
        backend: Backend,
        request: Request,
        (ops, is_coalesced): (Vec<P2pOp>, bool),
        number: Option<u32>,
    ) {
        let communicator = self.communicator(backend, Arc::clone(self.teams.world()));
        let work = self.new_work(number, request);
        self.emit(InstKind::P2pGroup(P2pGroup { communicator, ops, is_coalesced, work }));
    }

    pub(super) fn coalesce(&mut self, stmt: &OpStmt) -> Result<()> {
        match stmt.op {
            Op::StartCoalescing => self.coalesced_ops = Some(Vec::new()),
            _ => {
                let sides = self.coalesced_ops.take().unwrap_or_default();
                self.transfer(Backend::Nccl, Request::default(), (sides, true), stmt.number);
            }
        }
        Ok(())
    }

    /// Returns the index of the exchange of the peer's memory handle, which transfers of the CUDA backend require.
    fn shared_handle(&self, stmt: &OpStmt, peer: usize, view: &View) -> Result<u32> {
        if self.coalesced_ops.is_some() {
            return Err(self.unsupported(stmt.op, "the CUDA backend does not support coalescing"));
        }
        if let Some(index) = self.comm.shared.get(&(self.number(stmt), peer, view.key())) {
            return Ok(*index);
        }
        let message = format!(
            "the memory handle of P2PCommunication {} with rank {peer} is not shared",
            self.number(stmt)
        );
        let mut it =
            self.error(Code::NotShared, message, "no earlier ShareMemHandles lists this buffer and peer");
        if let Some(stmt) = self.current_stmt() {
            let (help, fixes) = insertions(self.program, self.lines, stmt);
            it.help = Some(help.into_boxed_str());
            it.fixes = fixes;
        }
        Err(it)
    }

    /// Emits the exchange of the handles that are new, and then a barrier of all ranks of the world, as
    /// nvFuser's interpreter does (`csrc/host_ir/evaluator.cpp`). Emits nothing if no handle is new.
    pub(super) fn share_mem_handles(&mut self, stmt: &OpStmt) -> Result<()> {
        let Some(listed) = stmt.get(attr::TRANSFERS) else { return Ok(()) };
        let mut handles = Vec::new();
        for id in listed {
            let Stmt::Op(it) = &self.program.stmts[*id] else { continue };
            if it.get(attr::BUFFER).is_some_and(|buffer| !self.holds_part(buffer)) {
                continue;
            }
            let (direction, peer, view) =
                self.p2p_operands(it, self.program.attr_span(*id, attr::PEER.name()))?;
            if peer == self.rank() {
                let message =
                    format!("P2PCommunication {} shares handles with its own rank", self.number(it));
                let label = match it.get(attr::PEER) {
                    Some(peer) => {
                        format!("its peer `{}` is this rank", grammar::expr_text(self.program, peer))
                    }
                    None => "its peer is this rank".to_owned(),
                };
                let mut fault = self.error(Code::BadIndex, message, label);
                // The listed transfer, and not the whole statement.
                if let Some((span, _)) = fault.labels.first_mut() {
                    *span = self.program.stmt_span(*id);
                }
                return Err(Box::new(fault.help("use another rank as peer")));
            }
            let key = (self.number(it), peer, view.key());
            if self.comm.shared.contains_key(&key) {
                continue;
            }
            let channel = match direction {
                Direction::Send => (self.rank(), peer),
                Direction::Recv => (peer, self.rank()),
            };
            let index = self.comm.exchanged.entry(channel).or_insert(0);
            handles.push(MemHandle { direction, peer, index: *index, number: it.number.unwrap_or(0) });
            self.comm.shared.insert(key, *index);
            *index += 1;
        }
        if !handles.is_empty() {
            self.emit(InstKind::ShareMemHandles { handles });
            self.emit(InstKind::Barrier);
        }
        Ok(())
    }
}
