//! Makes the first library calls before the first run: loads kernels, sets up matrix products, and connects
//! the ranks of a communicator.
//!
//! A first call may wait for all work that the GPU has begun (the CUDA C++ Programming Guide says so for lazy
//! loading) and for other ranks. In the middle of a run it could wait for a stream that waits for a command
//! that is not yet issued.

use super::{Engine, ProcessGroup, Result};
use crate::{
    executable::Command,
    kernels::{COMMON_KERNELS, MAX_PARAM_WORDS},
};

impl Engine {
    /// Makes the first call of every kind. The memory that it writes is overwritten before the first run.
    pub(super) fn warm_up(&self, peers: &dyn ProcessGroup) -> Result<()> {
        peers.report_phase("warming up its libraries");
        let (device, executable) = (&self.device, &self.executable);
        // With zero parameters a kernel does nothing, except for kernels that dereference the address of the
        // epoch.
        let mut words = [0; MAX_PARAM_WORDS];
        for (number, function) in executable.functions.iter().enumerate() {
            words[0] = if number < COMMON_KERNELS.len() { executable.epoch_address } else { 0 };
            device.launch(*function, 1, function.block.threads, &words, self.main_stream)?;
        }
        for &at in &executable.first_calls {
            let step = &executable.commands[at];
            match &step.command {
                Command::Matmul(it) => it.issue(step.stream.stream)?,
                Command::Attention(library, it) => library.issue(it, step.stream.stream.handle())?,
                // One at a time, because communicators connect. That may fail behind the call.
                Command::NcclGroup(it) => {
                    it.issue(step.stream.stream)?;
                    let inst = self.plan().code.get(step.inst as usize);
                    self.wait_on_host(step.stream.stream).map_err(|it| it.near_inst(self.plan(), inst))?;
                }
                Command::Memset { .. }
                | Command::Copy { .. }
                | Command::Copy2d(_)
                | Command::Launch { .. }
                | Command::RecordEvent(_)
                | Command::WaitEvent(_)
                | Command::WaitOnHost(_)
                | Command::NoOp
                | Command::Signals(..)
                | Command::ReadOutputs => {}
            }
        }
        executable.streams.iter().try_for_each(|stream| device.synchronize(*stream))
    }
}
