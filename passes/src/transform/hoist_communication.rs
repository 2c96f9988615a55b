//! hoist-communication: posts communications as early as possible.
//!
//! Before:
//! ```text
//! T2 = linear(T0, T1)
//! T5 = linear(T6, T7)
//! Communication 4 (type=Allreduce, input=T2, output=T3)
//! ```
//! After:
//! ```text
//! T2 = linear(T0, T1)
//! Communication 4 (type=Allreduce, input=T2, output=T3)
//! T5 = linear(T6, T7)
//! ```
//!
//! A communication, or a whole coalescing bracket, moves up in its block to before the topmost statement that
//! computes or waits. It does not move past a statement that writes what the communication uses, uses what it
//! writes, binds or deallocates one of its names, assigns one of its scalars, communicates, waits for the
//! same number, shares handles, or operates on streams. So communications keep their order on every
//! communicator.
//!
//! A dependency can also pass through a communicator: a statement precedes a communication of its stream,
//! for which another stream waits, or which precedes the next communication of the communicator. In a program in
//! which another stream waits, a communication therefore stays after a statement that conflicts with the work of
//! another stream, or with the caller.

use std::ops::Range;

use grammar::{
    diagnostic::Diagnostic,
    ir::{BlockId, Program, Stmt, StmtId, SymbolId, TensorId},
    ops::OpClass,
};
use rustc_hash::FxHashMap;

use crate::{
    analysis::{
        blocks::{any_stmt, nested_blocks},
        memory_effects::{MemoryEffects, StmtEffects},
        wait_order::WaitOrder,
    },
    pass::{Arguments, Change, Pass, Remarks, module_docs},
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "hoist-communication",
    description: "post communications as early as possible",
    docs: module_docs(include_str!("hoist_communication.rs")),
    options: &[],
    for_one_rank: false,
    run,
};

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let storage = MemoryEffects::of(program);
    let order = WaitOrder::of(program, &storage);
    let mut changed = false;
    for block in nested_blocks(program, body) {
        let hoisted = hoist_in_block(program, &storage, &order, block);
        changed |= hoisted != program.blocks[block];
        program.blocks[block] = hoisted;
    }
    Ok(Change::from_flag(changed))
}

/// Returns the statements of a block with its communications at their highest positions.
fn hoist_in_block(
    program: &Program,
    storage: &MemoryEffects,
    order: &WaitOrder,
    block: BlockId,
) -> Vec<StmtId> {
    let stmts = program.block(block);
    let (mut segment, mut above) = (None, Above::default());
    // The communications, each with the number of other statements before it.
    let mut posts: Vec<(usize, Range<usize>)> = Vec::new();
    let mut next = 0;
    while next < stmts.len() {
        order.move_to(program, storage, &mut segment, block, next);
        if let Some(last) = communication_end(program, block, next) {
            let posted = storage.all_effects(program, &stmts[next..=last]);
            let position = above.highest_position(&posted);
            above.barrier = position;
            posts.push((position, next..last + 1));
            next = last + 1;
            continue;
        }
        let effects = storage.effects(program, stmts[next]);
        let stays = order.others_wait(segment.as_ref())
            && order.conflicts_with_other_streams(segment.as_ref(), &effects.accesses);
        above.push(storage, stmts[next], &effects, stays, takes_stream_time(program, stmts[next]));
        next += 1;
    }
    let mut posts = posts.into_iter().peekable();
    let mut hoisted = Vec::with_capacity(stmts.len());
    for (at, stmt) in above.stmts.iter().map(Some).chain([None]).enumerate() {
        while let Some((_, range)) = posts.next_if(|(position, _)| *position == at) {
            hoisted.extend_from_slice(&stmts[range]);
        }
        hoisted.extend(stmt);
    }
    hoisted
}

/// An effect of a statement that may prevent a communication from moving before the statement.
#[derive(PartialEq, Eq, Hash)]
enum EffectKey {
    Waits(u32),
    Assigns(SymbolId),
    Binds(TensorId),
    Drops(TensorId),
    DropsClass(TensorId),
    Reads(TensorId),
    Writes(TensorId),
}

