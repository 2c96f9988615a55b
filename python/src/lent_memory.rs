//! Memory that PyTorch's allocator takes from hir instead of from CUDA: a part of a program's memory, for what a kernel of PyTorch allocates.

use std::{
    cell::Cell,
    ffi::{c_int, c_void},
};

use pyo3::prelude::*;

thread_local! {
    /// What this thread lends: address, bytes, bytes that are taken.
    static LENT: Cell<(u64, usize, usize)> = const { Cell::new((0, 0, 0)) };
}

/// Lends memory, of which the first `taken` bytes are in use, to the allocations of this thread.
#[pyfunction]
pub(crate) fn lend_memory(address: u64, bytes: usize, taken: usize) {
    LENT.set((address, bytes, taken));
}

/// Ends the loan, and returns how many bytes are taken.
#[pyfunction]
pub(crate) fn end_loan() -> usize {
    LENT.take().2
}

/// Returns the addresses of the two functions that an allocator of PyTorch calls (`torch._C._cuda_customAllocator`).
#[pyfunction]
pub(crate) fn loan_functions() -> (usize, usize) {
    (take_memory as *const () as usize, return_memory as *const () as usize)
}

/// Takes the next bytes; null if too few are left. PyTorch asks for whole segments, of multiples of 2 MiB.
extern "C" fn take_memory(bytes: isize, _device: c_int, _stream: *mut c_void) -> *mut c_void {
    let (address, all, taken) = LENT.get();
    match usize::try_from(bytes) {
        Ok(bytes) if bytes <= all - taken => {
            LENT.set((address, all, taken + bytes));
            std::ptr::with_exposed_provenance_mut(address as usize + taken)
        }
        _ => std::ptr::null_mut(),
    }
}

/// Does nothing: all of the memory goes back to its program.
extern "C" fn return_memory(_address: *mut c_void, _bytes: isize, _device: c_int, _stream: *mut c_void) {}
