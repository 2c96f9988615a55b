//! Finds the Wait of each collective, and the collectives that rely on the order of their communicator.
//!
//! The steps of a collective are on other communicators. So they are not ordered with what the communicator of the collective does, and
//! their result is complete behind the Waits only.
//!
//! Invariant: if each post of a number has one Wait behind it in its block, and nothing in between names the number, then each Wait is reached
//! by exactly the post before it, in loops too.

use grammar::{
    ir::{BlockId, Program, Stmt, StmtId, TensorId},
    ops::OpClass,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Posted;
use crate::analysis::{
    blocks::{inner_blocks, nested_blocks},
    memory_effects::MemoryEffects,
    wait_order::awaited_work,
};

/// The Waits of a program.
#[derive(Default)]
pub(super) struct Waits {
    storage: MemoryEffects,
    /// The Wait for each post that has exactly one.
    wait_of: FxHashMap<StmtId, StmtId>,
    /// The numbers for which some post has no such Wait, or some Wait no such post.
    unpaired: FxHashSet<u32>,
    blocks: FxHashMap<BlockId, BlockUses>,
    /// The teams whose communicator orders a statement behind a collective, with the number of the collective.
    ordering: FxHashMap<Vec<usize>, u32>,
}

/// The uses of storage in a block, as ascending indices of statements.
#[derive(Default)]
struct BlockUses {
    /// The index of each post and of each Wait.
    at: FxHashMap<StmtId, usize>,
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
    pub(super) fn of(
        program: &Program,
        body: BlockId,
        posted: &dyn Fn(BlockId) -> Vec<Posted>,
    ) -> Self {
        let mut waits = Self { storage: MemoryEffects::of(program), ..Self::default() };
        waits.pair(program, body);
        for block in nested_blocks(program, body) {
            let uses = BlockUses::of(program, &waits.storage, block);
            waits.blocks.insert(block, uses);
            for posted in posted(block) {
                if waits.behind(program, block, &posted).is_err() {
                    let ordering = posted.teams.into_iter().zip(posted.numbers);
                    waits.ordering.extend(ordering.map(|(team, number)| (sorted(&team), number)));
                }
            }
        }
        waits
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
    ) -> Result<TeamWaits, String> {
        if let Some(number) = posted.numbers.iter().find(|it| self.unpaired.contains(it)) {
            return Err(format!(
                "not every Communication {number} has one Wait of its own behind it in the same block"
            ));
        }
        let uses = &self.blocks[&block];
        let by_team: Vec<StmtId> = posted.stmts.iter().map(|it| self.wait_of[it]).collect();
        let at = |stmt: &StmtId| uses.at[stmt];
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
                return Err(format!("`{name}` is {verb} before the last of its Waits"));
            }
        }
        let between_streams = any_between(&uses.streams, first, complete_at);
        Ok(TeamWaits { by_team, last, between_streams })
    }

    /// Returns the number of a collective behind which the communicator of one of the teams orders a statement.
    pub(super) fn ordered_by(&self, teams: &[Vec<usize>]) -> Option<u32> {
        teams.iter().find_map(|team| self.ordering.get(&sorted(team))).copied()
    }

    /// Pairs the posts of a block with its Waits. Returns the numbers that the block names.
    fn pair(&mut self, program: &Program, block: BlockId) -> FxHashSet<u32> {
        let mut open: FxHashMap<u32, StmtId> = FxHashMap::default();
        let mut named = FxHashSet::default();
        for stmt in program.block(block) {
            for inner in inner_blocks(program, *stmt).into_iter().flatten() {
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
}

impl BlockUses {
    fn of(program: &Program, storage: &MemoryEffects, block: BlockId) -> Self {
        let mut found = Self::default();
        for (at, stmt) in program.block(block).iter().enumerate() {
            let is_wait = awaited_work(program, *stmt).is_some();
            if is_wait || posted_work(program, *stmt).is_some() {
                found.at.insert(*stmt, at);
            }
            if is_wait {
                continue;
            }
            let effects = storage.effects(program, *stmt);
            let binds = effects.binds.iter().map(|it| storage.alias_class(*it));
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

/// Returns the number of a communication, or of a coalesced group, that a statement posts.
fn posted_work(program: &Program, stmt: StmtId) -> Option<u32> {
    match &program.stmts[stmt] {
        Stmt::Op(it) if matches!(it.op.def().class, OpClass::Communicate | OpClass::Coalescing) => it.number,
        Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
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
