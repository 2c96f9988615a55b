//! Signals: 32-bit words in memory that peers access. A stream writes them after its earlier work, or waits
//! for them.
//!
//! The epoch is the number of the current run on this GPU, from 1. A signal is set in a run if its words have
//! reached the epoch, so no run has to reset the signals of earlier runs. The host writes the epoch into the
//! arguments of driver calls; kernels that wait for signals or packets read it from device memory.
//!
//! Consecutive signal operations of a stream become one driver call, or one node of a graph. The values are
//! constants of a node, so every replay of a graph sets them first. A node occupies no multiprocessor: a
//! kernel that polls a signal would take the place of a block of another kernel, or wait until one ends.
//!
//! A peer writes data into memory of this GPU, and then the signal. The write of the signal waits for the peer's earlier work with a
//! fence over the system (`cuStreamWriteValue32` without flags). A GPU that may reorder remote writes that have reached it has the
//! attribute `CAN_FLUSH_REMOTE_WRITES`; on such a GPU each wait is followed by a flush, as the driver's documentation of
//! `CU_STREAM_WAIT_VALUE_FLUSH` demands. Other GPUs do not accept the flag, and need none.

use cudarc::driver::sys;

use super::{
    Result,
    device::{Device, Stream},
};

/// Maximum number of signals in one command. The driver accepts up to 256 operations.
const MAX_SIGNALS: usize = 32;

/// The signals of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SignalBatch {
    addresses: Vec<u64>,
}

impl SignalBatch {
    /// Creates a batch of one signal.
    pub fn new(signal: u64) -> Self {
        Self { addresses: vec![signal] }
    }

    /// Adds a signal; returns false if the batch is full.
    pub fn add(&mut self, signal: u64) -> bool {
        let has_room = self.addresses.len() < MAX_SIGNALS;
        if has_room {
            self.addresses.push(signal);
        }
        has_room
    }
}

/// An operation on signals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SignalOp {
    /// Writes the epoch to the signals.
    Write,
    /// Waits until the signals have reached the epoch.
    Wait,
}

/// Operations on signals in a captured graph.
#[derive(Clone, Debug)]
pub(super) struct CapturedSignals {
    node: sys::CUgraphNode,
    op: SignalOp,
    batch: SignalBatch,
}

impl Device {
    /// Writes a value to signals after the work on the stream, or makes the stream wait until all of them are at least the
    /// value, modulo 2^32.
    pub fn issue_signals(
        &self,
        op: SignalOp,
        signals: &SignalBatch,
        value: u32,
        stream: Stream,
    ) -> Result<()> {
        match (op, &signals.addresses[..]) {
            (SignalOp::Write, [signal]) => self.write_value(*signal, value, stream),
            (SignalOp::Wait, [signal]) => self.wait_value(*signal, value, stream),
            (op, several) => self.batch_mem_op(op, several, value, stream),
        }
    }

    fn batch_mem_op(&self, op: SignalOp, flags: &[u64], value: u32, stream: Stream) -> Result<()> {
        let mut operations = self.operations(op, flags, value);
        let count = operations.len() as u32;
        // SAFETY: signals lie in mapped segments and are aligned to 4 bytes; the operations are read before
        // the call returns. A write without flags comes after all work on the stream.
        let status =
            unsafe { (self.driver.cuStreamBatchMemOp_v2)(stream.0, count, operations.as_mut_ptr(), 0) };
        self.driver.check("cuStreamBatchMemOp", status)
    }

    /// Adds operations on signals to the graph that captures the stream, after the stream's earlier work.
    pub fn capture_signals(
        &self,
        op: SignalOp,
        batch: &SignalBatch,
        value: u32,
        stream: Stream,
    ) -> Result<CapturedSignals> {
        let mut state = sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut graph, mut count) = (0, std::ptr::null_mut(), 0);
        let (mut before, mut edges) = (std::ptr::null(), std::ptr::null());
        let mut node = std::ptr::null_mut();
        let mut operations = self.operations(op, &batch.addresses, value);
        let params = self.mem_op_params(&mut operations);
        // SAFETY: the pointers are to live variables, and the stream is being captured. `before` belongs to
        // the driver and is valid until the next call on the stream, which is the last one here.
        unsafe {
            let status = (self.driver.cuStreamGetCaptureInfo_v3)(
                stream.0,
                &raw mut state,
                &raw mut id,
                &raw mut graph,
                &raw mut before,
                &raw mut edges,
                &raw mut count,
            );
            self.driver.check("cuStreamGetCaptureInfo", status)?;
            let status = (self.driver.cuGraphAddBatchMemOpNode)(
                &raw mut node,
                graph,
                before,
                count,
                &raw const params,
            );
            self.driver.check("cuGraphAddBatchMemOpNode", status)?;
            let flags = sys::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_SET_CAPTURE_DEPENDENCIES;
            let status = (self.driver.cuStreamUpdateCaptureDependencies_v2)(
                stream.0,
                &raw mut node,
                std::ptr::null(),
                1,
                flags as u32,
            );
            self.driver.check("cuStreamUpdateCaptureDependencies", status)?;
        }
        Ok(CapturedSignals { node, op, batch: batch.clone() })
    }

    /// Sets the value of captured operations for the following replays.
    pub fn update_signals(
        &self,
        exec: sys::CUgraphExec,
        captured: &CapturedSignals,
        value: u32,
    ) -> Result<()> {
        let mut operations = self.operations(captured.op, &captured.batch.addresses, value);
        let params = self.mem_op_params(&mut operations);
        // SAFETY: the node belongs to the graph of `exec`; the operations are read before the call returns.
        let status = unsafe {
            (self.driver.cuGraphExecBatchMemOpNodeSetParams)(exec, captured.node, &raw const params)
        };
        self.driver.check("cuGraphExecBatchMemOpNodeSetParams", status)
    }

    fn mem_op_params(
        &self,
        operations: &mut [sys::CUstreamBatchMemOpParams],
    ) -> sys::CUDA_BATCH_MEM_OP_NODE_PARAMS {
        sys::CUDA_BATCH_MEM_OP_NODE_PARAMS {
            ctx: self.context,
            count: operations.len() as u32,
            paramArray: operations.as_mut_ptr(),
            flags: 0,
        }
    }

    /// Describes the operations to the driver.
    fn operations(&self, op: SignalOp, flags: &[u64], value: u32) -> Vec<sys::CUstreamBatchMemOpParams> {
        use sys::{
            CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st as WaitValue,
            CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 as Awaited,
            CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st as WriteValue,
            CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as Written,
            CUstreamBatchMemOpType_enum as Kind,
        };
        let describe = |&address: &u64| {
            let mut operation = sys::CUstreamBatchMemOpParams { pad: [0; 6] };
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
                        flags: self.wait_flags,
                        alias: 0,
                    };
                }
            }
            operation
        };
        flags.iter().map(describe).collect()
    }
}
