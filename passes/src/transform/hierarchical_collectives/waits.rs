//! Finds the Wait of each collective, and the collectives that rely on the order of their communicator.
//!
//! The steps of a collective are on other communicators. So they are not ordered with what the communicator of the collective does, and
//! their result is complete behind the Waits only.
//!
//! Invariant: if each post of a number has one Wait behind it in its block, and nothing in between names the number, then each Wait is reached
//! by exactly the post before it, in loops too.

use grammar::{BlockId, Program, StmtId, TensorId};
use hir_ir::blocks::nested_blocks;
use rustc_hash::{FxHashMap, FxHashSet};

use super::Posted;
use crate::{
    analysis::{
        memory_effects::MemoryEffects,
        wait_order::{awaited_work, posted_work},
    },
    pass::Obstacle,
};

/// The Waits of a program.
#[derive(Default)]
pub(super) struct Waits {
    storage: MemoryEffects,
    /// The Wait for each post that has exactly one.
    wait_of: FxHashMap<StmtId, StmtId>,
    /// The numbers for which some post has no such Wait, or some Wait no such post.
    unpaired: FxHashSet<u32>,
    /// The position of each statement, in program order.
    at: FxHashMap<StmtId, usize>,
    /// For each number, the position from which on a post of it may be pending, and that of the Wait behind which none is.
    pending: FxHashMap<u32, (usize, usize)>,
    blocks: FxHashMap<BlockId, BlockUses>,
    /// The collectives behind which their communicator may order other statements, by team.
    ordering: FxHashMap<Vec<usize>, Vec<Pending>>,
}

/// A collective, and the positions between which it may be pending.
struct Pending {
    number: u32,
    from: usize,
    to: usize,
}

/// The uses of storage in a block, as ascending positions of statements.
#[derive(Default)]
struct BlockUses {
    /// The statements other than Waits that read, write, bind or deallocate each alias class.
    uses: FxHashMap<TensorId, Vec<usize>>,
    /// Those that write each alias class.
    writes: FxHashMap<TensorId, Vec<usize>>,
    /// Those that use streams.
    streams: Vec<usize>,
}

/// The Waits of a collective, all in its block.
pub(super) struct TeamWaits {
    /// The Wait of each team.
    pub(super) by_team: Vec<StmtId>,
    /// The last one in the program. Behind it, all teams have their result.
    pub(super) last: Option<StmtId>,
    /// Whether streams are used between the first and the last one, so that the last stream may not wait for all teams.
    pub(super) between_streams: bool,
}

impl Waits {
    /// Analyzes a container. `posted` lists the collectives of a block.
    pub(super) fn of(program: &Program, body: BlockId, posted: &dyn Fn(BlockId) -> Vec<Posted>) -> Self {
        let mut waits = Self { storage: MemoryEffects::of(program), ..Self::default() };
        waits.place(program, body);
        waits.pair(program, body);
        for block in nested_blocks(program, body) {
            let uses = waits.uses(program, block);
            waits.blocks.insert(block, uses);
            for posted in posted(block) {
                if waits.behind(program, block, &posted).is_err() {
                    waits.add_ordering(posted);
                }
            }
        }
        waits
    }

    fn add_ordering(&mut self, posted: Posted) {
        for ((stmt, number), team) in posted.stmts.iter().zip(posted.numbers).zip(posted.teams) {
            let wait = self.wait_of.get(stmt).filter(|_| !self.unpaired.contains(&number));
            let (from, to) = match wait {
                Some(wait) => (self.at[stmt], self.at[wait]),
                None => self.pending[&number],
            };
            self.ordering.entry(sorted(&team)).or_default().push(Pending { number, from, to });
        }
    }

