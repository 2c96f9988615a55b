//! The places of a `Wait`: where one is inserted, and where one is moved, out of a branch or into a loop, because a second one for
//! the same communication is an error (E0411).

use grammar::{OpClass, Stmt, StmtId};

use super::{
    editable_text::EditableText,
    repair::{InsertionPoint, NamedStmt, Repair, WaitedStream},
};

impl EditableText {
    /// Returns the edits that wait for a communication at a point, the best one first. The Wait is executed as often as the
    /// communication is posted. If the communication is posted in a branch, and the Wait would be behind it, the Wait is at the end of the
    /// branch: a rank that does not take the branch has nothing to wait for. If the Wait would be in a loop or a branch without the
    /// communication, it is before that. If a rank that executes it has another Wait for the same communication, that one moves; if there
    /// are several of these, there is no edit.
    pub(super) fn wait_placements(&self, communication: &NamedStmt, before: &InsertionPoint) -> Vec<Repair> {
        let insert = |before| Repair::InsertWait { communication: communication.clone(), before };
        let Some(post) = communication.stmt else { return vec![insert(before.clone())] };
        if let InsertionPoint::After { statement, .. } = before {
            let block = |it: Option<StmtId>| Some(self.places().of_stmt(it?)?.block);
            let is_other = |wait: &StmtId| self.exclude(post, *wait);
            let has_no_wait = |number: u32| self.waits_of(number).iter().all(is_other);
            let is_only = self.program.posted_work(post).is_some_and(has_no_wait)
                && self.next_post(post, before).is_none();
            let is_beside = block(statement.stmt).is_some_and(|it| Some(it) == block(Some(post)));
            let last = block(statement.stmt).and_then(|it| self.program.block(it).last().copied());
            let is_last = last == statement.stmt;
            let point =
                if is_last { InsertionPoint::BlockEnd { of: statement.clone() } } else { before.clone() };
            return if is_only && is_beside { vec![insert(point)] } else { Vec::new() };
        }
        let point = self.wait_point(communication, post, before);
        match self.other_waits(post, &point).as_slice() {
            [] => vec![self.on_waiting_stream(insert(point), before)],
            [wait] => {
                // Each branch may have a Wait of its own.
                let own = self
                    .out_of_other_blocks(before, &|it| self.is_around(it, post) || self.is_around(it, *wait));
                let is_other_arm = own.statement() != point.statement()
                    && self.branch_without(post, *wait).is_some_and(|it| self.is_inside(&own, it))
                    && !self.is_in_same_arm(&own, *wait, post);
                let other = Some(own).filter(|_| is_other_arm).map(insert);
                let all = other.into_iter().chain(self.moved_waits(post, *wait, &point));
                all.map(|it| self.on_waiting_stream(it, before)).collect()
            }
            [_, _, ..] => Vec::new(),
        }
    }

    /// Returns the line before which an edit inserts a Wait, or moves one, if that is in no loop or branch.
    pub(super) fn line_of_wait(&self, edit: &Repair) -> Option<u32> {
        let placed = match edit {
            Repair::InsertWait { communication, before } => {
                self.wait_placements(communication, before).into_iter().next()
            }
            Repair::MoveWait { wait: Some(wait), before, synchronize } => {
                self.moved_up(*wait, before, synchronize.as_ref())
            }
            Repair::MoveWait { wait: None, .. }
            | Repair::InsertSynchronize { .. }
            | Repair::OnStream { .. }
            | Repair::MoveDeallocate { .. }
            | Repair::MoveAllocate { .. }
            | Repair::ShortenAllocate { .. } => None,
        }?;
        let Some(InsertionPoint::Before { statement, .. }) = placed.insertion() else { return None };
        let stmt = statement.stmt.filter(|it| self.places().around(*it).next().is_none())?;
        Some(self.line_number(stmt))
    }

