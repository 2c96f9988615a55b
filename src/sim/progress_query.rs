//! Lets another thread query the progress of a run.

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use super::machine::{InstState, Machine};
use hir_plan::sync::lines_by_rank;

/// The channel between the querying thread and the run.
#[derive(Debug, Default)]
pub struct ProgressQuery {
    requested: AtomicBool,
    done: AtomicUsize,
    answer: Mutex<Option<String>>,
    answered: Condvar,
}

impl ProgressQuery {
    /// Returns one line for each rank, or for each group of ranks at the same instruction. Returns `None` if
    /// no run answers within `limit`.
    pub fn ask(&self, limit: Duration) -> Option<String> {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        self.requested.store(true, Relaxed);
        let waited = self.answered.wait_timeout_while(answer, limit, |it| it.is_none());
        self.requested.store(false, Relaxed);
        waited.unwrap_or_else(PoisonError::into_inner).0.take()
    }

    /// Returns the number of instructions of all ranks that the current run has completed.
    pub fn instructions_done(&self) -> usize {
        self.done.load(Relaxed)
    }

    /// Publishes the progress, and answers a pending query.
    pub(super) fn update(&self, machine: &Machine<'_>) {
        self.done.store(machine.completed, Relaxed);
        if self.requested.load(Relaxed) && self.requested.swap(false, Relaxed) {
            *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress_report(machine));
            self.answered.notify_all();
        }
    }
}

/// Describes the progress of every rank.
fn progress_report(machine: &Machine<'_>) -> String {
    let lines = machine.inst_states.iter().enumerate().map(|(rank, states)| {
        let done = states.iter().filter(|it| **it == InstState::Done).count();
        let next = states.iter().position(|it| *it != InstState::Done);
        let place = next.map_or("at its end".to_owned(), |inst| {
            format!("at {}", machine.world[rank].location(&machine.world[rank].code[inst]))
        });
        (rank, format!("{place}, {done} of {} instructions done", states.len()))
    });
    lines_by_rank(lines).join("\n")
}
