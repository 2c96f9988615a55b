//! schedule-communication: posts communications as early as possible and waits for them as late as possible.
//!
//! Before:
//! ```text
//! T2 = linear(T0, T1)
//! T5 = linear(T6, T7)
//! Communication 4 (type=Allreduce, input=T2, output=T3)
//! Wait(Communication 4)
//! T9 = linear(T6, T8)
//! T10 = Set( T3 )
//! ```
//! After:
//! ```text
//! T2 = linear(T0, T1)
//! Communication 4 (type=Allreduce, input=T2, output=T3)
//! T5 = linear(T6, T7)
//! T9 = linear(T6, T8)
//! Wait(Communication 4)
//! T10 = Set( T3 )
//! ```
//!
//! With `posts=early`, a communication, or a whole coalescing bracket, moves up in its block, past statements that
//! compute or wait, and stops directly before the topmost of these. The ALLOCATEs of its tensors directly before it move
//! with it. It does not move past a statement that writes what the communication uses, uses what it writes, binds or deallocates one of its names,
//! assigns one of its scalars, communicates, waits for the same number, shares handles, or operates on streams. So
//! communications keep their order on every communicator.
//!
//! The work of a stream before a communication is also done before a later statement of another stream that waits for
//! this communication, or for a later one of the same communicator. So in a program in which another stream waits, a
//! communication therefore stays after a statement that conflicts with the work of
//! another stream, or with the caller.
//!
//! With `waits=late`, a Wait moves down in its block until a statement stops it: one that writes what the communication
//! uses, reads what it writes, deallocates either or shares its handle, posts or waits for the same number, or operates
//! on streams, so that the same stream waits. It is placed directly after the last statement before that one that
//! computes, waits or communicates. Waits that
//! move to the same position keep their order.
//!
//! A Wait also orders later statements after work that precedes the communication on its communicator or stream. So
//! it stays before a statement that conflicts with another communication for which nothing waits in between, and, if
//! several streams communicate, before a statement that conflicts with the work of another stream.
//!
//! With `waits=sends`, only Waits for sends move, also out of branches: a received buffer is needed at once, but the
//! completion of a send matters only to the statement that writes the sent buffer next. A Wait for a number under
//! which only sends are posted moves under the same rules, and out of a branch into a second branch with the same
//! predicate:
//! ```text
//! IF Manual ( i5 == rank ):                                      IF Manual ( i5 == rank ):
//!   T6 = Set( T7 )                                                 T6 = Set( T7 )
//! ELSE:                                                          ELSE:
//!   P2PCommunication 38 (type=send, buffer=T0, peer=i5)            P2PCommunication 38 (type=send, buffer=T0, peer=i5)
//!   P2PCommunication 37 (type=recv, buffer=T6, peer=i5)            P2PCommunication 37 (type=recv, buffer=T6, peer=i5)
//!   Wait(Communication 38)                                         Wait(Communication 37)
//!   Wait(Communication 37)                                       T8 = linear(T6, T1)
//! T8 = linear(T6, T1)                                            IF Manual ( i5 == rank ):
//!                                                                ELSE:
//!                                                                  Wait(Communication 38)
//! ```
//! It stays in the branch if it cannot move past any statement after the branch.
//!
//! With `only=T3`, only communications of that tensor move, and their Waits.

mod posts;
mod sends;
mod waits;

use grammar::{BlockId, Diagnostic, OpClass, Program, StmtId, SymbolId, TensorId, attr};
use hir_ir::blocks::nested_blocks;
use rustc_hash::FxHashSet;

use crate::{
    analysis::{
        memory_effects::{MemoryEffects, StmtEffects},
        wait_order::WaitOrder,
    },
    pass::{Arguments, Change, ONLY, OptionSpec, Pass, Remarks},
};

/// The pass.
pub(crate) const PASS: Pass =
    Pass::new("schedule-communication", include_str!("schedule_communication.rs"), run)
        .about("post communications as early and wait for them as late as possible")
        .with_options(&[
            OptionSpec::word("posts", &["early", "keep"])
                .about("post communications as early as possible, or where they are"),
            OptionSpec::word("waits", &["late", "sends", "keep"]).about(
                "wait as late as possible, only for sends and also after their branch, or where the Waits \
                 are",
            ),
            ONLY,
        ]);

