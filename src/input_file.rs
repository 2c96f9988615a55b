//! Reads whole input files.
//!
//! A regular file has a size. A FIFO or a device may never end, so it has a limit.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// Most bytes that are read from a FIFO, a device or standard input.
pub const MAX_STREAM: u64 = 256 << 20;

/// The contents of a file.
///
/// # Errors
/// What the operating system says; a file that memory cannot hold; more than `MAX_STREAM` from what is no regular file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return read_stream(file);
    }
    let mut bytes = Vec::new();
    let size = usize::try_from(about.len()).unwrap_or(usize::MAX);
    bytes.try_reserve_exact(size).map_err(|_| {
        io::Error::new(io::ErrorKind::OutOfMemory, format!("memory cannot hold its {size} bytes"))
    })?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// All that comes from a stream.
///
/// # Errors
/// What the operating system says; more than `MAX_STREAM`.
pub fn read_stream(from: impl Read) -> io::Result<Vec<u8>> {
    read_at_most(from, MAX_STREAM)
}

fn read_at_most(from: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(limit + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => {
            let message = format!(
                "it is not a regular file and gives more than {} MiB: copy it to a file first",
                limit >> 20
            );
            Err(io::Error::new(io::ErrorKind::FileTooLarge, message))
        }
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_read_up_to_its_limit_and_no_further() -> io::Result<()> {
        assert_eq!(read_at_most(io::repeat(1).take(8), 8)?, [1; 8]);
        let fault = read_at_most(io::repeat(1), 8).err().map(|it| it.kind());
        assert_eq!(fault, Some(io::ErrorKind::FileTooLarge));
        Ok(())
    }
}
