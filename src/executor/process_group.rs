//! Communication with the other processes of a job.

use super::ExecutorError;

/// Communication with the other processes of the job.
pub trait ProcessGroup {
    /// Returns this rank.
    fn rank(&self) -> usize;
    /// Returns the number of ranks.
    fn world(&self) -> usize;
    /// Returns the index of this rank on its host, which selects its GPU, if the launcher sets it.
    fn local_rank(&self) -> Option<usize>;
    /// Returns the bytes of every rank, indexed by rank.
    ///
    /// # Errors
    /// A rank does not answer.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, ExecutorError>;
    /// Waits for all ranks.
    ///
    /// # Errors
    /// A rank does not answer.
    fn barrier(&self) -> Result<(), ExecutorError>;
    /// Reports what this rank does now, for example `compiling kernels`. The watchdog of the job limits the
    /// time of a phase.
    fn report_phase(&self, what: &str);
}

/// A job of one process.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleProcess;

impl ProcessGroup for SingleProcess {
    fn rank(&self) -> usize {
        0
    }

    fn world(&self) -> usize {
        1
    }

    fn local_rank(&self) -> Option<usize> {
        Some(0)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, ExecutorError> {
        Ok(vec![mine.to_vec()])
    }

    fn barrier(&self) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn report_phase(&self, _: &str) {}
}