    /// Returns the Waits of a collective whose result is not used before the last one, and whose input is not written before it.
    ///
    /// # Errors
    /// Returns the reason why there are no such Waits.
    pub(super) fn behind(
        &self,
        program: &Program,
        block: BlockId,
        posted: &Posted,
    ) -> Result<TeamWaits, Obstacle> {
        if let Some(number) = posted.numbers.iter().find(|it| self.unpaired.contains(it)) {
            return Err(format!(
                "not every Communication {number} has one Wait of its own behind it in the same block"
            )
            .into());
        }
        let uses = &self.blocks[&block];
        let by_team: Vec<StmtId> = posted.stmts.iter().map(|it| self.wait_of[it]).collect();
        let at = |stmt: &StmtId| self.at[stmt];
        let posted_at = posted.stmts.last().map_or(0, at);
        let first = by_team.iter().map(at).min().unwrap_or(posted_at);
        let last = by_team.iter().max_by_key(|it| at(it)).copied();
        let complete_at = last.as_ref().map_or(posted_at, at);
        let class = |it| self.storage.alias_class(it);
        let used = uses.uses.get(&class(posted.output)).map(|it| (it, posted.output, "used"));
        let written = uses.writes.get(&class(posted.input)).map(|it| (it, posted.input, "written"));
        for (indices, tensor, verb) in [used, written].into_iter().flatten() {
            if any_between(indices, posted_at, complete_at) {
                let name = program.tensor_name(tensor);
                return Err(format!("`{name}` is {verb} before the last of its Waits").into());
            }
        }
        let between_streams = any_between(&uses.streams, first, complete_at);
        Ok(TeamWaits { by_team, last, between_streams })
    }

    /// Returns the number of an earlier collective of the same team that may be pending at a collective, and behind which the communicator
    /// may order the collective or what follows its Wait.
    pub(super) fn ordered_behind(&self, posted: &Posted) -> Option<u32> {
        posted.stmts.iter().zip(&posted.teams).find_map(|(stmt, team)| {
            let at = self.at[stmt];
            let earlier = self.ordering.get(&sorted(team)).into_iter().flatten();
            let mut pending = earlier.filter(|it| it.from < at && at < it.to);
            pending.next().map(|it| it.number)
        })
    }

    /// Stores the positions of all statements, and between which ones each number may be pending.
    fn place(&mut self, program: &Program, body: BlockId) {
        for outermost in program.block(body) {
            let start = self.at.len();
            for stmt in program.stmts_at(*outermost) {
                let at = self.at.len();
                self.at.insert(stmt, at);
                let awaited = awaited_work(program, stmt);
                if let Some(number) = awaited.or_else(|| posted_work(program, stmt)) {
                    // A Wait in a branch or in a loop may not be the last one.
                    let is_last = awaited.is_some() && stmt == *outermost;
                    let end = if is_last { at } else { usize::MAX };
                    self.pending.entry(number).or_insert((start, end)).1 = end;
                }
            }
        }
    }

    /// Pairs the posts of a block with its Waits. Returns the numbers that the block names.
    fn pair(&mut self, program: &Program, block: BlockId) -> FxHashSet<u32> {
        let mut open: FxHashMap<u32, StmtId> = FxHashMap::default();
        let mut named = FxHashSet::default();
        for stmt in program.block(block) {
            for inner in program.inner_blocks(*stmt) {
                let inner = self.pair(program, inner);
                self.unpaired.extend(inner.iter().filter(|it| open.contains_key(*it)));
                named.extend(inner);
            }
            if let Some(number) = awaited_work(program, *stmt) {
                named.insert(number);
                match open.remove(&number) {
                    Some(post) => _ = self.wait_of.insert(post, *stmt),
                    None => _ = self.unpaired.insert(number),
                }
            } else if let Some(number) = posted_work(program, *stmt) {
                named.insert(number);
                if open.insert(number, *stmt).is_some() {
                    self.unpaired.insert(number);
                }
            }
        }
        self.unpaired.extend(open.into_keys());
        named
    }

    fn uses(&self, program: &Program, block: BlockId) -> BlockUses {
        let mut found = BlockUses::default();
        let others = program.block(block).iter().filter(|it| awaited_work(program, **it).is_none());
        for stmt in others {
            let at = self.at[stmt];
            let effects = self.storage.effects(program, *stmt);
            let binds = effects.binds.iter().map(|it| self.storage.alias_class(*it));
            let accesses = &effects.accesses;
            for class in accesses.reads.iter().chain(&accesses.writes).copied().chain(binds) {
                found.uses.entry(class).or_default().push(at);
            }
            for class in &accesses.writes {
                found.writes.entry(*class).or_default().push(at);
            }
            if effects.uses_streams {
                found.streams.push(at);
            }
        }
        found
    }
}

/// Returns whether ascending indices contain one between two others.
fn any_between(indices: &[usize], from: usize, to: usize) -> bool {
    indices.get(indices.partition_point(|it| *it <= from)).is_some_and(|it| *it < to)
}

fn sorted(team: &[usize]) -> Vec<usize> {
    let mut team = team.to_vec();
    team.sort_unstable();
    team
}
