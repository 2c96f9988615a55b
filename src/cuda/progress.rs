//! The progress of this rank in its plan, in words that another thread reads without waiting.
//!
//! The host stores the instruction that it issues, once for each command. Streams write the number of
//! commands that they have completed only in runs that are checked: such a write takes a microsecond or two,
//! as long as many commands. For timed runs only the host's position and the number of completed runs are
//! known.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
};

use hir_executor::RunProgress;
use hir_plan::Plan;

/// Nothing runs.
const IDLE: u64 = u64::MAX;

/// The progress of this rank. Instructions are indices in `Plan::code`.
pub struct ProgressWords {
    /// For each logical stream (the plan's streams, then its communicators): number and instruction of each
    /// command.
    commands: Vec<Vec<(u32, u32)>>,
    /// Number of streams of the plan.
    streams: usize,
    /// Length of the plan.
    instructions: u32,
    /// The index of the run, from 0, and the instruction that the host issues.
    host: AtomicU64,
    /// Whether streams write their progress.
    marked: AtomicBool,
    /// Words in page-locked memory, written by streams: the number of commands completed by each logical
    /// stream, then the number of completed runs.
    words: &'static [AtomicU32],
}

impl ProgressWords {
    /// Creates the progress of a plan before its first run. `steps` are the logical stream and the
    /// instruction of each command, in the order of issue.
    pub(super) fn new(
        plan: &Plan,
        steps: impl Iterator<Item = (usize, u32)>,
        words: &'static [AtomicU32],
    ) -> Self {
        let mut commands = vec![Vec::new(); words.len().saturating_sub(1)];
        for (number, (stream, inst)) in steps.enumerate() {
            if let Some(list) = commands.get_mut(stream) {
                list.push((number as u32, inst));
            }
        }
        Self {
            commands,
            streams: plan.streams.len(),
            instructions: plan.code.len() as u32,
            host: AtomicU64::new(IDLE),
            marked: AtomicBool::new(false),
            words,
        }
    }

    /// Begins run `round`. If `marked` is set, streams write their progress, and no earlier run may still be
    /// running.
    pub(super) fn begin(&self, round: u32, marked: bool) {
        if marked {
            self.words.iter().take(self.commands.len()).for_each(|it| it.store(0, Relaxed));
        }
        self.marked.store(marked, Relaxed);
        self.issue(round, 0);
    }

    /// Records that the host issues an instruction.
    pub(super) fn issue(&self, round: u32, inst: u32) {
        self.host.store(u64::from(round) << 32 | u64::from(inst), Relaxed);
    }

    /// Records that the host has issued all of a run.
    pub(super) fn issued_all(&self, round: u32) {
        self.issue(round, self.instructions);
    }

    /// Records that nothing runs any more.
    pub(super) fn end(&self) {
        self.host.store(IDLE, Relaxed);
    }

    /// Returns the address to which a logical stream writes the number of commands it has completed.
    pub(super) fn marker_address(&self, stream: usize) -> u64 {
        self.words.get(stream).map_or(0, |it| it.as_ptr() as u64)
    }

    /// Returns the address to which the main stream writes the number of completed runs.
    pub(super) fn run_counter_address(&self) -> u64 {
        self.marker_address(self.commands.len())
    }

    fn positions(&self, streams: Range<usize>) -> Vec<u32> {
        if !self.marked.load(Relaxed) {
            return Vec::new();
        }
        let pairs = self.commands.iter().zip(self.words).take(streams.end).skip(streams.start);
        let next = |(commands, word): (&Vec<(u32, u32)>, &AtomicU32)| {
            let past = word.load(Relaxed);
            commands.get(commands.partition_point(|it| it.0 < past)).map_or(self.instructions, |it| it.1)
        };
        pairs.map(next).collect()
    }
}

impl RunProgress for ProgressWords {
    fn issued_inst(&self) -> Option<(u32, u32)> {
        let word = self.host.load(Relaxed);
        (word != IDLE).then_some(((word >> 32) as u32, word as u32))
    }

    fn completed_runs(&self) -> u32 {
        self.words.last().map_or(0, |it| it.load(Relaxed))
    }

    fn stream_positions(&self) -> Vec<u32> {
        self.positions(0..self.streams)
    }

    fn communicator_positions(&self) -> Vec<u32> {
        self.positions(self.streams..self.commands.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::plan;
    use hir_plan::InstKind;

    static WORDS: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];

    #[test]
    fn steps_are_reported_as_instructions() {
        // One stream and one communicator. Instruction 1 has no command; instruction 2 is posted on the
        // stream and runs on the communicator.
        let plan = plan(0, &[], vec![InstKind::ReadOutputs; 5]);
        let steps = [(0, 0), (0, 2), (1, 2), (1, 2), (0, 3), (0, 4)];
        let it = ProgressWords::new(&plan, steps.into_iter(), &WORDS);
        assert_eq!((it.issued_inst(), it.stream_positions()), (None, Vec::new()));
        WORDS[0].store(9, Relaxed);
        it.begin(3, true);
        assert_eq!(
            (it.issued_inst(), it.stream_positions(), it.communicator_positions()),
            (Some((3, 0)), vec![0], vec![2])
        );
        it.issue(3, 4);
        // The stream has posted; the communicator has completed the first of two commands.
        WORDS[0].store(2, Relaxed);
        WORDS[1].store(3, Relaxed);
        assert_eq!(
            (it.issued_inst(), it.stream_positions(), it.communicator_positions()),
            (Some((3, 4)), vec![3], vec![2])
        );
        WORDS[1].store(4, Relaxed);
        WORDS[0].store(6, Relaxed);
        WORDS[2].store(4, Relaxed);
        it.issued_all(3);
        assert_eq!(
            (it.stream_positions(), it.communicator_positions(), it.completed_runs()),
            (vec![5], vec![5], 4)
        );
        assert_eq!((it.marker_address(2), it.issued_inst()), (it.run_counter_address(), Some((3, 5))));
        // Streams do not write their progress, and their earlier marks are ignored.
        it.begin(4, false);
        assert_eq!((it.stream_positions(), it.communicator_positions()), (Vec::new(), Vec::new()));
        it.end();
        assert_eq!(it.issued_inst(), None);
    }
}
