//! Handles failed memory allocations: reports the error and ends the process.
//!
//! Rust aborts a process (SIGABRT) if an allocation fails, and the hook for it is unstable. Each tool
//! therefore installs `Allocator`, which passes requests on to another allocator: if an allocation fails,
//! it writes a message to standard error and ends the process with exit code 6. It flushes no buffers and
//! waits for no locks. Files that were being replaced keep their old contents, because they are replaced by a
//! rename; the temporary files registered with `remove_on_out_of_memory` are removed.
//!
//! Other threads still run then, and one of them may run into an allocation of the C library that fails, which aborts
//! the process. `end_aborts` gives this abort the same exit code.
//!
//! Code that can handle a failed allocation (`Vec::try_reserve`) runs inside `with_fallible_allocation`,
//! where the failure is returned to it.

use std::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
    fmt::Write,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::{consts::SIGABRT, flag};

use crate::exit::Exit;

/// An allocator that ends the process on failure, for a tool's `#[global_allocator]`.
#[derive(Clone, Copy, Debug)]
pub struct Allocator<A> {
    /// The name of the tool, for the message.
    pub tool: &'static str,
    /// The allocator that it asks for memory.
    pub memory: A,
}

thread_local! {
    /// Whether the current code handles failed allocations itself. Needs no allocation and no destructor.
    static IS_FALLIBLE: Cell<bool> = const { Cell::new(false) };
}

/// Temporary files and folders that currently exist.
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A registered temporary file or folder. Drop it when the file or folder is removed or renamed.
#[derive(Debug)]
pub struct TemporaryPath(PathBuf);

impl Drop for TemporaryPath {
    fn drop(&mut self) {
        TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).retain(|it| *it != self.0);
    }
}

/// Registers a temporary file or folder to be removed if memory is exhausted, when no destructors run.
/// Register a folder after its files.
pub fn remove_on_out_of_memory(path: &Path) -> TemporaryPath {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
    TemporaryPath(path.to_owned())
}

/// Removes temporary files and folders, unless another thread is changing the list. Allocations that fail
/// during the removal are not handled again.
fn remove_temporary() {
    static IS_REMOVING: AtomicBool = AtomicBool::new(false);
    if IS_REMOVING.swap(true, Relaxed) {
        return;
    }
    let Ok(temporary) = TEMPORARY.try_lock() else { return };
    for path in temporary.iter() {
        // The first two calls need no memory for paths of usual length.
        let is_gone = fs::remove_file(path).is_ok() || fs::remove_dir(path).is_ok();
        let _ = is_gone || fs::remove_dir_all(path).is_ok();
    }
}

/// What the handler of SIGABRT reads: whether an allocation has failed, and whether none has.
static EXHAUSTED: OnceLock<[Arc<AtomicBool>; 2]> = OnceLock::new();

/// Makes SIGABRT end the process with exit code 6 if an allocation has failed before. Otherwise it aborts the process,
/// as without this handler.
pub fn end_aborts() {
    let [failed, none_failed] =
        EXHAUSTED.get_or_init(|| [false, true].map(|it| Arc::new(AtomicBool::new(it))));
    // Actions run in the order in which they are registered. Without them, only the exit code is another one.
    let _ = flag::register_conditional_shutdown(SIGABRT, Exit::Environment as i32, Arc::clone(failed))
        .and_then(|_| flag::register_conditional_default(SIGABRT, Arc::clone(none_failed)));
}

/// What a tool may allocate beside the memory of `--memory-limit`, in GiB: 1 for its text, its code and its stacks, and 1 that mimalloc
/// reserves at once, which the system counts although most of it is never used.
const ALLOWANCE_GIB: u64 = 2;

/// Lets allocations fail if the process has more than `gib` GiB of data and the allowance. The size of plans and of
/// simulated ranks is known before they are allocated, and a larger one is reported with its statement; this limit is
/// for everything else: reading, passes and checks.
///
/// A process that uses GPUs must not call this: the driver maps far more memory than it uses. Processes that this one
/// starts inherit the limit.
pub fn limit_memory(gib: u32) {
    let limit = Resource::Data;
    let wanted = (u64::from(gib) + ALLOWANCE_GIB) << 30;
    let Rlimit { maximum, .. } = getrlimit(limit);
    let current = Some(maximum.map_or(wanted, |it| it.min(wanted)));
    // Without the limit, the system's own limit holds.
    let _ = setrlimit(limit, Rlimit { current, maximum });
}

/// Runs code that handles failed allocations itself, such as `Vec::try_reserve` and `Read::read_to_end`.
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
    reason = "`GlobalAlloc` is an unsafe trait, and no crate offers a handler of failed allocations on stable Rust"
)]
// SAFETY: every call is forwarded to `memory` with the caller's arguments, and its result is returned
// unchanged or not at all.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Allocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`, which is that of `memory`.
        self.exit_if_null(unsafe { self.memory.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        self.exit_if_null(unsafe { self.memory.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`; `memory` came from `self.memory`, as all memory of this allocator.
        self.exit_if_null(unsafe { self.memory.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as in `realloc`.
        unsafe { self.memory.dealloc(memory, layout) }
    }
}

impl<A> Allocator<A> {
    fn exit_if_null(&self, memory: *mut u8, bytes: usize) -> *mut u8 {
        // The variable may already be destroyed in a thread that is ending; then a failure is handled as usual.
        if memory.is_null() && !IS_FALLIBLE.try_with(Cell::get).unwrap_or(false) {
            exit_out_of_memory(self.tool, bytes)
        }
        memory
    }
}

fn exit_out_of_memory(tool: &str, bytes: usize) -> ! {
    if let Some([failed, none_failed]) = EXHAUSTED.get() {
        failed.store(true, Relaxed);
        none_failed.store(false, Relaxed);
    }
    let mut line = LineBuffer { bytes: [0; 512], length: 0 };
    // A message that is too long is truncated.
    let _ = writeln!(
        line,
        "{tool}: out of memory: an allocation of {bytes} bytes failed; files that were being written keep their old contents\n\
         help: use more memory (`--memory-limit=GIB`, `ulimit -v`, the container's limit), fewer ranks, smaller extents \
         or a smaller program"
    );
    // Do not lock `Stderr`: this thread may hold the lock.
    let _ = rustix::io::write(io::stderr(), &line.bytes[..line.length]);
    remove_temporary();
    Exit::Environment.exit_process()
}

/// A fixed-size text buffer that needs no allocation.
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
    fn a_refusal_is_returned_to_the_caller() {
        let allocator = Allocator { tool: "hir", memory: std::alloc::System };
        assert!(allocator.exit_if_null(std::ptr::dangling_mut(), 1) == std::ptr::dangling_mut());
        assert!(with_fallible_allocation(|| allocator.exit_if_null(std::ptr::null_mut(), 1)).is_null());
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
