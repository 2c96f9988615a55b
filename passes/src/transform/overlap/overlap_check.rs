//! Checks whether the iterations of a loop overlap communication with computation when they run on different
//! streams.

use crate::pass::Obstacle;
use grammar::{Backend, OpClass, Program, Stmt, StmtId, attr};

use crate::{
    analysis::{
        loop_carried::{LoopCarriedDep, MentionCounts, loop_carried_dep},
        memory_effects::MemoryEffects,
    },
    second_thread::both,
    transform::{
        hoist_share_mem_handles,
        lower_to_communication::{self, LoweringFacts},
    },
};

/// Why a loop without a matrix product does not overlap.
pub(super) const NO_MATMUL: &str = "no matmul computes or reads it in chunks";

/// Returns, for each loop, the reason why it does not overlap after the remaining resharding is lowered to
/// communication; `None` if it overlaps. A loop has at least `least_trips` iterations: 1 if the other chunks are in other
/// loops.
pub(super) fn obstacles(program: &Program, loops: &[StmtId], least_trips: i64) -> Vec<Option<Obstacle>> {
    let (facts, mut lowered) = both(program, || LoweringFacts::of(program), || program.clone());
    if let Err(reason) = lower_to_communication::lower(&mut lowered, facts, Backend::Nccl) {
        return vec![Some(reason.into()); loops.len()];
    }
    let lowered = &lowered;
    let shares: Vec<bool> = loops.iter().map(|stmt| BodySummary::of(lowered, *stmt).shares_handles).collect();
    let any_shares = shares.contains(&true);
    let exchange = || if any_shares { hoist_share_mem_handles::check(lowered) } else { Ok(()) };
    let (exchange, mut found) = both(lowered, exchange, || {
        let (storage, mentioned) = (MemoryEffects::of(lowered), MentionCounts::of(lowered));
        let obstacle = |stmt: &StmtId| obstacle(lowered, &storage, &mentioned, *stmt, least_trips);
        loops.iter().map(|stmt| obstacle(stmt).map(Obstacle::from)).collect::<Vec<_>>()
    });
    // An exchange that is impossible is an obstacle for all loops that need one.
    if let Err(reason) = exchange.map_err(Obstacle::from) {
        let shared = found.iter_mut().zip(&shares).filter(|(_, shares)| **shares);
        shared.for_each(|(found, _)| *found = found.take().or_else(|| Some(reason.clone())));
    }
    found
}

fn obstacle(
    program: &Program,
    storage: &MemoryEffects,
    mentioned: &MentionCounts,
    stmt: StmtId,
    least_trips: i64,
) -> Option<String> {
    let Stmt::For(it) = &program.stmts[stmt] else { return Some("there is no loop".to_owned()) };
    let trips = program.constant(it.start).zip(program.constant(it.stop)).map(|(start, stop)| stop - start);
    let body = BodySummary::of(program, stmt);
    if trips.is_some_and(|trips| trips < least_trips) {
        return Some("there is only one chunk".to_owned());
    }
    if !body.communicates {
        return Some("the loop over its chunks does not communicate".to_owned());
    }
    if !body.has_matmul {
        return Some(NO_MATMUL.to_owned());
    }
    if body.is_serialized_by_queue {
        return Some(
            "every matmul would wait for the communications of the previous chunk, which are on the same queue".to_owned(),
        );
    }
    loop_carried_dep(program, storage, mentioned, it).map(|why| match why {
        LoopCarriedDep::Storage(tensor, _) => {
            format!(
                "its chunks would depend on each other: they share the storage of `{}`",
                program.tensor_name(tensor)
            )
        }
        LoopCarriedDep::Work(number, _) => {
            format!("its chunks would depend on each other: one waits for Communication {number} of another")
        }
    })
}

/// The properties of a loop's body that decide whether it overlaps.
#[derive(Default)]
struct BodySummary {
    communicates: bool,
    has_matmul: bool,
    shares_handles: bool,
    /// Whether all matmuls are between two communications of one queue, so that those of the next chunk come
    /// after both.
    is_serialized_by_queue: bool,
}

impl BodySummary {
    fn of(program: &Program, stmt: StmtId) -> Self {
        let mut found = Self::default();
        let Stmt::For(it) = &program.stmts[stmt] else { return found };
        // The matmuls before the first communication of a queue and since the last one, and the
        // communications.
        let (mut before, mut since, mut queued) = (0, 0, 0);
        for (_, it) in program.ops_in(it.body) {
            let row = it.op.def();
            if row.class == OpClass::Communicate && it.get(attr::BACKEND) != Some(Backend::Cuda) {
                (queued, since) = (queued + 1, 0);
            }
            if it.rule().is_matrix_product() {
                since += 1;
                before += usize::from(queued == 0);
            }
            found.communicates |= row.class == OpClass::Communicate;
            found.shares_handles |= row.class == OpClass::ShareHandles;
            found.has_matmul |= it.rule().is_matrix_product();
        }
        found.is_serialized_by_queue = queued > 1 && before == 0 && since == 0;
        found
    }
}
