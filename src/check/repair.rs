//! The edits that order two accesses. `apply` makes them in a text; the help of a finding describes what
//! `apply` changes (`repair_help`).

use grammar::StmtId;

use super::{
    plan_index::PlanIndex,
    race_side::{RaceSide, stream_of},
};
use hir_plan::{Plan, PlanStream};

/// An edit that adds an ordering to a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Repair {
    /// Insert `Synchronize(Stream …)`: the current stream waits for the work issued so far on another stream.
    InsertSynchronize {
        /// The stream to wait for.
        stream: WaitedStream,
        /// The insertion point.
        before: InsertionPoint,
    },
    /// Insert `Wait(Communication …)`.
    InsertWait {
        /// The statement that posts the communication.
        communication: NamedStmt,
        /// The insertion point.
        before: InsertionPoint,
    },
    /// Move a `Wait`: up, out of a branch, or into a loop. A second `Wait` for the same communication is an error (E0411), so only one stream
    /// can wait for it.
    MoveWait {
        /// The `Wait`.
        wait: Option<StmtId>,
        /// The destination.
        before: InsertionPoint,
        /// The stream that waits at the destination, if it differs from the stream that executes the `Wait`
        /// now. A `Synchronize` with it is inserted at the old position and preserves the order that the
        /// `Wait` established there.
        synchronize: Option<WaitedStream>,
    },
    /// Select a stream, insert a `Synchronize` or `Wait`, or move a `Wait` there, and select the stream again that is current there.
    OnStream {
        /// The stream that waits.
        blocked: PlanStream,
        /// What inserts or moves the statement.
        repair: Box<Repair>,
    },
    /// Move a Deallocate down. Later allocations then get other storage, and no stream has to wait.
    MoveDeallocate {
        /// The Deallocate.
        deallocate: Option<StmtId>,
        /// The statement behind which it is moved.
        after: Option<StmtId>,
    },
    /// Move an ALLOCATE into a loop, so that each iteration gets its own storage, and no stream has to wait.
    MoveAllocate {
        /// The ALLOCATE.
        allocate: Option<StmtId>,
        /// A statement of the loop that uses the storage.
        user: Option<StmtId>,
    },
    /// Convert a long-form ALLOCATE, which is skipped if its name is already bound, into the short form,
    /// which allocates in every iteration.
    ShortenAllocate {
        /// The ALLOCATE.
        allocate: Option<StmtId>,
    },
}

/// The operand of a `Synchronize`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WaitedStream {
    /// The stream that is current at program entry. The program names it with GetCurrentStream.
    Entry {
        /// A statement that has been issued when this stream has to be awaited; `None`: what the caller has issued.
        stmt: Option<StmtId>,
    },
    /// The stream with an index.
    Index {
        /// The index in the plan of one rank, in one iteration.
        index: i64,
        /// A statement that this stream executes. The text may name the stream by the operand of its
        /// SetCurrentStream.
        stmt: Option<StmtId>,
    },
}

/// A statement and its name in reports, which may have the iteration. Names of one statement are equal.
#[derive(Clone, Debug, Eq)]
pub struct NamedStmt {
    /// The statement.
    pub stmt: Option<StmtId>,
    /// Name in reports: `Communication 3 (Allreduce, line 5)`.
    pub name: String,
}

/// The position at which a statement is inserted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InsertionPoint {
    /// Before a statement.
    Before {
        /// The statement.
        statement: NamedStmt,
        /// The stream that is current there.
        current: Option<PlanStream>,
    },
    /// Behind a statement, in its block.
    After {
        /// The statement.
        statement: NamedStmt,
        /// The stream that is current there.
        current: PlanStream,
    },
    /// At the end of the block of a statement. The communication is not visible outside the block.
    BlockEnd {
        /// The statement.
        of: NamedStmt,
    },
    /// After the last statement.
    End {
        /// The stream that is current there.
        current: PlanStream,
    },
}

