//! A connection that has not completed the handshake. It holds a few bytes and never blocks.

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
    /// The time from which they are expected.
    pub(super) since: Instant,
}

impl<const N: usize> Pending<N> {
    pub(super) fn new(stream: TcpStream, since: Instant) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, buffer: [0; N], filled: 0, since })
    }

    /// Returns the bytes once all have arrived.
    ///
    /// # Errors
    /// Returns an error if the connection is closed.
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

    /// Sends a few bytes. They fit into the socket buffer if the other end reads.
    ///
    /// # Errors
    /// Returns an error if the other end does not read or has closed the connection.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Returns the connection as one from which `M` bytes are expected.
    pub(super) fn expect<const M: usize>(self) -> Pending<M> {
        Pending { stream: self.stream, buffer: [0; M], filled: 0, since: self.since }
    }

    /// Returns the connection as a blocking stream.
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

/// Waits until one of the files is readable, for at most `patience`.
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
