//! Memory of the GPU and of the host: allocation, copies, and words that streams write and wait for.

use std::{ffi::c_void, sync::atomic::AtomicU32};

use cudarc::driver::sys;

use super::{
    Device, Stream,
    resources::{MemoryBlock, OwnedResource},
};
use crate::{ExecutorError, Result};

/// A 2-D copy: `height` rows of `width` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy2d {
    pub from: u64,
    pub from_pitch: usize,
    pub to: u64,
    pub to_pitch: usize,
    pub width: usize,
    pub height: usize,
}

impl Device {
    /// Returns device memory for the plan of this rank, aligned to at least 256 bytes.
    ///
    /// # Errors
    /// Returns `OutOfMemory` if there is too little memory, and fails if a call fails.
    pub fn allocate(&self, rank: usize, bytes: usize) -> Result<u64> {
        let bytes = bytes.max(256);
        if let Some(address) = self.resources.borrow_mut().take_block(bytes) {
            return Ok(address);
        }
        let address = self.take_memory(rank, bytes)?;
        self.resources.borrow_mut().blocks.push(MemoryBlock { address, bytes, used: true });
        Ok(address)
    }

    /// Calls a function with device memory that is free again afterwards: what the function issues has to be complete when it returns.
    ///
    /// # Errors
    /// As for `allocate`, and those of the function.
    pub fn with_memory(&self, rank: usize, bytes: usize, work: impl FnOnce(u64) -> Result<()>) -> Result<()> {
        let address = self.take_memory(rank, bytes.max(256))?;
        let done = work(address);
        // SAFETY: the address came from `cuMemAlloc`; the call waits for what uses the memory, and nothing has the address any more.
        let status = unsafe { (self.driver.cuMemFree_v2)(address) };
        done.and(self.driver.check("cuMemFree", status))
    }

    fn take_memory(&self, rank: usize, bytes: usize) -> Result<u64> {
        let mut address = 0;
        // SAFETY: the pointer is to a live address.
        let status = unsafe { (self.driver.cuMemAlloc_v2)(&raw mut address, bytes) };
        if status == sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY as u32 {
            let (mut free, mut total) = (0, 0);
            // SAFETY: the pointers are to live integers.
            unsafe { (self.driver.cuMemGetInfo_v2)(&raw mut free, &raw mut total) };
            let message = format!("{bytes} bytes of GPU memory are wanted; {free} of {total} are free");
            return Err(ExecutorError::OutOfMemory { rank, message });
        }
        self.driver.check("cuMemAlloc", status)?;
        Ok(address)
    }

    /// Allocates page-locked host memory for the lifetime of the plan.
    pub fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8> {
        let pointer = self.locked(bytes)?;
        self.track(OwnedResource::PinnedMemory(pointer));
        Ok(pointer)
    }

    fn locked(&self, bytes: usize) -> Result<*mut u8> {
        let mut pointer: *mut c_void = std::ptr::null_mut();
        // SAFETY: the pointer is to a live pointer.
        let status = unsafe { (self.driver.cuMemHostAlloc)(&raw mut pointer, bytes.max(1), 0) };
        self.driver.check("cuMemHostAlloc", status)?;
        Ok(pointer.cast())
    }