impl WaitedStream {
    /// Returns the stream of an instruction.
    pub fn of(plan: &Plan, inst: Option<usize>) -> Self {
        let at = inst.unwrap_or_default();
        let stmt = plan.code.get(at).and_then(|it| plan.origins[it.origin as usize].stmt);
        Self::from_stream(stream_of(plan, at), stmt)
    }

    /// Returns the operand that names a stream of a plan. The stream executes `stmt`.
    pub(super) fn from_stream(stream: &PlanStream, stmt: Option<StmtId>) -> Self {
        match stream {
            PlanStream::Indexed(index) => Self::Index { index: *index, stmt },
            PlanStream::Entry | PlanStream::Queue(_) | PlanStream::Unwaited => Self::Entry { stmt },
        }
    }

    /// Returns whether it is a stream of a plan.
    pub(super) fn is(&self, stream: &PlanStream) -> bool {
        match (self, stream) {
            (Self::Entry { .. }, PlanStream::Entry) => true,
            (Self::Index { index, .. }, PlanStream::Indexed(other)) => index == other,
            (_, _) => false,
        }
    }
}

/// What an edit inserts. Edits with equal keys make a stream wait for the same work.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Inserted<'r> {
    /// A Wait for a communication.
    Wait(&'r NamedStmt),
    /// A Wait of the program that moves.
    Moved(StmtId),
    /// A Synchronize; `None` is the entry stream.
    Synchronize(Option<i64>),
}

impl Inserted<'_> {
    /// Returns what edits insert that wait for a stream of a program.
    pub fn synchronizes(stream: &PlanStream) -> Option<Self> {
        match stream {
            PlanStream::Indexed(index) => Some(Self::Synchronize(Some(*index))),
            PlanStream::Entry => Some(Self::Synchronize(None)),
            PlanStream::Queue(_) | PlanStream::Unwaited => None,
        }
    }
}

impl NamedStmt {
    fn key(&self) -> Result<StmtId, &str> {
        self.stmt.ok_or(&self.name)
    }
}

impl PartialEq for NamedStmt {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl std::hash::Hash for NamedStmt {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl NamedStmt {
    /// Returns the statement of an origin, named as in `Plan::describe_origin`.
    pub fn from_origin(plan: &Plan, origin: u32) -> Self {
        Self { stmt: plan.origins[origin as usize].stmt, name: plan.describe_origin(origin) }
    }
}

impl InsertionPoint {
    /// Returns the point before one side of a race, or the end of the program if that side is the caller.
    pub fn before(side: &RaceSide<'_>) -> Self {
        let current = Some(side.stream().clone());
        if side.is_in_program() {
            let stmt = side.plan.origins[side.origin as usize].stmt;
            Self::Before { statement: NamedStmt { stmt, name: side.location() }, current }
        } else {
            Self::end(side.plan)
        }
    }

    /// Returns the end of the program of a rank.
    pub fn end(plan: &Plan) -> Self {
        Self::End { current: stream_of(plan, plan.exit().unwrap_or_default()).clone() }
    }

    /// Returns the point with another stream that is current there.
    pub(super) fn with_current(self, stream: PlanStream) -> Self {
        match self {
            Self::Before { statement, .. } => Self::Before { statement, current: Some(stream) },
            Self::After { statement, .. } => Self::After { statement, current: stream },
            Self::End { .. } => Self::End { current: stream },
            Self::BlockEnd { of } => Self::BlockEnd { of },
        }
    }

    /// Returns the statement before or behind which, or at the end of whose block, a statement is inserted.
    pub fn statement(&self) -> Option<StmtId> {
        match self {
            Self::Before { statement, .. }
            | Self::After { statement, .. }
            | Self::BlockEnd { of: statement } => statement.stmt,
            Self::End { .. } => None,
        }
    }