/// The statements above the current position that are not communications.
#[derive(Default)]
struct Above {
    stmts: Vec<StmtId>,
    /// For each effect, the number of statements up to the last one with this effect.
    last: FxHashMap<EffectKey, usize>,
    /// No communication moves before this position: a communication is there, or a statement that no communication
    /// moves before.
    barrier: usize,
    /// The positions of the statements that occupy the stream.
    busy: Vec<usize>,
}

impl Above {
    /// Adds the next statement. No communication moves before it if it `stays`.
    fn push(
        &mut self,
        storage: &MemoryEffects,
        stmt: StmtId,
        effects: &StmtEffects,
        stays: bool,
        is_busy: bool,
    ) {
        self.busy.extend(is_busy.then_some(self.stmts.len()));
        self.stmts.push(stmt);
        let count = self.stmts.len();
        if stays || effects.uses_streams || effects.may_block_host || effects.communicates {
            self.barrier = count;
        }
        let waits = effects.waits.iter().map(|it| EffectKey::Waits(*it));
        let assigns = effects.assigns.iter().map(|it| EffectKey::Assigns(*it));
        let binds = effects.binds.iter().map(|it| EffectKey::Binds(*it));
        let drops = effects
            .deallocates
            .iter()
            .flat_map(|it| [EffectKey::Drops(*it), EffectKey::DropsClass(storage.alias_class(*it))]);
        let reads = effects.accesses.reads.iter().map(|it| EffectKey::Reads(*it));
        let writes = effects.accesses.writes.iter().map(|it| EffectKey::Writes(*it));
        let keys = waits.chain(assigns).chain(binds).chain(drops).chain(reads).chain(writes);
        keys.for_each(|key| _ = self.last.insert(key, count));
    }

    /// Returns the number of statements that stay before a communication with the effects `posted`.
    fn highest_position(&self, posted: &StmtEffects) -> usize {
        let waits = posted.posts.iter().map(|it| EffectKey::Waits(*it));
        let assigns = posted.symbols.iter().map(|it| EffectKey::Assigns(*it));
        let names = posted.names.iter().flat_map(|it| [EffectKey::Binds(*it), EffectKey::Drops(*it)]);
        let used = posted.accesses.reads.union(&posted.accesses.writes);
        let used = used.flat_map(|it| [EffectKey::DropsClass(*it), EffectKey::Writes(*it)]);
        let written = posted.accesses.writes.iter().map(|it| EffectKey::Reads(*it));
        let keys = waits.chain(assigns).chain(names).chain(used).chain(written);
        let lowest = keys.filter_map(|key| self.last.get(&key)).chain([&self.barrier]).max();
        let lowest = lowest.copied().unwrap_or(0);
        let first = self.busy.get(self.busy.partition_point(|at| *at < lowest));
        first.copied().unwrap_or(self.stmts.len())
    }
}

/// Returns the index of the last statement of the communication that begins at `first`; `None` if no
/// communication begins there.
fn communication_end(program: &Program, block: BlockId, first: usize) -> Option<usize> {
    let effect = |at: usize| match &program.stmts[*program.block(block).get(at)?] {
        Stmt::Op(it) => Some(it.op.def().class),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
    };
    match effect(first)? {
        OpClass::Communicate => Some(first),
        OpClass::Coalescing => {
            (first + 1..program.block(block).len()).find(|at| effect(*at) == Some(OpClass::Coalescing))
        }
        OpClass::Compute
        | OpClass::Elementwise
        | OpClass::View
        | OpClass::Allocate
        | OpClass::Deallocate
        | OpClass::Wait
        | OpClass::Stream
        | OpClass::ShareHandles
        | OpClass::HostUnit
        | OpClass::Opaque => None,
    }
}

/// Returns whether a statement, or one inside it, occupies the stream.
fn takes_stream_time(program: &Program, stmt: StmtId) -> bool {
    any_stmt(program, stmt, &|stmt| match &program.stmts[stmt] {
        Stmt::Op(it) => matches!(
            it.op.def().class,
            OpClass::Compute | OpClass::Elementwise | OpClass::Wait | OpClass::HostUnit | OpClass::Opaque
        ),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => false,
    })
}
