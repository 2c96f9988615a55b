//! What is made on a GPU for one plan, and is given back before the next.
//!
//! Streams and events are taken from pools and used again; memory, mappings, modules and graphs end with their plan.

use cudarc::driver::sys;

use super::{Device, Event, Stream};
use crate::cuda::{CudaError, Peers};

/// What a plan has taken of a device.
#[derive(Default)]
pub(super) struct Resources {
    /// By whether they are urgent.
    pub streams: [Pool<Stream>; 2],
    /// By whether they measure time.
    pub events: [Pool<Event>; 2],
    /// In the order in which it was made.
    pub owned: Vec<Owned>,
}

/// What ends with its plan.
#[derive(Clone, Copy)]
pub(in crate::cuda) enum Owned {
    /// Device memory, at its first address.
    Memory(u64),
    /// Page-locked host memory.
    Host(*mut u8),
    /// Memory of a peer, mapped here.
    Mapped(u64),
    Module(sys::CUmodule),
    /// A captured plan, and how it is launched.
    Graph(sys::CUgraph, sys::CUgraphExec),
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
    /// One that is not in use, made if there is none.
    pub fn take(&mut self, make: impl FnOnce() -> Result<T, CudaError>) -> Result<T, CudaError> {
        if self.used == self.made.len() {
            self.made.push(make()?);
        }
        self.used += 1;
        Ok(self.made[self.used - 1])
    }
}

impl Device {
    /// Gives back what the last plan has taken, on all ranks: no process keeps a mapping of memory that is freed. The plan's
    /// runs have ended; all ranks have to call this.
    ///
    /// # Errors
    /// A failed call, a rank that does not answer.
    pub fn release(&self, peers: &dyn Peers) -> Result<(), CudaError> {
        // SAFETY: no arguments; a context is current.
        self.driver.check("cuCtxSynchronize", unsafe { (self.driver.cuCtxSynchronize)() })?;
        peers.barrier()?;
        let mut resources = self.resources.borrow_mut();
        resources.streams.iter_mut().for_each(|it| it.used = 0);
        resources.events.iter_mut().for_each(|it| it.used = 0);
        // Graphs hold addresses of everything else.
        let (first, rest): (Vec<Owned>, Vec<Owned>) = std::mem::take(&mut resources.owned)
            .into_iter()
            .rev()
            .partition(|it| matches!(it, Owned::Graph(..) | Owned::Mapped(_)));
        first.into_iter().try_for_each(|it| self.give_back(it))?;
        peers.barrier()?;
        rest.into_iter().try_for_each(|it| self.give_back(it))
    }

    fn give_back(&self, it: Owned) -> Result<(), CudaError> {
        let driver = self.driver;
        // SAFETY: each came from the call that this one undoes, was taken off the list, and nothing runs on the device.
        unsafe {
            match it {
                Owned::Memory(address) => driver.check("cuMemFree", (driver.cuMemFree_v2)(address)),
                Owned::Host(pointer) => driver.check("cuMemFreeHost", (driver.cuMemFreeHost)(pointer.cast())),
                Owned::Mapped(address) => {
                    driver.check("cuIpcCloseMemHandle", (driver.cuIpcCloseMemHandle)(address))
                }
                Owned::Module(module) => driver.check("cuModuleUnload", (driver.cuModuleUnload)(module)),
                Owned::Graph(graph, exec) => {
                    driver.check("cuGraphExecDestroy", (driver.cuGraphExecDestroy)(exec))?;
                    driver.check("cuGraphDestroy", (driver.cuGraphDestroy)(graph))
                }
            }
        }
    }
}