    pub(super) fn current(&self) -> Option<&PlanStream> {
        match self {
            Self::Before { current, .. } => current.as_ref(),
            Self::After { current, .. } | Self::End { current } => Some(current),
            Self::BlockEnd { .. } => None,
        }
    }
}

impl Repair {
    /// Returns the edit that inserts a Wait for the communication posted by `origin`. A communication that is
    /// posted in a loop is awaited in the same iteration, unless the loop has Waits for those of other iterations: a second Wait for one
    /// communication is an error. `frame` is the loop iteration of `before`.
    pub fn insert_wait(
        index: PlanIndex<'_>,
        origin: u32,
        before: InsertionPoint,
        frame: Option<u32>,
    ) -> Self {
        let plan = index.plan();
        let communication = NamedStmt::from_origin(plan, origin);
        let posts = communication.stmt.map_or(&[][..], |it| index.of_stmt(it)).iter();
        let mut posts = posts.filter(|it| plan.code[**it].kind.communication().is_some());
        let posted = plan.origins[origin as usize].iteration;
        let around = |frame| std::iter::successors(frame, |it: &u32| plan.iterations[*it as usize].parent);
        let is_in_loop = |wait: usize| {
            let frame = plan.origins[plan.code[wait].origin as usize].iteration;
            posted.is_some_and(|posted| around(frame).any(|it| plan.loop_of(it) == plan.loop_of(posted)))
        };
        let has_waits = posts.any(|it| index.first_wait_for(*it).is_some_and(is_in_loop));
        let is_around = |outer: u32| around(frame).any(|it| it == outer);
        let before = if has_waits || posted.is_none_or(is_around) {
            before
        } else {
            InsertionPoint::BlockEnd { of: communication.clone() }
        };
        Self::InsertWait { communication, before }
    }

    /// Returns the edit that moves the Wait at instruction `wait` to `before`.
    pub fn move_wait(plan: &Plan, wait: usize, before: InsertionPoint) -> Self {
        let has_moved = |it: &&PlanStream| it.is_in_program() && *it != stream_of(plan, wait);
        let synchronize =
            before.current().filter(has_moved).map(|it| WaitedStream::from_stream(it, before.statement()));
        Self::MoveWait { wait: plan.origins[plan.code[wait].origin as usize].stmt, before, synchronize }
    }

    /// Returns the edit that lets the current stream wait for the stream that is current at program entry.
    pub fn synchronize_with_entry(before: InsertionPoint) -> Self {
        Self::InsertSynchronize { stream: WaitedStream::Entry { stmt: None }, before }
    }

    /// Returns the edit that makes the stream current at `before` wait for `side`. `inst` is the instruction
    /// at the insertion point (`None`: the end of the program), and `frame` is its loop iteration. `index` is that of the plan of `side`.
    pub fn order_after(
        side: &RaceSide<'_>,
        before: InsertionPoint,
        inst: Option<usize>,
        frame: Option<u32>,
        index: PlanIndex<'_>,
    ) -> Self {
        if !side.is_posted() {
            let stream = WaitedStream::of(side.plan, side.inst_index());
            return Self::InsertSynchronize { stream, before };
        }
        match side.first_wait(index) {
            None => Self::insert_wait(index, side.origin, before, frame),
            // Another stream already waits for the communication; waiting for that stream is enough.
            Some(wait) if inst.is_none_or(|it| wait < it) => {
                Self::InsertSynchronize { stream: WaitedStream::of(side.plan, Some(wait)), before }
            }
            Some(wait) => Self::move_wait(side.plan, wait, before),
        }
    }
}

impl Repair {
    /// Returns whether two edits change a text in the same way.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let blocked = self.blocked_stream();
        self == other
            || blocked.is_some()
                && blocked == other.blocked_stream()
                && self.inserts_same_as(other)
                && self.insertion() == other.insertion()
    }

    /// Returns an edit that is the same one for all edits that change a text in the same way.
    pub fn normalized(&self) -> Self {
        match (self.blocked_stream().and(self.awaited_stream()), self.insertion()) {
            (Some(WaitedStream::Entry { .. }), Some(before)) => Self::synchronize_with_entry(before.clone()),
            (Some(WaitedStream::Index { index, .. }), Some(before)) => Self::InsertSynchronize {
                stream: WaitedStream::Index { index: *index, stmt: None },
                before: before.clone(),
            },
            (_, _) => self.clone(),
        }
    }

