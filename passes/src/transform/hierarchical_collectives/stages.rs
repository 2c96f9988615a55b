//! Writes the steps of a collective.

use std::sync::Arc;

use grammar::{
    Backend, BlockId, CommunicationType, DeviceDim, Memory, Mesh, Op, OpStmt, ParallelType, Program, RedOp,
    Span, Stmt, StmtId, TensorId, attr,
};
use hir_ir::build::{self, IrBuilder};

use super::{
    Edits, Posted,
    teams::HostTeams,
    waits::{TeamWaits, Waits},
};
use crate::{
    analysis::sharding::{Dim, DimPiece, Sharding},
    pass::Obstacle,
    rewrite::{
        collective::Collective,
        contiguity::{self, SubAxis},
    },
    transform::lower_to_communication::world_size,
};

/// The steps of a collective.
pub(super) struct Stages<'c> {
    posted: &'c Posted,
    teams: HostTeams,
    red_op: Option<RedOp>,
    backend: Backend,
    world: usize,
    span: Span,
    /// The number of elements of the input, or of the output of a gather, on each rank.
    elements: i64,
    /// The sub-axes of the larger tensor, of which `at` is the outermost one in memory.
    leaves: Vec<SubAxis>,
    at: usize,
    waits: TeamWaits,
}

impl<'c> Stages<'c> {
    /// Returns the steps of a collective in a block.
    ///
    /// # Errors
    /// Returns the reason why it has no such steps.
    pub(super) fn of(
        program: &mut Program,
        (block, waits): (BlockId, &Waits),
        posted: &'c Posted,
        teams: HostTeams,
    ) -> Result<Self, Obstacle> {
        let Stmt::Op(it) = &program.stmts[posted.stmts[0]] else {
            return Err("it is no operator".into());
        };
        let (red_op, backend) = (it.get(attr::RED_OP), it.get(attr::BACKEND).unwrap_or(Backend::Nccl));
        let permutes = posted.kind != CommunicationType::Allreduce && teams.is_by_host != Some(false);
        if permutes && teams.is_by_host.is_none() {
            return Err("the order of its team is neither host by host nor index by index".into());
        }
        let is_gather = posted.kind == CommunicationType::Allgather;
        let large = if is_gather { posted.output } else { posted.input };
        let name = program.tensor_name(large);
        let sharding =
            Sharding::of(program, large).ok_or_else(|| format!("the axes of `{name}` are merged"))?;
        let split = program.is_split_by_stream(large);
        let leaves = contiguity::sub_axes(program, &sharding, split);
        let at = leaves.iter().position(|it| it.has_local_extent(program));
        let at = at.ok_or_else(|| format!("`{name}` has one element on each rank"))?;
        let local = leaves.iter().filter(|it| it.parallel == ParallelType::Serial);
        let elements = local.map(|it| program.constant(it.extent)).try_fold(1_i64, |a, b| a.checked_mul(b?));
        let elements = elements.ok_or_else(|| format!("`{name}` has an extent that is no constant"))?;
        let (hosts, within) = (teams.hosts() as i64, teams.within() as i64);
        if posted.kind == CommunicationType::Allreduce && elements % within != 0 {
            return Err(format!(
                "the {within} ranks of a host do not divide the {elements} elements of `{name}`"
            )
            .into());
        }
        let outermost = program.constant(leaves[at].extent).unwrap_or(0);
        if permutes && outermost % (hosts * within) != 0 {
            return Err(
                format!("the {} ranks of a team do not divide the rows of `{name}`", hosts * within).into()
            );
        }
        let found = waits.behind(program, block, posted)?;
        if is_gather && permutes && found.between_streams {
            return Err("streams are used between its Waits".into());
        }
        if let Some(number) = waits.ordered_behind(posted) {
            return Err(format!(
                "the order of their communicator may take the place of a Wait for Communication {number}"
            )
            .into());
        }
        let (waits, span, world) = (found, program.stmt_span(posted.stmts[0]), world_size(program));
        Ok(Self { posted, teams, red_op, backend, world, span, elements, leaves, at, waits })
    }

