//! Resources that a plan takes from a GPU, and their reuse by the next plan.
//!
//! Graphs are destroyed after the program that captured them; modules and page-locked memory are destroyed
//! after their plan. Streams, events, memory and the mappings of peers' memory are reused: if they suffice,
//! nothing is exchanged again. NCCL may deregister the addresses of a graph later than the graph is
//! destroyed; reuse keeps these addresses valid.

use cudarc::driver::sys;

use super::{Device, Event, Stream};
use crate::{ProcessGroup, Result};

/// The resources of a device.
#[derive(Default)]
pub(super) struct Resources {
    /// Indexed by whether they are urgent.
    pub streams: [Pool<Stream>; 2],
    /// Indexed by whether they measure time.
    pub events: [Pool<Event>; 2],
    /// In the order of creation.
    pub owned: Vec<OwnedResource>,
    pub blocks: Vec<MemoryBlock>,
    pub mapped: Vec<PeerMapping>,
}

/// A block of device memory.
pub(super) struct MemoryBlock {
    pub address: u64,
    pub bytes: usize,
    pub used: bool,
}

/// Memory of a peer, mapped into this process.
pub(super) struct PeerMapping {
    pub rank: usize,
    /// Its address on the peer, which identifies the block.
    pub peer_address: u64,
    pub address: u64,
}

/// A resource that is destroyed after its plan, or after the program that created it.
#[derive(Clone, Copy)]
pub(crate) enum OwnedResource {
    /// Page-locked host memory.
    PinnedMemory(*mut u8),
    Module(sys::CUmodule),
    /// A captured graph.
    Graph(sys::CUgraph),
    /// An instantiated graph.
    GraphExec(sys::CUgraphExec),
}

/// The resources of a device that were in use at some time; none by default.
#[derive(Default)]
pub(crate) struct ResourceMark {
    streams: [usize; 2],
    events: [usize; 2],
    owned: usize,
    blocks: Vec<bool>,
}

/// Interchangeable objects; those in use come first.
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
    /// Returns the number of all objects.
    pub fn len(&self) -> usize {
        self.made.len()
    }

    /// Returns an object that is not in use, and creates it if there is none.
    pub fn take(&mut self, make: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.used == self.made.len() {
            self.made.push(make()?);
        }
        self.used += 1;
        Ok(self.made[self.used - 1])
    }
}

impl Resources {
    /// Takes a block that is not in use and is large enough, but not much larger.
    pub fn take_block(&mut self, bytes: usize) -> Option<u64> {
        let most = 2 * bytes + (2 << 20);
        let fits = |it: &&mut MemoryBlock| !it.used && (bytes..=most).contains(&it.bytes);
        let block = self.blocks.iter_mut().filter(fits).min_by_key(|it| it.bytes)?;
        block.used = true;
        Some(block.address)
    }
}

impl Device {
    /// Returns what is in use now.
    pub fn resource_mark(&self) -> ResourceMark {
        let resources = self.resources.borrow();
        ResourceMark {
            streams: resources.streams.each_ref().map(|it| it.used),
            events: resources.events.each_ref().map(|it| it.used),
            owned: resources.owned.len(),
            blocks: resources.blocks.iter().map(|it| it.used).collect(),
        }
    }

    /// Lets the next plan use the streams of this one, too. The runs of both have to follow each other.
    pub fn reuse_streams(&self) {
        self.resources.borrow_mut().streams.iter_mut().for_each(|it| it.used = 0);
    }

    /// Releases what was taken since `taken`. All ranks have to call this after their runs have ended.
    ///
    /// # Errors
    /// A call fails, or a rank does not answer.
    pub fn release(&self, taken: &ResourceMark, peers: &dyn ProcessGroup) -> Result<()> {
        let driver = self.driver;
        // SAFETY: no arguments; a context is current.
        driver.check("cuCtxSynchronize", unsafe { (driver.cuCtxSynchronize)() })?;
        // Behind the barrier, no other rank accesses this rank's memory.
        peers.barrier()?;
        let mut resources = self.resources.borrow_mut();
        resources.streams.iter_mut().zip(taken.streams).for_each(|(it, used)| it.used = used);
        resources.events.iter_mut().zip(taken.events).for_each(|(it, used)| it.used = used);
        let were_used = taken.blocks.iter().copied().chain(std::iter::repeat(false));
        resources.blocks.iter_mut().zip(were_used).for_each(|(it, used)| it.used = used);
        for it in resources.owned.split_off(taken.owned).into_iter().rev() {
            // SAFETY: each resource came from the call that this one undoes and is no longer in the list, and
            // nothing runs on the device.
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

    /// Frees all memory, for a plan that needs more than is left. It comes after `release` and after the
    /// communicators that may have registered the memory are destroyed. All ranks have to call this: each
    /// closes its mappings before any rank frees memory.
    ///
    /// # Errors
    /// A call fails, or a rank does not answer.
    pub fn free_memory(&self, peers: &dyn ProcessGroup) -> Result<()> {
        self.free_where(|_| true, peers)
    }

    /// As `free_memory`, for the memory and the mappings with some addresses.
    ///
    /// # Errors
    /// As for `free_memory`.
    pub fn free_where(&self, is_freed: impl Fn(u64) -> bool, peers: &dyn ProcessGroup) -> Result<()> {
        let (driver, mut resources) = (self.driver, self.resources.borrow_mut());
        for it in resources.mapped.extract_if(.., |it| is_freed(it.address)) {
            // SAFETY: the address came from `cuIpcOpenMemHandle`, and nothing runs on the device.
            let status = unsafe { (driver.cuIpcCloseMemHandle)(it.address) };
            driver.check("cuIpcCloseMemHandle", status)?;
        }
        peers.barrier()?;
        for it in resources.blocks.extract_if(.., |it| is_freed(it.address)) {
            // SAFETY: the address came from `cuMemAlloc`, and no process maps it any more.
            driver.check("cuMemFree", unsafe { (driver.cuMemFree_v2)(it.address) })?;
        }
        Ok(())
    }
}