    /// Returns the stream that waits where the edit inserts a statement: the current one, unless the edit selects another one.
    pub fn blocked_stream(&self) -> Option<&PlanStream> {
        match self {
            Self::OnStream { blocked, .. } => Some(blocked),
            _ => self.insertion().and_then(InsertionPoint::current),
        }
    }

    /// Returns what the edit inserts or moves where the current stream waits.
    pub(super) fn inserted(&self) -> Option<Inserted<'_>> {
        match (self, self.awaited_stream()) {
            (Self::InsertWait { communication, .. }, _) => Some(Inserted::Wait(communication)),
            (Self::MoveWait { wait, .. }, _) => wait.map(Inserted::Moved),
            (_, Some(WaitedStream::Index { index, .. })) => Some(Inserted::Synchronize(Some(*index))),
            (_, Some(WaitedStream::Entry { .. })) => Some(Inserted::Synchronize(None)),
            (_, None) => None,
        }
    }

    /// Returns whether two edits insert the same statement, or move the same Wait.
    pub fn inserts_same_as(&self, other: &Self) -> bool {
        self.inserted().is_some_and(|it| Some(it) == other.inserted())
    }

    /// Returns whether the edit inserts a statement at the end of the program.
    pub fn is_at_end(&self) -> bool {
        matches!(self.insertion(), Some(InsertionPoint::End { .. }))
    }

    /// Returns the operand of the Synchronize that the edit inserts at its insertion point.
    pub fn awaited_stream(&self) -> Option<&WaitedStream> {
        match self {
            Self::InsertSynchronize { stream, .. } => Some(stream),
            _ => None,
        }
    }

    /// Returns the edit that inserts a Synchronize with the stream of another index, at the same place.
    pub fn with_stream(&self, index: i64) -> Option<Self> {
        let Self::InsertSynchronize { before, .. } = self else { return None };
        let stream = WaitedStream::Index { index, stmt: None };
        Some(Self::InsertSynchronize { stream, before: before.clone() })
    }

    /// Returns whether the edit is preferred to the alternatives: it lets no stream wait, or one Wait orders several streams.
    pub fn is_preferred(&self) -> bool {
        match self {
            Self::MoveDeallocate { .. }
            | Self::MoveAllocate { .. }
            | Self::InsertWait { before: InsertionPoint::After { .. }, .. } => true,
            Self::InsertSynchronize { .. }
            | Self::InsertWait { .. }
            | Self::MoveWait { .. }
            | Self::OnStream { .. }
            | Self::ShortenAllocate { .. } => false,
        }
    }

    /// Returns whether the edit gives each iteration storage of its own.
    pub fn gives_own_storage(&self) -> bool {
        matches!(self, Self::MoveAllocate { .. } | Self::ShortenAllocate { .. })
    }

    /// Returns the edit that lets another stream wait than the current one. `executes` returns whether this stream executes a Wait now.
    pub(super) fn on_stream(mut self, blocked: &PlanStream, executes: &dyn Fn(StmtId) -> bool) -> Self {
        if let Self::MoveWait { wait: Some(wait), synchronize, .. } = &mut self {
            *synchronize = (!executes(*wait)).then(|| WaitedStream::from_stream(blocked, None));
        }
        Self::OnStream { blocked: blocked.clone(), repair: Box::new(self) }
    }

    /// Returns the edit that inserts the same Synchronize at another place.
    pub fn synchronize_before(&self, before: InsertionPoint) -> Option<Self> {
        match self {
            Self::InsertSynchronize { stream, .. } => {
                Some(Self::InsertSynchronize { stream: stream.clone(), before })
            }
            _ => None,
        }
    }

    /// Returns the position at which the edit inserts a statement.
    pub fn insertion(&self) -> Option<&InsertionPoint> {
        match self {
            Self::InsertSynchronize { before, .. }
            | Self::InsertWait { before, .. }
            | Self::MoveWait { before, .. } => Some(before),
            Self::OnStream { repair, .. } => repair.insertion(),
            Self::MoveDeallocate { .. } | Self::MoveAllocate { .. } | Self::ShortenAllocate { .. } => None,
        }
    }
}