    /// Allocates words in page-locked memory, set to 0, that this process reads while streams write them.
    /// They are never freed.
    pub fn pinned_words(&self, count: usize) -> Result<&'static [AtomicU32]> {
        let first = self.locked(count * size_of::<AtomicU32>())?;
        // SAFETY: the allocation has this many bytes, lives as long as the process and is aligned to a page;
        // 0 is a valid word. The device writes whole words, as another thread would.
        unsafe {
            first.write_bytes(0, count * size_of::<AtomicU32>());
            Ok(std::slice::from_raw_parts(first.cast(), count))
        }
    }

    /// Copies device memory, which may be a peer's. The caller guarantees the addresses: the views of a plan
    /// lie inside their buffers.
    pub fn copy(&self, to: u64, from: u64, bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: views lie inside buffers, which lie inside segments that are mapped while the plan is used.
        let status = unsafe { (self.driver.cuMemcpyDtoDAsync_v2)(to, from, bytes, stream.0) };
        self.driver.check("cuMemcpyDtoDAsync", status)
    }

    /// Accesses memory of peers, and waits: their pages are mapped at the first access, and no run shall wait for that. 4 bytes at `to` are lost.
    pub fn touch(&self, to: u64, peers: impl Iterator<Item = u64>, stream: Stream) -> Result<()> {
        for address in peers {
            self.copy(to, address, size_of::<u32>(), stream)?;
        }
        self.synchronize(stream)
    }

    /// Copies rows of equal length with different pitches.
    pub fn copy_2d(&self, rows: &Copy2d, stream: Stream) -> Result<()> {
        let device = sys::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE;
        let it = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: device,
            srcHost: std::ptr::null(),
            srcDevice: rows.from,
            srcArray: std::ptr::null_mut(),
            srcPitch: rows.from_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: device,
            dstHost: std::ptr::null_mut(),
            dstDevice: rows.to,
            dstArray: std::ptr::null_mut(),
            dstPitch: rows.to_pitch,
            WidthInBytes: rows.width,
            Height: rows.height,
        };
        // SAFETY: as `copy`; the descriptor is read before the call returns.
        let status = unsafe { (self.driver.cuMemcpy2DAsync_v2)(&raw const it, stream.0) };
        self.driver.check("cuMemcpy2DAsync", status)
    }

    /// Fills memory with a byte.
    pub fn memset(&self, to: u64, byte: u8, bytes: usize, stream: Stream) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: as `copy`.
        self.driver
            .check("cuMemsetD8Async", unsafe { (self.driver.cuMemsetD8Async)(to, byte, bytes, stream.0) })
    }

    /// Copies host memory to the device and waits for the copy.
    pub fn upload(&self, to: u64, from: &[u8], stream: Stream) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the slice is live until the stream has been waited for.
        let status =
            unsafe { (self.driver.cuMemcpyHtoDAsync_v2)(to, from.as_ptr().cast(), from.len(), stream.0) };
        self.driver.check("cuMemcpyHtoDAsync", status)?;
        self.synchronize(stream)
    }

    /// Copies device memory to page-locked memory, in stream order.
    pub fn download(&self, to: *mut u8, from: u64, bytes: usize, stream: Stream) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: `to` comes from `allocate_pinned` with at least this many bytes and lives as long as the
        // plan.
        let status = unsafe { (self.driver.cuMemcpyDtoHAsync_v2)(to.cast(), from, bytes, stream.0) };
        self.driver.check("cuMemcpyDtoHAsync", status)
    }

    /// Copies device memory to any host memory and waits for the copy. Work that is still running may write
    /// the source.
    pub fn read(&self, to: &mut [u8], from: u64) -> Result<()> {
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: the slice is borrowed until the call has returned, when the copy is done.
        let status = unsafe { (self.driver.cuMemcpyDtoH_v2)(to.as_mut_ptr().cast(), from, to.len()) };
        self.driver.check("cuMemcpyDtoH", status)
    }

    /// Writes a 32-bit value to device memory after the work on the stream.
    pub fn write_value(&self, address: u64, value: u32, stream: Stream) -> Result<()> {
        // SAFETY: the address is aligned to 4 bytes and lies in a mapped segment, in memory of this plan, or in
        // page-locked memory. Without flags (argument 0), the write comes after all earlier writes.
        let status = unsafe { (self.driver.cuStreamWriteValue32_v2)(stream.0, address, value, 0) };
        self.driver.check("cuStreamWriteValue32", status)
    }

    /// Makes the stream wait until a value in memory is at least `value`, modulo 2^32.
    pub fn wait_value(&self, address: u64, value: u32, stream: Stream) -> Result<()> {
        // SAFETY: as `write_value`.
        let status =
            unsafe { (self.driver.cuStreamWaitValue32_v2)(stream.0, address, value, self.wait_flags) };
        self.driver.check("cuStreamWaitValue32", status)
    }
}
