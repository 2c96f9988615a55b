//! The messages between the processes of a job. postcard encodes them; `session` encrypts them.

use serde::{Deserialize, Serialize};

use super::LaunchError;
use hir_process::exit::FailureExit;

/// The version of the messages and of the handshake. Processes of different versions do not connect.
pub const VERSION: u32 = 5;
/// Maximum size of the content of one message, in bytes.
pub const MAX_CONTENT: usize = 1 << 20;
/// Maximum size of one encoded message, in bytes.
pub const MAX_MESSAGE: usize = MAX_CONTENT + 64;

/// The collective call to which a piece belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Operation {
    /// `Channel::all_gather`.
    AllGather,
    /// `Channel::gather`.
    Gather,
}

/// A message between rank 0 and another rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Message {
    /// To rank 0: the first message, which proves that the sender completed the handshake.
    Join,
    /// From rank 0: all ranks have joined. The random number names this run of the job.
    Welcome(u128),
    /// To rank 0: a piece of the sender's contribution.
    Contribution {
        /// The collective call.
        operation: Operation,
        /// Set if another piece follows.
        more: bool,
        /// At most `MAX_CONTENT` bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// From rank 0: it has consumed a piece, so the receiver may send another one.
    Credit,
    /// From rank 0: a piece of all ranks' contributions.
    GatheredData {
        /// Set if another piece follows.
        more: bool,
        /// At most `MAX_CONTENT` bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// The sender is alive. Carries its progress record, which is opaque here.
    Heartbeat(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The job is lost, with the reason.
    Fault(LaunchError),
    /// From rank 0: the exit code with which all ranks of a lost job end.
    ExitCode(FailureExit),
    /// The sender leaves in an orderly way.
    Goodbye,
}

/// The error for bytes that are not exactly one message, and for a value that cannot be encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a message of this version of hir")]
pub struct Malformed;

impl Message {
    /// Encodes the message.
    ///
    /// # Errors
    /// Returns an error if the encoding has more than `MAX_MESSAGE` bytes.
    pub fn encode(&self) -> Result<Vec<u8>, Malformed> {
        encode(self).ok().filter(|it| it.len() <= MAX_MESSAGE).ok_or(Malformed)
    }
}

/// Encodes a value.
///
/// # Errors
/// Returns an error if postcard does not encode the type.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Malformed> {
    postcard::to_allocvec(value).map_err(|_| Malformed)
}

/// Decodes a value that `encode` encoded.
///
/// # Errors
/// Returns an error for other bytes, and for bytes behind the value.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok(_) | Err(_) => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hir_process::exit::Exit;

    #[test]
    fn messages_survive_encoding() {
        let messages = [
            Message::Contribution { operation: Operation::Gather, more: true, bytes: vec![1, 2, 3] },
            Message::GatheredData { more: false, bytes: vec![0; 70_000] },
            Message::Welcome(u128::MAX - 5),
            Message::Heartbeat(vec![]),
            Message::Fault(LaunchError::Gone { rank: 3 }),
            Message::Fault(LaunchError::Silent { rank: 1, seconds: 10 }),
            Message::Fault(LaunchError::Late { ranks: vec![1, 3], seconds: 60 }),
            Message::Fault(LaunchError::Aborted {
                rank: 2,
                exit: Exit::Device.into(),
                reason: "line 3".to_owned(),
            }),
            Message::ExitCode(FailureExit::HANG),
            Message::Goodbye,
        ];
        for message in messages {
            let bytes = message.encode().unwrap_or_default();
            assert_eq!(decode(&bytes), Ok(message));
            // A truncated or extended message is refused.
            assert_eq!(decode::<Message>(&bytes[..bytes.len() - 1]), Err(Malformed));
            assert_eq!(decode::<Message>(&[&bytes[..], &[0]].concat()), Err(Malformed));
        }
        assert_eq!(decode::<Message>(b"GET / HTTP/1.1"), Err(Malformed));
        let long = Message::Heartbeat(vec![0; MAX_MESSAGE]);
        assert_eq!(long.encode(), Err(Malformed));
    }

    /// A peer that runs other code may send an exit code of 0 as a failure.
    #[test]
    fn a_failure_with_code_0_is_no_success() {
        let fault = LaunchError::Aborted { rank: 1, exit: FailureExit::HANG, reason: String::new() };
        let mut bytes = Message::Fault(fault).encode().unwrap_or_default();
        let at = bytes.iter().rposition(|it| *it == Exit::Hang as u8);
        at.into_iter().for_each(|at| bytes[at] = 0);
        match decode(&bytes) {
            Ok(Message::Fault(fault)) => assert_eq!(Exit::from(fault.exit()), Exit::InternalError),
            other => assert_eq!(other, Err(Malformed)),
        }
        let mut bytes = Message::ExitCode(FailureExit::HANG).encode().unwrap_or_default();
        bytes.last_mut().into_iter().for_each(|it| *it = 0);
        assert_eq!(decode(&bytes), Ok(Message::ExitCode(FailureExit::INTERNAL_ERROR)));
    }
}