    /// Returns the edit that moves a Wait up. It stays out of loops and branches in which neither it is, nor its communication. If it leaves
    /// a loop or a branch, every rank that posts the communication executes it once: it also leaves the others without the communication.
    /// There is no such edit if the communication is in a branch and not all ranks post it, or if it has another Wait.
    pub(super) fn moved_up(
        &self,
        wait: StmtId,
        before: &InsertionPoint,
        stream: Option<&WaitedStream>,
    ) -> Option<Repair> {
        let moved = |point| {
            let edit = Repair::MoveWait { wait: Some(wait), before: point, synchronize: stream.cloned() };
            self.on_waiting_stream(edit, before)
        };
        let Some(post) = self.post_of(wait) else {
            return Some(moved(self.out_of_other_blocks(before, &|it| self.is_around(it, wait))));
        };
        let is_shared = |it| self.is_around(it, wait) || self.is_around(it, post);
        let point = self.out_of_other_blocks(before, &is_shared);
        let around = |it: StmtId| self.places().around(it).map(|it| it.1);
        let leaves = around(wait).any(|it| !self.is_around(it, post) && !self.is_inside(&point, it));
        if !leaves {
            return Some(moved(point));
        }
        let point = self.out_of_other_blocks(before, &|it| self.is_around(it, post));
        let is_only = self.posted_waits(post).eq([wait]);
        let is_posted =
            around(post).all(|it| self.is_inside(&point, it)) || self.all_ranks_post(post, &point);
        (is_only && is_posted).then(|| moved(point))
    }

    /// Returns whether each rank posts a communication with the number of `post` before a point, which is in no loop or branch.
    fn all_ranks_post(&self, post: StmtId, point: &InsertionPoint) -> bool {
        let Some(at) = point.statement().filter(|it| self.places().around(*it).next().is_none()) else {
            return false;
        };
        let posts = self.program.posted_work(post).map_or(&[][..], |it| self.posts_of(it));
        posts.iter().all(|it| self.starts_before(*it, at)) && self.reach_all_ranks(posts)
    }

    /// Returns the edit with which the stream waits that is current at `wanted`, if the edit inserts a Wait, or moves one up, before a loop or
    /// branch around `wanted`, where another stream may be current.
    fn on_waiting_stream(&self, edit: Repair, wanted: &InsertionPoint) -> Repair {
        let (
            Some(InsertionPoint::Before { statement, .. }),
            Some(InsertionPoint::Before { statement: of, .. }),
        ) = (edit.insertion(), Some(wanted))
        else {
            return edit;
        };
        let (Some(place), Some(of), Some(blocked)) = (statement.stmt, of.stmt, wanted.current()) else {
            return edit;
        };
        if place == of || !blocked.is_in_program() || self.has_same_stream(place, of) {
            return edit;
        }
        let is_up = match &edit {
            Repair::MoveWait { wait, .. } => wait.is_some_and(|it| self.starts_before(place, it)),
            _ => true,
        };
        if is_up { edit.on_stream(blocked, &|it| self.has_same_stream(of, it)) } else { edit }
    }

    /// Returns whether the text shows that one stream is current at two statements.
    fn has_same_stream(&self, first: StmtId, second: StmtId) -> bool {
        let streams = self.streams();
        let [one, other] = [first, second].map(|it| streams.current(it));
        let has_same_setter = streams.setter(first).is_some_and(|it| streams.setter(second) == Some(it));
        has_same_setter || one == other && one.is_some_and(|it| it.is_constant(&self.program))
    }

    /// Returns whether an edit moves a Wait up, and the stream that executes it now still waits where it does now: no order is lost.
    pub(super) fn waits_earlier(&self, edit: &Repair) -> bool {
        let Repair::MoveWait { wait: Some(wait), before, synchronize } = edit else { return false };
        let setter = |it: StmtId| self.streams().setter(it);
        before.statement().is_some_and(|it| {
            self.starts_before(it, *wait) && (synchronize.is_some() || setter(it) == setter(*wait))
        })
    }

    /// Returns the lines of the Waits that have to be removed if one is inserted for a communication: each of these would be a second
    /// one.
    pub(super) fn lines_of_other_waits(&self, post: StmtId, before: &InsertionPoint) -> Vec<u32> {
        let communication = NamedStmt { stmt: Some(post), name: String::new() };
        let point = self.wait_point(&communication, post, before);
        let waits = self.other_waits(post, &point);
        waits.into_iter().map(|it| self.line_number(it)).collect()
    }

