//! What is made on a GPU for one plan, and what of it the next takes over.
//!
//! Graphs end with the program that has captured them, modules and page-locked memory with their plan. Streams and events are
//! used again, and so are memory and the peers' mappings of it: nothing is exchanged anew where there is enough, and what NCCL
//! has registered of an address for a graph, which it may forget later than the graph ends, stays true.

use cudarc::driver::sys;

use super::{Device, Event, Stream};
use crate::cuda::{CudaError, ProcessGroup};

/// What a plan has taken of a device.
#[derive(Default)]
pub(super) struct Resources {
    /// By whether they are urgent.
    pub streams: [Pool<Stream>; 2],
    /// By whether they measure time.
    pub events: [Pool<Event>; 2],
    /// In the order in which it was made.
    pub owned: Vec<OwnedResource>,
    pub blocks: Vec<MemoryBlock>,
    pub mapped: Vec<PeerMapping>,
}

/// Device memory.
pub(super) struct MemoryBlock {
    pub address: u64,
    pub bytes: usize,
    pub used: bool,
}

/// A peer's memory in this process's addresses.
pub(super) struct PeerMapping {
    pub rank: usize,
    /// Where it is for the peer: this tells its blocks apart.
    pub peer_address: u64,
    pub address: u64,
}

/// What ends with its plan, or with a program that has it.
#[derive(Clone, Copy)]
pub(in crate::cuda) enum OwnedResource {
    /// Page-locked host memory.
    PinnedMemory(*mut u8),
    Module(sys::CUmodule),
    /// A captured plan.
    Graph(sys::CUgraph),
    /// One that can be launched.
    GraphExec(sys::CUgraphExec),
}

/// What of a device was in use at a time; by default nothing.
#[derive(Default)]
pub(in crate::cuda) struct ResourceMark {
    streams: [usize; 2],
    events: [usize; 2],
    owned: usize,
    blocks: Vec<bool>,
}

/// Things that are alike: those in use come first.
pub(super) struct Pool<T> {
    made: Vec<T>,
    used: usize,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { made: Vec::new(), used: 0 }
    }
}

impl<T: Copy> Pool<T> {
    /// Number of all.
    pub fn len(&self) -> usize {
        self.made.len()
    }

    /// One that is not in use, made if there is none.
    pub fn take(&mut self, make: impl FnOnce() -> Result<T, CudaError>) -> Result<T, CudaError> {
        if self.used == self.made.len() {
            self.made.push(make()?);
        }
        self.used += 1;
        Ok(self.made[self.used - 1])
    }
}

impl Resources {
    /// A block that is not in use, large enough and not much larger.
    pub fn take_block(&mut self, bytes: usize) -> Option<u64> {
        let most = 2 * bytes + (2 << 20);
        let fits = |it: &&mut MemoryBlock| !it.used && (bytes..=most).contains(&it.bytes);
        let block = self.blocks.iter_mut().filter(fits).min_by_key(|it| it.bytes)?;
        block.used = true;
        Some(block.address)
    }
}

impl Device {
    /// What is in use.
    pub fn resource_mark(&self) -> ResourceMark {
        let resources = self.resources.borrow();
        ResourceMark {
            streams: resources.streams.each_ref().map(|it| it.used),
            events: resources.events.each_ref().map(|it| it.used),
            owned: resources.owned.len(),
            blocks: resources.blocks.iter().map(|it| it.used).collect(),
        }
    }

    /// Ends what was taken since: runs have ended on all ranks, which all have to call this.
    ///
    /// # Errors
    /// A failed call, a rank that does not answer.
    pub fn release(&self, taken: &ResourceMark, peers: &dyn ProcessGroup) -> Result<(), CudaError> {
        let driver = self.driver;
        // SAFETY: no arguments; a context is current.
        driver.check("cuCtxSynchronize", unsafe { (driver.cuCtxSynchronize)() })?;
        // The others no longer touch this rank's memory.
        peers.barrier()?;
        let mut resources = self.resources.borrow_mut();
        resources.streams.iter_mut().zip(taken.streams).for_each(|(it, used)| it.used = used);
        resources.events.iter_mut().zip(taken.events).for_each(|(it, used)| it.used = used);
        let were_used = taken.blocks.iter().copied().chain(std::iter::repeat(false));
        resources.blocks.iter_mut().zip(were_used).for_each(|(it, used)| it.used = used);
        for it in resources.owned.split_off(taken.owned).into_iter().rev() {
            // SAFETY: each came from the call that this one undoes, was taken off the list, and nothing runs on the device.
            unsafe {
                match it {
                    OwnedResource::PinnedMemory(pointer) => {
                        driver.check("cuMemFreeHost", (driver.cuMemFreeHost)(pointer.cast()))?;
                    }
                    OwnedResource::Module(module) => {
                        driver.check("cuModuleUnload", (driver.cuModuleUnload)(module))?
                    }
                    OwnedResource::Graph(graph) => {
                        driver.check("cuGraphDestroy", (driver.cuGraphDestroy)(graph))?
                    }
                    OwnedResource::GraphExec(exec) => {
                        driver.check("cuGraphExecDestroy", (driver.cuGraphExecDestroy)(exec))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Frees all memory, after `release` and after the communicators that may know of it: where what is kept is too much. No
    /// process keeps a mapping of what is freed; all ranks have to call this.
    ///
    /// # Errors
    /// A failed call, a rank that does not answer.
    pub fn free_memory(&self, peers: &dyn ProcessGroup) -> Result<(), CudaError> {
        let (driver, mut resources) = (self.driver, self.resources.borrow_mut());
        for it in resources.mapped.drain(..) {
            // SAFETY: the address came from `cuIpcOpenMemHandle`, and nothing runs on the device.
            let status = unsafe { (driver.cuIpcCloseMemHandle)(it.address) };
            driver.check("cuIpcCloseMemHandle", status)?;
        }
        peers.barrier()?;
        for it in resources.blocks.drain(..) {
            // SAFETY: the address came from `cuMemAlloc`, and nobody has it mapped any more.
            driver.check("cuMemFree", unsafe { (driver.cuMemFree_v2)(it.address) })?;
        }
        Ok(())
    }
}
