//! How far this rank is in its plan, in words that another thread reads without waiting.
//!
//! The host says which instruction it issues, a store a step. Streams say how many steps they have come past only in runs
//! that are checked: such a write costs a microsecond or two, as much as many a step. Of timed runs it is known what the
//! host does, and how many the device has completed.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
};

use crate::plan::Plan;

/// Nothing runs.
const IDLE: u64 = u64::MAX;

/// How far this rank is. Instructions are named by their index in `Plan::code`.
pub struct RunProgress {
    /// By lane, the plan's streams and then its communicators: the number and the instruction of each step.
    lanes: Vec<Vec<(u32, u32)>>,
    /// Streams of the plan.
    streams: usize,
    /// The plan's length.
    instructions: u32,
    /// The number of the run, from 0, and the instruction that the host issues.
    host: AtomicU64,
    /// Whether streams mark what they have come past.
    marked: AtomicBool,
    /// What streams write, in page-locked memory: how many steps each lane has come past, then how many runs are complete.
    words: &'static [AtomicU32],
}

impl RunProgress {
    /// Of a plan whose steps, given by lane and instruction in the order in which they are issued, have not begun.
    pub(super) fn new(
        plan: &Plan,
        steps: impl Iterator<Item = (usize, u32)>,
        words: &'static [AtomicU32],
    ) -> Self {
        let mut lanes = vec![Vec::new(); words.len().saturating_sub(1)];
        for (number, (lane, inst)) in steps.enumerate() {
            if let Some(lane) = lanes.get_mut(lane) {
                lane.push((number as u32, inst));
            }
        }
        Self {
            lanes,
            streams: plan.streams.len(),
            instructions: plan.code.len() as u32,
            host: AtomicU64::new(IDLE),
            marked: AtomicBool::new(false),
            words,
        }
    }

    /// A run begins, the `round`th; nothing else runs where streams are to mark what they have come past.
    pub(super) fn begin(&self, round: u32, marked: bool) {
        if marked {
            self.words.iter().take(self.lanes.len()).for_each(|it| it.store(0, Relaxed));
        }
        self.marked.store(marked, Relaxed);
        self.issue(round, 0);
    }

    /// The host issues an instruction.
    pub(super) fn issue(&self, round: u32, inst: u32) {
        self.host.store(u64::from(round) << 32 | u64::from(inst), Relaxed);
    }

    /// The host has issued all of a run.
    pub(super) fn issued_all(&self, round: u32) {
        self.issue(round, self.instructions);
    }

    /// Nothing runs any more.
    pub(super) fn end(&self) {
        self.host.store(IDLE, Relaxed);
    }

    /// Where a stream writes how many steps it has come past.
    pub(super) fn marker_address(&self, lane: usize) -> u64 {
        self.words.get(lane).map_or(0, |it| it.as_ptr() as u64)
    }

    /// Where the first stream writes how many runs are complete.
    pub(super) fn run_counter_address(&self) -> u64 {
        self.marker_address(self.lanes.len())
    }

    /// The run that the host issues or waits for, from 0, and the instruction that it has come to, the plan's length if all
    /// are issued; `None`: nothing runs.
    pub fn issued_inst(&self) -> Option<(u32, u32)> {
        let word = self.host.load(Relaxed);
        (word != IDLE).then_some(((word >> 32) as u32, word as u32))
    }

    /// Runs that the device has completed.
    pub fn completed_runs(&self) -> u32 {
        self.words.last().map_or(0, |it| it.load(Relaxed))
    }

    /// By stream of the plan: all its instructions before this one are complete, communications posted. Empty where
    /// streams do not tell.
    pub fn stream_positions(&self) -> Vec<u32> {
        self.positions(0..self.streams)
    }

    /// By communicator: all its communications before this one are complete. Empty where streams do not tell.
    pub fn communicator_positions(&self) -> Vec<u32> {
        self.positions(self.streams..self.lanes.len())
    }

    fn positions(&self, lanes: Range<usize>) -> Vec<u32> {
        if !self.marked.load(Relaxed) {
            return Vec::new();
        }
        let steps = self.lanes.iter().zip(self.words).take(lanes.end).skip(lanes.start);
        let next = |(lane, word): (&Vec<(u32, u32)>, &AtomicU32)| {
            let past = word.load(Relaxed);
            lane.get(lane.partition_point(|it| it.0 < past)).map_or(self.instructions, |it| it.1)
        };
        steps.map(next).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cuda::tests::plan, plan::InstKind};

    static WORDS: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];

    #[test]
    fn steps_are_told_as_instructions() {
        // One stream and one communicator; instruction 1 needs nothing, 2 is posted on the stream and runs on the queue.
        let plan = plan(0, &[], vec![InstKind::ReadOutputs; 5]);
        let steps = [(0, 0), (0, 2), (1, 2), (1, 2), (0, 3), (0, 4)];
        let it = RunProgress::new(&plan, steps.into_iter(), &WORDS);
        assert_eq!((it.issued_inst(), it.stream_positions()), (None, Vec::new()));
        WORDS[0].store(9, Relaxed);
        it.begin(3, true);
        assert_eq!(
            (it.issued_inst(), it.stream_positions(), it.communicator_positions()),
            (Some((3, 0)), vec![0], vec![2])
        );
        it.issue(3, 4);
        // The stream has posted; the queue has done the first of two steps.
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
        // Streams do not tell, and what they told before counts no more.
        it.begin(4, false);
        assert_eq!((it.stream_positions(), it.communicator_positions()), (Vec::new(), Vec::new()));
        it.end();
        assert_eq!(it.issued_inst(), None);
    }
}
