//! Flags in memory that peers reach: raised to a number behind what is on a stream, and awaited by one.
//!
//! Flags that a stream raises or awaits one after another go to the driver as one call, and into a graph as one kernel.

use cudarc::driver::sys;

use super::{
    device::{Device, Stream},
    error::CudaError,
};

/// Most flags of one step; `FLAGS` of `prelude.cu`.
const MAX_SIGNALS: usize = 32;

/// Flags of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SignalBatch {
    /// The parameters of the kernels: where the number of the run is, how many flags, and their addresses.
    words: [u64; MAX_SIGNALS + 2],
}

impl SignalBatch {
    /// One flag; the device counts runs at an address.
    pub fn new(counter: u64, flag: u64) -> Self {
        let mut words = [0; MAX_SIGNALS + 2];
        (words[0], words[1], words[2]) = (counter, 1, flag);
        Self { words }
    }

    /// Adds a flag; false where there is no room.
    pub fn add(&mut self, flag: u64) -> bool {
        let count = self.words[1] as usize;
        if count == MAX_SIGNALS {
            return false;
        }
        (self.words[1], self.words[2 + count]) = (count as u64 + 1, flag);
        true
    }

    /// The parameters of the kernels `raise_flags` and `await_flags`.
    pub fn params(&self) -> &[u64] {
        &self.words
    }

    fn addresses(&self) -> &[u64] {
        &self.words[2..2 + self.words[1] as usize]
    }
}

/// What is done to flags.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SignalOp {
    Write,
    Wait,
}

impl Device {
    /// Writes a number to flags after what is on the stream.
    pub fn write_signals(&self, flags: &SignalBatch, value: u32, stream: Stream) -> Result<(), CudaError> {
        match flags.addresses() {
            [flag] => self.write_value(*flag, value, stream),
            several => self.batch_mem_op(SignalOp::Write, several, value, stream),
        }
    }

    /// The stream waits until all flags are at least a number, modulo 2^32.
    pub fn wait_signals(&self, flags: &SignalBatch, value: u32, stream: Stream) -> Result<(), CudaError> {
        match flags.addresses() {
            [flag] => self.wait_value(*flag, value, stream),
            several => self.batch_mem_op(SignalOp::Wait, several, value, stream),
        }
    }

    fn batch_mem_op(
        &self,
        deed: SignalOp,
        flags: &[u64],
        value: u32,
        stream: Stream,
    ) -> Result<(), CudaError> {
        use sys::{
            CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st as WaitValue,
            CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 as Awaited,
            CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st as WriteValue,
            CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as Written,
            CUstreamBatchMemOpType_enum as Kind,
        };
        let mut operations = [sys::CUstreamBatchMemOpParams { pad: [0; 6] }; MAX_SIGNALS];
        for (operation, &address) in operations.iter_mut().zip(flags) {
            match deed {
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
        // SAFETY: flags lie in mapped segments and are aligned to 4 bytes; the operations are read before the call returns. A
        // write without flags comes after all that is on the stream.
        let status =
            unsafe { (self.driver.cuStreamBatchMemOp_v2)(stream.0, count, operations.as_mut_ptr(), 0) };
        self.driver.check("cuStreamBatchMemOp", status)
    }
}