    /// Describes the steps.
    pub(super) fn text(&self) -> String {
        let (within, hosts) = (self.teams.within(), self.teams.hosts());
        match self.posted.kind {
            CommunicationType::Allgather => format!("across {hosts} hosts and within their {within} ranks"),
            _ => format!("within hosts, of {within} ranks, and across {hosts} of them"),
        }
    }

    /// Records the statements that replace the collective.
    pub(super) fn write(&self, program: &mut Program, fresh: &mut IrBuilder, edits: &mut Edits) {
        let mut out = Writer { stages: self, program, fresh, stmts: Vec::new(), edits };
        match self.posted.kind {
            CommunicationType::Allgather => out.all_gather(),
            CommunicationType::ReduceScatter => out.reduce_scatter(),
            _ => out.all_reduce(),
        }
        let Writer { stmts, .. } = out;
        for stmt in &self.posted.stmts {
            edits.replaced.insert(*stmt, Vec::new());
        }
        edits.replaced.insert(self.posted.stmts[0], stmts);
    }
}

/// The ranks of a step.
#[derive(Clone, Copy, PartialEq)]
enum Level {
    Within,
    Across,
}

struct Writer<'w, 'c> {
    stages: &'w Stages<'c>,
    program: &'w mut Program,
    fresh: &'w mut IrBuilder,
    stmts: Vec<StmtId>,
    edits: &'w mut Edits,
}

impl Writer<'_, '_> {
    fn all_reduce(&mut self) {
        let (input, output) = (self.stages.posted.input, self.stages.posted.output);
        let count = self.stages.elements / self.stages.teams.within() as i64;
        let [part, sum] = [true, false].map(|per_host| self.part(count, true, per_host));
        self.allocate(part);
        self.step(CommunicationType::ReduceScatter, Level::Within, input, part);
        self.allocate(sum);
        self.step(CommunicationType::Allreduce, Level::Across, part, sum);
        self.last_step(CommunicationType::Allgather, Level::Within, sum, output);
    }

    fn all_gather(&mut self) {
        let (input, output) = (self.stages.posted.input, self.stages.posted.output);
        let count = self.stages.elements / self.stages.teams.within() as i64;
        let part = self.part(count, true, false);
        self.allocate(part);
        self.step(CommunicationType::Allgather, Level::Across, input, part);
        if self.stages.teams.is_by_host == Some(false) {
            return self.last_step(CommunicationType::Allgather, Level::Within, part, output);
        }
        let (leaves, at) = self.split_leaves();
        let arrived = contiguity::with_axis_moved(&leaves, at + 1, at);
        let buffer = contiguity::tensor(self.program, self.fresh, output, &arrived);
        self.allocate(buffer);
        self.last_step(CommunicationType::Allgather, Level::Within, part, buffer);
        let (permuted, stmt) =
            contiguity::permute_axis(self.program, self.fresh, buffer, &arrived, (at, at + 1));
        let copy = contiguity::unary_op(Op::Reshape, permuted, output);
        // In a loop, the name is bound to another view in the next iteration.
        let behind = [stmt, copy, build::deallocate(permuted)];
        let span = self.stages.span;
        let behind = behind.map(|stmt| build::add(self.program, stmt, span));
        if let Some(wait) = self.stages.waits.last {
            self.edits.behind.entry(wait).or_default().extend(behind);
        }
    }

    fn reduce_scatter(&mut self) {
        let (input, output) = (self.stages.posted.input, self.stages.posted.output);
        let mut packed = input;
        if self.stages.teams.is_by_host != Some(false) {
            let (leaves, at) = self.split_leaves();
            let cut = contiguity::tensor(self.program, self.fresh, input, &leaves);
            self.emit(contiguity::unary_op(Op::Reshape, input, cut));
            let (permuted, stmt) =
                contiguity::permute_axis(self.program, self.fresh, cut, &leaves, (at + 1, at));
            packed = permuted;
            self.allocate(packed);
            self.emit(stmt);
            self.emit(build::deallocate(cut));
        }
        let count = self.stages.elements / self.stages.teams.within() as i64;
        let part = self.part(count, true, true);
        self.allocate(part);
        self.step(CommunicationType::ReduceScatter, Level::Within, packed, part);
        self.last_step(CommunicationType::ReduceScatter, Level::Across, part, output);
    }

