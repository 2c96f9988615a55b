//! What a tool says, and how it ends, where the system refuses memory.
//!
//! Rust aborts a process (SIGABRT) whose allocation fails, and only unstable Rust has a hook for it. Each tool therefore
//! installs `Allocator`, the system's allocator with one difference: where memory is refused, it writes one line to standard
//! error and ends the process with exit code 6. Nothing is flushed on the way, and no lock is waited for. Files that the tool was
//! to replace have their old contents, because they are replaced by a rename; temporary files of `remove_if_refused` are
//! removed.
//!
//! Code that can do without the memory (`Vec::try_reserve`) runs inside `fallible`, where a refusal is returned to it.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fmt::Write,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use crate::{exit::Exit, tool_name::tool_name};

/// The system's allocator, for a tool's `#[global_allocator]`.
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

thread_local! {
    /// Whether the code that runs handles a refusal itself. Needs no allocation and no destructor.
    static IS_FALLIBLE: Cell<bool> = const { Cell::new(false) };
}

/// Temporary files and folders that exist now.
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A temporary file or folder; the value is dropped when that is gone, or has another name.
#[derive(Debug)]
pub struct TemporaryPath(PathBuf);

impl Drop for TemporaryPath {
    fn drop(&mut self) {
        TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).retain(|it| *it != self.0);
    }
}

/// Has a temporary file or folder removed where memory is refused: nothing is dropped then. A folder comes behind its files.
pub fn remove_on_out_of_memory(path: &Path) -> TemporaryPath {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
    TemporaryPath(path.to_owned())
}

/// Removes temporary files and folders, unless another thread is changing the list. Memory that this needs itself is refused
/// for good.
fn remove_temporary() {
    static IS_REMOVING: AtomicBool = AtomicBool::new(false);
    if IS_REMOVING.swap(true, Relaxed) {
        return;
    }
    let Ok(temporary) = TEMPORARY.try_lock() else { return };
    for path in temporary.iter() {
        // The first two need no memory for paths of a usual length.
        let is_gone = fs::remove_file(path).is_ok() || fs::remove_dir(path).is_ok();
        let _ = is_gone || fs::remove_dir_all(path).is_ok();
    }
}

/// Runs code that handles refused memory itself, as `Vec::try_reserve` and `Read::read_to_end` do.
pub fn with_fallible_allocation<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_FALLIBLE.set(self.0);
        }
    }
    let _restore = Restore(IS_FALLIBLE.replace(true));
    work()
}

#[expect(
    unsafe_code,
    reason = "`GlobalAlloc` is an unsafe trait, and no crate offers a handler of refused memory on stable Rust"
)]
// SAFETY: every call goes to `System` with the caller's arguments, and its answer is returned as it is or not at all.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is that of `System`.
        exit_if_null(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        exit_if_null(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`; `memory` came from `System`, as all memory of this allocator.
        exit_if_null(unsafe { System.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as in `realloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn exit_if_null(memory: *mut u8, bytes: usize) -> *mut u8 {
    // A thread that is ending may have no variables any more: what it lacks is a refusal like any other.
    if memory.is_null() && !IS_FALLIBLE.try_with(Cell::get).unwrap_or(false) {
        exit_out_of_memory(bytes)
    }
    memory
}

fn exit_out_of_memory(bytes: usize) -> ! {
    let mut line = LineBuffer { bytes: [0; 512], length: 0 };
    // A line that is too long is cut off.
    let _ = writeln!(
        line,
        "{}: out of memory: the system refuses {bytes} bytes; files that were being written have their old contents\n\
         help: run it with more memory (`ulimit -v`, the container's limit), or on fewer ranks, smaller extents or a smaller \
         program; `--memory-limit=GIB` refuses what needs more than that with the place in the program",
        tool_name()
    );
    // Not by the lock of `Stderr`: this thread may hold it.
    let _ = rustix::io::write(io::stderr(), &line.bytes[..line.length]);
    remove_temporary();
    Exit::Environment.exit_process()
}

/// A text in place, without memory of its own.
struct LineBuffer {
    bytes: [u8; 512],
    length: usize,
}

impl Write for LineBuffer {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = &mut self.bytes[self.length..];
        let length = text.len().min(room.len());
        room[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.length += length;
        if length == text.len() { Ok(()) } else { Err(std::fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_returned_to_who_handles_it() {
        assert!(exit_if_null(std::ptr::dangling_mut(), 1) == std::ptr::dangling_mut());
        assert!(with_fallible_allocation(|| exit_if_null(std::ptr::null_mut(), 1)).is_null());
        with_fallible_allocation(|| with_fallible_allocation(|| ()));
        assert!(!IS_FALLIBLE.get());
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_off() {
        let mut line = LineBuffer { bytes: [0; 512], length: 0 };
        assert!(line.write_str(&"a".repeat(500)).is_ok());
        assert!(line.write_str(&"b".repeat(500)).is_err());
        assert_eq!((line.length, line.bytes[499], line.bytes[511]), (512, b'a', b'b'));
    }
}
