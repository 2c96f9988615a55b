//! Reads complete input files.
//!
//! A regular file has a known size, and no more is read than that. A FIFO, a device or a file of `/proc`, which states the size 0, may
//! never end, so the amount of data that is read from it is limited.
//!
//! A run reads some files more than once: first to compare them with those of other ranks or to determine
//! their shape, and then for their contents. All reads in one run return the same bytes: a regular file that
//! changed in between is an error, and the bytes of a FIFO, which can be read only once, are kept.

use std::{
    collections::HashMap,
    fmt,
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use crate::{out_of_memory::with_fallible_allocation, threads};

/// Maximum number of bytes that are read from a FIFO, a device or standard input.
pub const MAX_STREAM: u64 = 256 << 20;

/// Number of bytes of a stream that are read at a time.
const BLOCK: u64 = 1 << 22;

/// Size from which hashing on several threads is faster than hashing on one thread.
const PARALLEL_HASH_THRESHOLD: usize = 1 << 20;

/// How long to wait for the writer of a FIFO before reporting that.
const FIFO_NOTICE_DELAY: Duration = Duration::from_secs(1);

/// The result of an earlier read of a path.
enum PreviousRead {
    /// The digest of a regular file.
    Digest(blake3::Hash),
    /// The bytes of a FIFO or a device.
    Bytes(Vec<u8>),
}

/// The files that a run has read. Threads may share it; one file is read at a time.
#[derive(Default)]
pub struct InputFiles {
    read: Mutex<HashMap<PathBuf, PreviousRead>>,
    /// Prints that the run waits for the writer of a FIFO.
    notice: Option<Arc<Notice>>,
}

/// Prints a line about what a run waits for.
type Notice = dyn Fn(&str) + Send + Sync;

impl fmt::Debug for InputFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InputFiles").finish_non_exhaustive()
    }
}

impl InputFiles {
    /// No files; `notice` gets a line if a run waits long for a file.
    pub fn with_notices(notice: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { read: Mutex::default(), notice: Some(Arc::new(notice)) }
    }

    /// Forgets the files of the previous run: in the next run they may have other contents.
    pub fn forget(&self) {
        self.lock().clear();
    }

    /// Returns the contents of a file, identical for all reads in a run.
    ///
    /// # Errors
    /// Reports errors of the operating system, a file that does not fit into memory, more than `MAX_STREAM` bytes
    /// from a path that is not a regular file, and a file whose contents have changed since it was first read.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.read_at_most(path, u64::MAX)
    }

    /// As `read`, for a file of at most `limit` bytes.
    ///
    /// # Errors
    /// As `read`; a larger file is rejected without reading it.
    pub fn read_at_most(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let mut read = self.lock();
        if let Some(PreviousRead::Bytes(bytes)) = read.get(path) {
            return Ok(bytes.clone());
        }
        let mut file = open(path, self.notice.as_ref())?;
        let about = file.metadata()?;
        if !about.is_file() || about.len() == 0 {
            let bytes = with_fallible_allocation(|| stream_at_most(file, limit.min(MAX_STREAM)))?;
            read.insert(path.to_owned(), PreviousRead::Bytes(bytes.clone()));
            return Ok(bytes);
        }
        if about.len() > limit {
            let message = format!("it has {} bytes; the limit is {limit}", about.len());
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        let mut bytes = Vec::new();
        let size = usize::try_from(about.len()).unwrap_or(usize::MAX);
        with_fallible_allocation(|| {
            bytes.try_reserve_exact(size).map_err(|_| {
                io::Error::new(io::ErrorKind::OutOfMemory, format!("memory cannot hold its {size} bytes"))
            })?;
            (&mut file).take(about.len()).read_to_end(&mut bytes)?;
            match file.read(&mut [0])? {
                0 => Ok(()),
                _ => Err(io::Error::other(
                    "it grows while it is read: run again when no other process writes it",
                )),
            }
        })?;
        let digest = digest(&bytes);
        match read.insert(path.to_owned(), PreviousRead::Digest(digest)) {
            Some(PreviousRead::Digest(before)) if before != digest => Err(io::Error::other(
                "its contents have changed since this run first read it: run again when no other process writes it",
            )),
            Some(PreviousRead::Digest(_) | PreviousRead::Bytes(_)) | None => Ok(bytes),
        }
    }

    /// Returns the current contents of a file of at most `limit` bytes. Unlike `read_at_most`, it does not compare them
    /// with those of earlier reads in the run: another process may have replaced the file since.
    ///
    /// # Errors
    /// As `read_at_most`, but a change of the contents is not an error.
    pub fn read_again(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        Self { read: Mutex::default(), notice: self.notice.clone() }.read_at_most(path, limit)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, PreviousRead>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the BLAKE3 digest of bytes, computed on several threads if that is faster.
pub fn digest(bytes: &[u8]) -> blake3::Hash {
    if bytes.len() < PARALLEL_HASH_THRESHOLD {
        return blake3::hash(bytes);
    }
    if threads::start_workers().is_err() {
        return blake3::hash(bytes);
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update_rayon(bytes);
    hasher.finalize()
}

/// Opens a file. Waits for the writer of a FIFO, and reports a long wait.
fn open(path: &Path, notice: Option<&Arc<Notice>>) -> io::Result<File> {
    let (true, Some(notice)) = (fs::metadata(path)?.file_type().is_fifo(), notice) else {
        return File::open(path);
    };
    let (opened, is_opened) = mpsc::channel::<()>();
    let (notice, shown) = (Arc::clone(notice), path.display().to_string());
    let tell = move || {
        if is_opened.recv_timeout(FIFO_NOTICE_DELAY) == Err(RecvTimeoutError::Timeout) {
            notice(&format!("waiting for a writer of the FIFO `{shown}`"));
        }
    };
    // If the thread cannot be started, the wait is not reported.
    let _ = thread::Builder::new().name("hir-fifo".to_owned()).spawn(tell);
    let file = File::open(path);
    drop(opened);
    file
}

/// Reads a stream to its end.
///
/// # Errors
/// Reports errors of the operating system, and more than `MAX_STREAM` bytes.
pub fn read_stream(from: impl Read) -> io::Result<Vec<u8>> {
    with_fallible_allocation(|| stream_at_most(from, MAX_STREAM))
}

fn stream_at_most(from: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let (mut from, mut blocks, mut size) = (from.take(limit + 1), Vec::new(), 0);
    // One vector that grows would take several times the limit before a stream without an end is refused.
    loop {
        let mut block = Vec::new();
        size += (&mut from).take(BLOCK).read_to_end(&mut block)?;
        if size as u64 > limit {
            let message = format!(
                "it states no size and contains more than {} MiB: copy it to a file first",
                limit >> 20
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        if block.is_empty() {
            break;
        }
        blocks.push(block);
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
    blocks.iter().for_each(|it| bytes.extend_from_slice(it));
    Ok(bytes)
}

#[cfg(test)]
mod tests;