fn run(program: &mut Program, arguments: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let mut changed = false;
    arguments.check_names(program)?;
    let moved = Moved::of(program, body, arguments, remarks);
    if arguments.text("posts") == Some("early") {
        let analyses = Analyses::of(program);
        for block in nested_blocks(program, body) {
            let hoisted = posts::hoist_in_block(program, &analyses, block, &|it| moved.stmt(it));
            changed |= hoisted != program.blocks[block];
            program.blocks[block] = hoisted;
        }
    }
    let analyses = Analyses::of(program);
    match arguments.text("waits") {
        Some("late") => {
            for block in nested_blocks(program, body) {
                changed |= waits::sink_in_block(program, &analyses, block, &|it| moved.number(it));
            }
        }
        Some("sends") => changed |= sends::defer(program, &analyses, body, &|it| moved.number(it)),
        _ => (),
    }
    Ok(Change::from_flag(changed))
}

/// Which communications move: all, or those that `only` names.
struct Moved {
    is_all: bool,
    stmts: FxHashSet<StmtId>,
    numbers: FxHashSet<u32>,
}

impl Moved {
    fn of(program: &Program, body: BlockId, arguments: &Arguments, remarks: &mut Remarks) -> Self {
        let is_all = arguments.text(ONLY.name).is_none();
        let mut moved = Self { is_all, stmts: FxHashSet::default(), numbers: FxHashSet::default() };
        let (mut all, mut is_in_group) = (Vec::new(), false);
        for (id, it) in program.ops_in(body).filter(|_| !is_all) {
            match it.op.def().class {
                OpClass::Communicate => {
                    let tensors = [it.get(attr::INPUT), it.get(attr::OUTPUT), it.get(attr::BUFFER)];
                    all.push(tensors.into_iter().flatten().collect());
                    is_in_group |= all.last().is_some_and(|it: &Vec<_>| arguments.selects(program, it));
                }
                // The number of a group of transfers is at its end.
                OpClass::Coalescing => is_in_group &= it.number.is_some(),
                _ => continue,
            }
            if is_in_group {
                moved.stmts.insert(id);
                moved.numbers.extend(it.number);
            }
            is_in_group &= it.number.is_none();
        }
        arguments.remark_unmatched(program, &all, remarks);
        moved
    }

    fn stmt(&self, stmt: StmtId) -> bool {
        self.is_all || self.stmts.contains(&stmt)
    }

    fn number(&self, number: u32) -> bool {
        self.is_all || self.numbers.contains(&number)
    }
}

/// What statements access, and what Waits order. Valid while only statements move that the analyses let pass each other.
struct Analyses {
    storage: MemoryEffects,
    order: WaitOrder,
}

impl Analyses {
    fn of(program: &Program) -> Self {
        let storage = MemoryEffects::of(program);
        let order = WaitOrder::of(program, &storage);
        Self { storage, order }
    }

    /// Returns the keys of a statement's effects. Some may occur several times.
    fn keys(&self, effects: &StmtEffects) -> Vec<EffectKey> {
        let class = |it: &TensorId| self.storage.alias_class(*it);
        let mut keys = Vec::new();
        keys.extend(effects.uses_streams.then_some(EffectKey::Streams));
        keys.extend(effects.posts.iter().map(|it| EffectKey::Posts(*it)));
        keys.extend(effects.waits.iter().map(|it| EffectKey::Waits(*it)));
        keys.extend(effects.assigns.iter().map(|it| EffectKey::Assigns(*it)));
        keys.extend(effects.names.iter().map(|it| EffectKey::Mentions(*it)));
        keys.extend(effects.binds.iter().map(|it| EffectKey::Binds(*it)));
        keys.extend(effects.accesses.reads.iter().map(|it| EffectKey::Reads(*it)));
        keys.extend(effects.accesses.writes.iter().map(|it| EffectKey::Writes(*it)));
        keys.extend(effects.deallocates.iter().map(|it| EffectKey::Drops(class(it))));
        if effects.may_block_host {
            keys.extend(effects.names.iter().map(|it| EffectKey::Shares(class(it))));
        }
        keys
    }
}

/// An effect of a statement that may stop another statement from moving past it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum EffectKey {
    Streams,
    Posts(u32),
    Waits(u32),
    Assigns(SymbolId),
    /// Names.
    Mentions(TensorId),
    /// Names that are bound or deallocated.
    Binds(TensorId),
    // Alias classes.
    Reads(TensorId),
    Writes(TensorId),
    Drops(TensorId),
    Shares(TensorId),
}

/// Returns whether a statement, or one inside it, occupies the stream.
fn takes_stream_time(program: &Program, stmt: StmtId) -> bool {
    program.ops_at(stmt).any(|(_, it)| {
        matches!(
            it.op.def().class,
            OpClass::Compute | OpClass::Elementwise | OpClass::Wait | OpClass::HostUnit | OpClass::Opaque
        )
    })
}
