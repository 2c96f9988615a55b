//! What libraries do at the first call of a kind is done before the first run: kernels are loaded, products set up, ranks of a
//! communicator connected.
//!
//! Such a first call may wait for everything that the GPU has begun (the CUDA C++ Programming Guide says so of lazy loading),
//! and for other ranks; in the middle of a run it would wait for a stream that waits for what is not yet issued.

use super::{BLOCK, CudaError, Engine, Peers};
use crate::cuda::{
    executable::Action,
    kernels::{COMMON, PARAMETERS},
};

impl Engine {
    /// Makes the first call of every kind. What it leaves in memory is overwritten before the first run.
    pub(super) fn warm(&self, peers: &dyn Peers) -> Result<(), CudaError> {
        peers.phase("making its libraries ready");
        let (device, executable) = (&self.device, &self.executable);
        // No parameters mean nothing to do, but for the kernels that take the place of a number.
        let mut words = [0; PARAMETERS];
        for (number, function) in executable.functions.iter().enumerate() {
            words[0] = if number < COMMON.len() { executable.counter } else { 0 };
            let threads = if number < COMMON.len() { 1 } else { BLOCK };
            device.launch(*function, 1, threads, &words, self.first)?;
        }
        for &at in &executable.firsts {
            let step = &executable.steps[at];
            match &step.action {
                Action::Product(it) => it.issue(step.lane.stream)?,
                // One at a time: communicators connect.
                Action::Group(it) => {
                    it.issue(step.lane.stream)?;
                    device.finish(step.lane.stream)?;
                }
                Action::Set { .. }
                | Action::Copy { .. }
                | Action::Rows(_)
                | Action::Launch { .. }
                | Action::Record(_)
                | Action::Wait(_)
                | Action::Pass
                | Action::Raise(_)
                | Action::Await(_)
                | Action::Finish => {}
            }
        }
        executable.streams.iter().try_for_each(|stream| device.finish(*stream))
    }
}