    fn wait_point(&self, communication: &NamedStmt, post: StmtId, before: &InsertionPoint) -> InsertionPoint {
        let number = self.program.posted_work(post);
        let is_shared = |it: StmtId| {
            self.is_around(it, post) || number.is_some_and(|number| self.posts_without_wait(it, number))
        };
        let point = self.out_of_other_blocks(before, &is_shared);
        let places = self.places();
        if let Some(again) = self.next_post(post, &point) {
            return InsertionPoint::Before { statement: self.named(again), current: None };
        }
        let Some(block) = places.of_stmt(post).map(|it| it.block) else { return point };
        let is_in_block = match &point {
            InsertionPoint::Before { statement, .. } => statement.stmt.is_some_and(|it| {
                places.of_stmt(it).is_some_and(|it| it.block == block)
                    || places.around(it).any(|(around, _)| around == block)
            }),
            InsertionPoint::After { .. } | InsertionPoint::BlockEnd { .. } => true,
            InsertionPoint::End { .. } => false,
        };
        let outer = places.around(post).next();
        let is_in_branch = outer.is_some_and(|(_, outer)| matches!(self.program.stmts[outer], Stmt::If(_)));
        if is_in_branch && !is_in_block {
            return InsertionPoint::BlockEnd { of: communication.clone() };
        }
        point
    }

    /// Returns the statement of the block of `post`, between `post` and a point, that posts a communication with its number, or contains one
    /// that does: behind it, a Wait is for that one.
    fn next_post(&self, post: StmtId, point: &InsertionPoint) -> Option<StmtId> {
        let (program, places) = (&self.program, self.places());
        let (number, place) = (program.posted_work(post)?, places.of_stmt(post)?);
        // The statement of the block that is, or contains, a later post.
        let in_block = |it: StmtId| {
            let mut outer = std::iter::once(it).chain(places.around(it).map(|it| it.1));
            outer.find(|it| places.of_stmt(*it).is_some_and(|it| it.block == place.block))
        };
        let is_later = |it: &StmtId| self.starts_before(post, *it) && !self.exclude(post, *it);
        let later = self.posts_of(number).iter().copied().filter(is_later);
        let again = later
            .filter_map(in_block)
            .filter(|it| *it != post)
            .min_by_key(|it| program.stmt_span(*it).start)?;
        let is_before = match point {
            InsertionPoint::Before { statement, .. } => {
                statement.stmt.is_some_and(|it| self.starts_before(again, it) && !self.is_around(again, it))
            }
            InsertionPoint::After { statement, .. } => {
                statement.stmt.is_some_and(|it| it == again || self.starts_before(again, it))
            }
            InsertionPoint::BlockEnd { .. } | InsertionPoint::End { .. } => true,
        };
        is_before.then_some(again)
    }

    /// Returns a point before the loops and branches around `point` for which `is_shared` does not hold. A Wait stays in loops whose
    /// iterations post a communication with its number and do not wait for it: one Wait is for this communication and that of the iteration
    /// before.
    fn out_of_other_blocks(
        &self,
        point: &InsertionPoint,
        is_shared: &dyn Fn(StmtId) -> bool,
    ) -> InsertionPoint {
        let mut point = point.clone();
        if let InsertionPoint::Before { statement, current } = &mut point {
            let around = statement.stmt.into_iter().flat_map(|it| self.places().around(it));
            if let Some(outer) = around.map(|(_, outer)| outer).filter(|it| !is_shared(*it)).last() {
                (statement.stmt, *current) = (Some(outer), None);
            }
        }
        point
    }

    /// Returns the Waits of which each would end a communication that a Wait at a point ends, too.
    fn other_waits(&self, post: StmtId, point: &InsertionPoint) -> Vec<StmtId> {
        let is_other = |wait: StmtId| match (self.branch_without(post, wait), self.branch_without(wait, post))
        {
            (Some(branch), _) => !self.is_inside(point, branch),
            (None, Some(around_post)) => {
                self.is_inside(point, around_post) && self.starts_before(around_post, wait)
            }
            (None, None) => false,
        };
        // For which of two branches a Wait behind them is depends on the rank.
        self.posted_waits(post).filter(|it| is_other(*it) && !self.is_behind_other_arm(post, *it)).collect()
    }

    /// Returns the moves of a Wait to a point. If the Wait moves down, another one is to the place before the branch in which it is; this
    /// one is better if something follows the Wait in the branch.
    fn moved_waits(&self, post: StmtId, wait: StmtId, point: &InsertionPoint) -> Vec<Repair> {
        let moved = |before: InsertionPoint| {
            let is_up = before.statement().is_some_and(|it| self.starts_before(it, wait));
            let place = before.statement();
            let setter = |it: StmtId| self.streams().setter(it);
            let has_moved = is_up && place.is_some_and(|it| setter(it) != setter(wait));
            let current = before.current().filter(|it| has_moved && it.is_in_program());
            let synchronize = current.map(|it| WaitedStream::from_stream(it, place));
            Repair::MoveWait { wait: Some(wait), before, synchronize }
        };
        let branch = self.branch_without(post, wait).filter(|branch| {
            point.statement().is_none_or(|it| it != *branch && self.starts_before(*branch, it))
        });
        let Some(branch) = branch else { return vec![moved(point.clone())] };
        let above = InsertionPoint::Before { statement: self.named(branch), current: None };
        let mut all = vec![moved(point.clone()), moved(above)];
        if self.is_followed(wait, branch) {
            all.reverse();
        }
        all
    }