    /// Returns the sub-axes of the larger tensor, with the outermost one divided into hosts, ranks within a host, and the rest,
    /// and the position of the hosts.
    fn split_leaves(&mut self) -> (Vec<SubAxis>, usize) {
        let at = self.stages.at;
        let whole = self.stages.leaves[at];
        let (hosts, within) = (self.stages.teams.hosts() as i64, self.stages.teams.within() as i64);
        let rest = self.program.constant(whole.extent).unwrap_or(0) / (hosts * within);
        let parts = [hosts, within, rest].map(|it| SubAxis { extent: self.program.intern_int(it), ..whole });
        let mut leaves = self.stages.leaves.clone();
        leaves.splice(at..=at, parts);
        (leaves, at)
    }

    /// Creates a tensor of `count` elements on each rank, which differ between the ranks of a host, between teams, and, with
    /// `per_host`, between hosts.
    fn part(&mut self, count: i64, within: bool, per_host: bool) -> TensorId {
        let teams = &self.stages.teams;
        let (number, hosts, ranks) = (teams.count(), teams.hosts(), teams.within());
        let mut shape = vec![number, hosts, ranks];
        if number == 1 {
            shape.remove(0);
        }
        let mesh = Arc::new(Mesh::new(shape, teams.devices()));
        let axes = [
            (within, ranks, DeviceDim::X),
            (per_host, hosts, DeviceDim::Y),
            (number > 1, number, DeviceDim::Z),
        ];
        let mut dims: Vec<Dim> = Vec::new();
        for (_, extent, device) in axes.into_iter().filter(|it| it.0).rev() {
            let count = self.program.intern_int(extent as i64);
            let piece = DimPiece { parallel: ParallelType::Device(device), count, swizzled: false };
            dims.push(Dim { pieces: vec![piece], ..Dim::whole(count) });
        }
        dims.push(Dim::whole(self.program.intern_int(count)));
        let like = self.stages.posted.output;
        Sharding { mesh, dims }.new_tensor(self.program, self.fresh, like, Memory::Global)
    }

    fn emit(&mut self, stmt: OpStmt) {
        self.stmts.push(build::add(self.program, stmt, self.stages.span));
    }

    fn allocate(&mut self, tensor: TensorId) {
        let allocate = build::allocate(self.program, tensor);
        self.emit(allocate);
    }

    /// Emits the collectives of a step, and Waits for them.
    fn step(&mut self, kind: CommunicationType, level: Level, input: TensorId, output: TensorId) {
        let numbers: Vec<u32> = (0..self.stages.teams.count())
            .flat_map(|team| self.post(kind, (level, team), input, output, None))
            .collect();
        numbers.into_iter().for_each(|it| self.emit(build::wait(it)));
    }

    /// Emits the collectives of the last step. The Waits for the collective wait for them.
    fn last_step(&mut self, kind: CommunicationType, level: Level, input: TensorId, output: TensorId) {
        for team in 0..self.stages.teams.count() {
            let number = self.stages.posted.numbers[team];
            let mut numbers = self.post(kind, (level, team), input, output, Some(number));
            numbers.remove(0);
            self.edits.also_awaited.insert(self.stages.waits.by_team[team], numbers);
        }
    }

    /// Emits the collectives that one team makes in a step, the first one with the number `first`, and returns their numbers.
    fn post(
        &mut self,
        kind: CommunicationType,
        (level, team): (Level, usize),
        input: TensorId,
        output: TensorId,
        first: Option<u32>,
    ) -> Vec<u32> {
        let teams = match level {
            Level::Within => self.stages.teams.within_hosts(team),
            Level::Across => self.stages.teams.across_hosts(team),
        };
        let red_op = self.stages.red_op.filter(|_| kind.is_reduction());
        let mut numbers = Vec::new();
        for team in &teams {
            let work = first.filter(|_| numbers.is_empty()).unwrap_or_else(|| self.fresh.work());
            let collective = Collective { kind, team, root: None, red_op, input, output };
            self.emit(collective.stmt(work, self.stages.backend, self.stages.world));
            numbers.push(work);
        }
        numbers
    }
}
