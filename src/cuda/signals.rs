//! Signals: 32-bit words in memory that peers access. A stream writes them after its earlier work, or waits
//! for them.
//!
//! Consecutive signal operations of a stream become one driver call, or one kernel in a graph.

use cudarc::driver::sys;

use super::{
    device::{Device, Stream},
    error::CudaError,
};

/// Maximum number of signals in one command; `SIGNALS` in `prelude.cu`.
const MAX_SIGNALS: usize = 32;

/// The signals of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SignalBatch {
    /// The parameters of the kernels: the address of the epoch, the number of signals, and their addresses.
    words: [u64; MAX_SIGNALS + 2],
}

impl SignalBatch {
    /// Creates a batch of one signal; `counter` is the device address of the epoch.
    pub fn new(counter: u64, signal: u64) -> Self {
        let mut words = [0; MAX_SIGNALS + 2];
        (words[0], words[1], words[2]) = (counter, 1, signal);
        Self { words }
    }

    /// Adds a signal; returns false if the batch is full.
    pub fn add(&mut self, signal: u64) -> bool {
        let count = self.words[1] as usize;
        if count == MAX_SIGNALS {
            return false;
        }
        (self.words[1], self.words[2 + count]) = (count as u64 + 1, signal);
        true
    }

    /// Returns the parameters of the kernels `write_signals` and `wait_signals`.
    pub fn params(&self) -> &[u64] {
        &self.words
    }

    fn addresses(&self) -> &[u64] {
        &self.words[2..2 + self.words[1] as usize]
    }
}

/// An operation on signals.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SignalOp {
    Write,
    Wait,
}

impl Device {
    /// Writes a value to signals after the work on the stream.
    pub fn write_signals(&self, flags: &SignalBatch, value: u32, stream: Stream) -> Result<(), CudaError> {
        match flags.addresses() {
            [signal] => self.write_value(*signal, value, stream),
            several => self.batch_mem_op(SignalOp::Write, several, value, stream),
        }
    }

    /// Makes the stream wait until all signals are at least a value, modulo 2^32.
    pub fn wait_signals(&self, flags: &SignalBatch, value: u32, stream: Stream) -> Result<(), CudaError> {
        match flags.addresses() {
            [signal] => self.wait_value(*signal, value, stream),
            several => self.batch_mem_op(SignalOp::Wait, several, value, stream),
        }
    }

    fn batch_mem_op(&self, op: SignalOp, flags: &[u64], value: u32, stream: Stream) -> Result<(), CudaError> {
        use sys::{
            CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st as WaitValue,
            CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 as Awaited,
            CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st as WriteValue,
            CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as Written,
            CUstreamBatchMemOpType_enum as Kind,
        };
        let mut operations = [sys::CUstreamBatchMemOpParams { pad: [0; 6] }; MAX_SIGNALS];
        for (operation, &address) in operations.iter_mut().zip(flags) {
            match op {
                SignalOp::Write => {
                    operation.writeValue = WriteValue {
                        operation: Kind::CU_STREAM_MEM_OP_WRITE_VALUE_32,
                        address,
                        __bindgen_anon_1: Written { value },
                        flags: 0,
                        alias: 0,
                    };
                }
                SignalOp::Wait => {
                    operation.waitValue = WaitValue {
                        operation: Kind::CU_STREAM_MEM_OP_WAIT_VALUE_32,
                        address,
                        __bindgen_anon_1: Awaited { value },
                        flags: sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as u32,
                        alias: 0,
                    };
                }
            }
        }
        let count = flags.len().min(MAX_SIGNALS) as u32;
        // SAFETY: signals lie in mapped segments and are aligned to 4 bytes; the operations are read before
        // the call returns. A write without flags comes after all work on the stream.
        let status =
            unsafe { (self.driver.cuStreamBatchMemOp_v2)(stream.0, count, operations.as_mut_ptr(), 0) };
        self.driver.check("cuStreamBatchMemOp", status)
    }
}
