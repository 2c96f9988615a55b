//! A connection whose other end has not proved yet that it belongs to the job: it holds a few bytes, and never blocks.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
};

/// A connection from which `N` bytes are expected.
pub(super) struct Pending<const N: usize> {
    stream: TcpStream,
    buffer: [u8; N],
    filled: usize,
    /// Since when they are expected.
    pub(super) since: Instant,
}

impl<const N: usize> Pending<N> {
    pub(super) fn new(stream: TcpStream, since: Instant) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, buffer: [0; N], filled: 0, since })
    }

    /// The bytes, once all have arrived.
    ///
    /// # Errors
    /// A connection that is closed.
    pub(super) fn receive(&mut self) -> io::Result<Option<[u8; N]>> {
        while self.filled < N {
            match self.stream.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.filled += count,
                Err(fault) if fault.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(fault) if fault.kind() == io::ErrorKind::Interrupted => (),
                Err(fault) => return Err(fault),
            }
        }
        Ok(Some(self.buffer))
    }

    /// Sends a few bytes, which fit into the buffer of a connection whose other end reads.
    ///
    /// # Errors
    /// An other end that does not, or that has closed the connection.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The connection, where `M` bytes are expected next.
    pub(super) fn expect<const M: usize>(self) -> Pending<M> {
        Pending { stream: self.stream, buffer: [0; M], filled: 0, since: self.since }
    }

    /// The connection itself, which blocks from here on.
    pub(super) fn into_stream(self) -> io::Result<TcpStream> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_nodelay(true)?;
        Ok(self.stream)
    }
}

impl<const N: usize> AsFd for Pending<N> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Waits until one of these can be read, for as long as `patience`.
pub(super) fn wait_readable<'a>(
    files: impl Iterator<Item = BorrowedFd<'a>>,
    patience: Duration,
) -> io::Result<()> {
    let mut files: Vec<PollFd<'a>> = files.map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN)).collect();
    let timeout = Timespec::try_from(patience).map_err(|_| io::ErrorKind::InvalidInput)?;
    match rustix::event::poll(&mut files, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(fault) => Err(fault.into()),
    }
}
