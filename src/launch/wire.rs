//! Frames on a connection between two ranks: a kind, a length, bytes. Numbers are little-endian.

use std::io::{self, Read, Write};

use super::LaunchError;

/// What a frame says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// To rank 0: my part of an `all_gather`.
    Part = 1,
    /// From rank 0: everybody's parts.
    Parts = 2,
    /// I live; how far I am.
    Pulse = 3,
    /// The job is lost, and why.
    Fault = 4,
    /// From rank 0: the exit code of all.
    Verdict = 5,
    /// I leave in order.
    Bye = 6,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Part, Self::Parts, Self::Pulse, Self::Fault, Self::Verdict, Self::Bye]
            .into_iter()
            .find(|it| *it as u8 == byte)
    }
}

/// Longest frame, in bytes: nobody sends more, so a longer one is no frame of ours.
const LONGEST: usize = 256 << 20;

/// Sends one frame.
pub(super) fn write(to: &mut impl Write, kind: Kind, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).ok().filter(|it| *it as usize <= LONGEST);
    let length =
        length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a message over 256 MiB"))?;
    let mut frame = Vec::with_capacity(bytes.len() + 5);
    frame.push(kind as u8);
    frame.extend(length.to_le_bytes());
    frame.extend(bytes);
    to.write_all(&frame)
}

/// Receives one frame.
pub(super) fn read(from: &mut impl Read) -> io::Result<(Kind, Vec<u8>)> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let [kind, length @ ..] = head;
    let length = u32::from_le_bytes(length) as usize;
    let Some(kind) = Kind::from_byte(kind).filter(|_| length <= LONGEST) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no frame of ours"));
    };
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    Ok((kind, bytes))
}

/// Byte strings as one, each behind its length.
pub(super) fn join<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend((part.len() as u32).to_le_bytes());
        bytes.extend(part);
    }
    bytes
}

/// The byte strings that `join` joined; `None` for other bytes.
pub(super) fn split(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut parts = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        parts.push(part.to_vec());
        bytes = rest;
    }
    Some(parts)
}

/// A fault as bytes: a tag, a rank, a number, a text.
pub(super) fn encode(fault: &LaunchError) -> Vec<u8> {
    let (tag, rank, number, text) = match fault {
        LaunchError::Gone { rank } => (0u8, *rank, 0, String::new()),
        LaunchError::Silent { rank, seconds } => (1, *rank, *seconds, String::new()),
        LaunchError::Aborted { rank, exit, reason } => (2, *rank, u64::from(*exit), reason.clone()),
        LaunchError::Late { ranks, seconds } => {
            let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
            (3, 0, *seconds, ranks.join(" "))
        }
        LaunchError::Stalled { seconds } => (4, 0, *seconds, String::new()),
        LaunchError::Environment(_) | LaunchError::Rendezvous { .. } => {
            (2, 0, u64::from(fault.exit() as u8), fault.to_string())
        }
    };
    let mut bytes = vec![tag];
    bytes.extend((rank as u64).to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend(text.bytes());
    bytes
}

/// The fault that `encode` made bytes of; `None` for other bytes.
pub(super) fn decode(bytes: &[u8]) -> Option<LaunchError> {
    let (tag, rest) = bytes.split_first()?;
    let (rank, rest) = rest.split_first_chunk::<8>()?;
    let (number, text) = rest.split_first_chunk::<8>()?;
    let (rank, number) = (u64::from_le_bytes(*rank) as usize, u64::from_le_bytes(*number));
    let text = String::from_utf8_lossy(text).into_owned();
    match tag {
        0 => Some(LaunchError::Gone { rank }),
        1 => Some(LaunchError::Silent { rank, seconds: number }),
        2 => Some(LaunchError::Aborted { rank, exit: number as u8, reason: text }),
        3 => {
            let ranks = text.split_whitespace().filter_map(|it| it.parse().ok()).collect();
            Some(LaunchError::Late { ranks, seconds: number })
        }
        4 => Some(LaunchError::Stalled { seconds: number }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_and_faults_come_back() -> io::Result<()> {
        let mut bytes = Vec::new();
        write(&mut bytes, Kind::Pulse, b"abc")?;
        assert_eq!(read(&mut bytes.as_slice())?, (Kind::Pulse, b"abc".to_vec()));
        assert!(read(&mut b"GET / HTTP/1.1".as_slice()).is_err());
        let faults = [
            LaunchError::Gone { rank: 3 },
            LaunchError::Silent { rank: 1, seconds: 10 },
            LaunchError::Aborted { rank: 2, exit: 5, reason: "line 3".to_owned() },
            LaunchError::Late { ranks: vec![1, 3], seconds: 60 },
            LaunchError::Stalled { seconds: 60 },
        ];
        for fault in faults {
            assert_eq!(decode(&encode(&fault)), Some(fault));
        }
        assert_eq!(
            split(&join([b"ab".as_slice(), b"", b"c"])),
            Some(vec![b"ab".to_vec(), vec![], b"c".to_vec()])
        );
        assert_eq!(split(&[9, 0, 0, 0, 1]), None);
        Ok(())
    }
}