    /// Returns whether a statement that uses memory follows `wait` in its blocks, up to that of `branch`.
    fn is_followed(&self, wait: StmtId, branch: StmtId) -> bool {
        let (program, places) = (&self.program, self.places());
        let inside = std::iter::once(wait).chain(places.around(wait).map(|it| it.1));
        inside.take_while(|it| *it != branch).filter_map(|it| places.of_stmt(it)).any(|place| {
            program.block(place.block)[place.position + 1..].iter().any(|it| match &program.stmts[*it] {
                Stmt::Op(it) => !matches!(it.op.def().class, OpClass::Stream | OpClass::Wait),
                Stmt::Let(..) => false,
                Stmt::For(_) | Stmt::If(_) => true,
            })
        })
    }

    /// Returns the outermost loop or branch around `inner` in which `stmt` is not.
    fn branch_without(&self, stmt: StmtId, inner: StmtId) -> Option<StmtId> {
        let all = self.places().around(inner).map(|it| it.1);
        all.filter(|it| !self.is_around(*it, stmt)).last()
    }

    /// Returns whether a point is in the block of the branch without `post` in which `wait` is.
    fn is_in_same_arm(&self, point: &InsertionPoint, wait: StmtId, post: StmtId) -> bool {
        let places = self.places();
        let Some(branch) = self.branch_without(post, wait) else { return true };
        let arm = |it: StmtId| places.around(it).find(|it| it.1 == branch).map(|it| it.0);
        point.statement().is_none_or(|it| arm(it) == arm(wait))
    }

    fn is_around(&self, outer: StmtId, stmt: StmtId) -> bool {
        self.places().around(stmt).any(|it| it.1 == outer)
    }

    fn is_inside(&self, point: &InsertionPoint, outer: StmtId) -> bool {
        point.statement().is_some_and(|it| self.is_around(outer, it))
    }

    fn starts_before(&self, first: StmtId, second: StmtId) -> bool {
        self.program.stmt_span(first).start < self.program.stmt_span(second).start
    }

    /// Returns the last statement before a Wait that posts a communication with its number, on a rank that executes both.
    fn post_of(&self, wait: StmtId) -> Option<StmtId> {
        let number = self.awaited_number(wait)?;
        let posts = self.posts_of(number).iter().copied();
        let is_before = |it: &StmtId| self.starts_before(*it, wait) && !self.exclude(*it, wait);
        posts.filter(is_before).max_by_key(|it| self.program.stmt_span(*it).start)
    }

    /// Returns the Waits for what a statement posts.
    fn posted_waits(&self, post: StmtId) -> impl Iterator<Item = StmtId> {
        let number = self.program.posted_work(post);
        let waits = number.into_iter().flat_map(|it| self.waits_of(it)).copied();
        waits.filter(move |it| self.post_of(*it) == Some(post))
    }

    /// Returns whether a Wait is outside of a branch of which `post` is in one arm, and a communication with the same number in another.
    fn is_behind_other_arm(&self, post: StmtId, wait: StmtId) -> bool {
        let (program, places) = (&self.program, self.places());
        let twins = program.posted_work(post).map_or(&[][..], |it| self.posts_of(it));
        places.around(post).any(|(block, outer)| {
            let is_twin = |it: &StmtId| places.around(*it).any(|it| it.1 == outer && it.0 != block);
            program.inner_blocks(outer).count() > 1
                && !self.is_around(outer, wait)
                && twins.iter().any(is_twin)
        })
    }

    /// Returns whether a loop contains a communication with a number, and no Wait for it.
    fn posts_without_wait(&self, looped: StmtId, number: u32) -> bool {
        let is_inside = |it: &StmtId| self.is_around(looped, *it);
        matches!(self.program.stmts[looped], Stmt::For(_))
            && self.posts_of(number).iter().any(is_inside)
            && !self.waits_of(number).iter().any(is_inside)
    }
}
