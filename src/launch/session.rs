//! The encrypted connection between two processes of a job.
//!
//! A connection begins with a Noise handshake (pattern NN with the job's secret as pre-shared key). Only
//! processes that have the secret can complete it. Its prologue binds the version, the job, the number of
//! ranks and the rank:
//!
//! ```text
//! rank r -> rank 0   MAGIC, r, psk, e     60 bytes
//! rank 0 -> rank r   e, ee                48 bytes
//! rank r -> rank 0   Message::Join        the first encrypted message; a replayed line 1 cannot produce it
//! ```
//!
//! After the handshake, a message is a sequence of encrypted records. The first one is the length of the message, in four bytes,
//! little-endian; from it follow the lengths of the others. So no byte between the ends is read before it is authenticated.

use std::{io, sync::Arc};

use snow::{Builder, HandshakeState, StatelessTransportState};

use super::{
    message::{self, MAX_MESSAGE, Message, VERSION},
    secret::Secret,
};

/// The first bytes of a connection.
const MAGIC: &[u8; 8] = b"hir-rank";
/// The name of the Noise protocol.
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Size of a handshake message, in bytes: an ephemeral key and a tag.
const NOISE_MESSAGE_BYTES: usize = 32 + TAG_BYTES;
/// Size of an authentication tag, in bytes.
const TAG_BYTES: usize = 16;
/// Maximum size of the plaintext of a record, in bytes: Noise allows 65,535 bytes with the tag.
const MAX_CHUNK: usize = 65_535 - TAG_BYTES;
/// Size of the length of a message, in bytes.
const LENGTH_BYTES: usize = 4;

/// Size of the first message of a connection, in bytes.
pub const HELLO_BYTES: usize = 8 + 4 + NOISE_MESSAGE_BYTES;
/// Size of rank 0's answer, in bytes.
pub const ANSWER_BYTES: usize = NOISE_MESSAGE_BYTES;
/// Size of the records of `Message::Join`, in bytes.
pub const JOIN_BYTES: usize = LENGTH_BYTES + TAG_BYTES + 1 + TAG_BYTES;

/// The identity of a job, on which both ends of a connection must agree.
#[derive(Clone)]
pub struct JobKey {
    /// The secret, which only the processes of the job have.
    pub secret: Secret,
    /// The launcher's name for the job, and the port at which its ranks meet.
    pub job: String,
    /// Number of ranks.
    pub world: usize,
}

/// The error for a record that the peer did not send, or that is not the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a record was not encrypted by the peer, or is not the next one")]
pub struct InvalidRecord;

/// The reason why a handshake failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The other end does not follow hir's protocol.
    #[error("it does not follow hir's protocol")]
    NotHir,
    /// The other end has another secret, job, number of ranks or version.
    #[error("it has another secret or another version of hir, or belongs to another job")]
    Unauthenticated,
}

impl JobKey {
    fn builder<T>(
        &self,
        rank: u32,
        build: impl FnOnce(Builder<'_>) -> Result<T, snow::Error>,
    ) -> Result<T, HandshakeError> {
        let prologue = message::encode(&(VERSION, &self.job, self.world as u64, rank));
        let prologue = prologue.map_err(|_| HandshakeError::Unauthenticated)?;
        let parameters = PATTERN.parse().map_err(|_| HandshakeError::Unauthenticated)?;
        let builder = Builder::new(parameters)
            .psk(0, self.secret.bytes())
            .and_then(|it| it.prologue(&prologue))
            .and_then(build);
        builder.map_err(|_| HandshakeError::Unauthenticated)
    }
}

/// The side of a handshake that begins it: a rank other than 0.
pub struct Initiator {
    state: HandshakeState,
}

impl Initiator {
    /// Begins a handshake. Returns its state and the bytes for rank 0.
    ///
    /// # Errors
    /// Returns an error if there are no random numbers.
    pub fn new(key: &JobKey, rank: usize) -> Result<(Self, [u8; HELLO_BYTES]), HandshakeError> {
        let rank = u32::try_from(rank).map_err(|_| HandshakeError::Unauthenticated)?;
        let mut state = key.builder(rank, |it| it.build_initiator())?;
        let mut hello = [0; HELLO_BYTES];
        hello[..8].copy_from_slice(MAGIC);
        hello[8..12].copy_from_slice(&rank.to_le_bytes());
        state.write_message(&[], &mut hello[12..]).map_err(|_| HandshakeError::Unauthenticated)?;
        Ok((Self { state }, hello))
    }

    /// Completes the handshake with rank 0's answer.
    ///
    /// # Errors
    /// Returns an error if the answer is not from a process that has the secret.
    pub fn finish(mut self, answer: &[u8; ANSWER_BYTES]) -> Result<(Sealer, Opener), HandshakeError> {
        self.state.read_message(answer, &mut []).map_err(|_| HandshakeError::Unauthenticated)?;
        halves(self.state)
    }
}

/// Answers a handshake on rank 0. Returns the rank that the other end claims, the bytes to send to it, and
/// the two halves of the connection.
///
/// # Errors
/// Returns an error if the other end is not a process of hir or does not have the secret.
pub fn answer(
    key: &JobKey,
    hello: &[u8; HELLO_BYTES],
) -> Result<(usize, [u8; ANSWER_BYTES], Sealer, Opener), HandshakeError> {
    let rank: [u8; 4] = hello[8..12].try_into().map_err(|_| HandshakeError::NotHir)?;
    let rank = u32::from_le_bytes(rank);
    if !hello.starts_with(MAGIC) {
        return Err(HandshakeError::NotHir);
    }
    if rank == 0 || rank as usize >= key.world {
        return Err(HandshakeError::Unauthenticated);
    }
    let mut state = key.builder(rank, |it| it.build_responder())?;
    state.read_message(&hello[12..], &mut []).map_err(|_| HandshakeError::Unauthenticated)?;
    let mut answer = [0; ANSWER_BYTES];
    state.write_message(&[], &mut answer).map_err(|_| HandshakeError::Unauthenticated)?;
    let (sealer, opener) = halves(state)?;
    Ok((rank as usize, answer, sealer, opener))
}

fn halves(state: HandshakeState) -> Result<(Sealer, Opener), HandshakeError> {
    let cipher = state.into_stateless_transport_mode().map_err(|_| HandshakeError::Unauthenticated)?;
    let cipher = Arc::new(cipher);
    let sealer = Sealer { cipher: Arc::clone(&cipher), nonce: 0 };
    Ok((sealer, Opener { cipher, nonce: 0 }))
}

/// Encrypts the messages that this end sends.
pub struct Sealer {
    cipher: Arc<StatelessTransportState>,
    nonce: u64,
}

impl Sealer {
    /// Returns the encrypted records of a message.
    ///
    /// # Errors
    /// Returns an error if the message is too long.
    pub fn seal(&mut self, message: &Message) -> io::Result<Vec<u8>> {
        let invalid = |fault: &'static str| io::Error::new(io::ErrorKind::InvalidInput, fault);
        let encoded = message.encode().map_err(|_| invalid("the message is too long"))?;
        let length = (encoded.len() as u32).to_le_bytes();
        let mut records = Vec::with_capacity(encoded.len() + (encoded.len() / MAX_CHUNK + 2) * TAG_BYTES);
        for chunk in [&length[..]].into_iter().chain(encoded.chunks(MAX_CHUNK)) {
            let start = records.len();
            records.resize(start + chunk.len() + TAG_BYTES, 0);
            self.cipher
                .write_message(self.nonce, chunk, &mut records[start..])
                .map_err(|_| invalid("the message cannot be encrypted"))?;
            self.nonce += 1;
        }
        Ok(records)
    }
}

/// Decrypts the messages that the other end sends.
pub struct Opener {
    cipher: Arc<StatelessTransportState>,
    nonce: u64,
}

impl Opener {
    /// Reads one message. Holds at most `MAX_MESSAGE` bytes and one record.
    ///
    /// # Errors
    /// Returns `InvalidData` for what a correct peer does not send; it contains `InvalidRecord` if the record
    /// was not encrypted by the peer. Other errors are those of the connection.
    pub fn read(&mut self, from: &mut impl io::Read) -> io::Result<Message> {
        let invalid = |fault: &str| io::Error::new(io::ErrorKind::InvalidData, fault.to_owned());
        let mut length = [0; LENGTH_BYTES];
        self.open(from, &mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length == 0 || length > MAX_MESSAGE {
            return Err(invalid("the message has a wrong length"));
        }
        let mut message = Vec::new();
        while message.len() < length {
            let start = message.len();
            message.resize(length.min(start + MAX_CHUNK), 0);
            self.open(from, &mut message[start..])?;
        }
        message::decode(&message).map_err(|fault| invalid(&fault.to_string()))
    }

    /// Reads and decrypts a record whose plaintext fills `plain`.
    fn open(&mut self, from: &mut impl io::Read, plain: &mut [u8]) -> io::Result<()> {
        let mut record = vec![0; plain.len() + TAG_BYTES];
        from.read_exact(&mut record)?;
        let opened = self.cipher.read_message(self.nonce, &record, plain);
        opened.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, InvalidRecord))?;
        self.nonce += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(secret: u8) -> JobKey {
        JobKey { secret: Secret::from_bytes([secret; 32]), job: "job".to_owned(), world: 4 }
    }

    type Halves = (Sealer, Opener);

    fn connect(mine: &JobKey, rank: usize, theirs: &JobKey) -> Result<(Halves, Halves), HandshakeError> {
        let (initiator, hello) = Initiator::new(mine, rank)?;
        let (found, bytes, sealer, opener) = answer(theirs, &hello)?;
        assert_eq!(found, rank);
        Ok((initiator.finish(&bytes)?, (sealer, opener)))
    }

    #[test]
    fn messages_arrive_encrypted() -> Result<(), Box<dyn std::error::Error>> {
        let ((mut sealer, mut back), (mut sealer_0, mut opener_0)) = connect(&key(1), 2, &key(1))?;
        let join = sealer.seal(&Message::Join)?;
        assert_eq!(join.len(), JOIN_BYTES);
        assert_eq!(opener_0.read(&mut join.as_slice())?, Message::Join);
        // A message of several records.
        let long = Message::GatheredData { more: false, bytes: b"program ".repeat(50_000) };
        let records = sealer_0.seal(&long)?;
        assert!(!records.windows(8).any(|it| it == b"program "));
        let mut damaged = records.clone();
        damaged[100_000] ^= 1;
        assert_eq!(back.read(&mut records.as_slice())?, long);
        // A replayed record and an altered record are refused.
        for bytes in [records, damaged] {
            let fault = back.read(&mut bytes.as_slice()).map_err(|it| it.kind());
            assert_eq!(fault, Err(io::ErrorKind::InvalidData));
        }
        Ok(())
    }

    #[test]
    fn nobody_else_completes_the_handshake() {
        let refused = |mine: &JobKey, rank, theirs: &JobKey| connect(mine, rank, theirs).err();
        let other = JobKey { job: "other".to_owned(), ..key(1) };
        let larger = JobKey { world: 5, ..key(1) };
        for stranger in [key(2), other, larger] {
            assert_eq!(refused(&stranger, 1, &key(1)), Some(HandshakeError::Unauthenticated));
        }
        // Ranks that do not exist in the job.
        assert_eq!(refused(&key(1), 4, &key(1)), Some(HandshakeError::Unauthenticated));
        assert_eq!(refused(&key(1), 0, &key(1)), Some(HandshakeError::Unauthenticated));
        assert!(matches!(answer(&key(1), &[b'G'; HELLO_BYTES]), Err(HandshakeError::NotHir)));
        // A greeting whose rank was replaced, from a process that has the secret.
        if let Ok((_, mut hello)) = Initiator::new(&key(1), 1) {
            hello[8] = 2;
            assert!(matches!(answer(&key(1), &hello), Err(HandshakeError::Unauthenticated)));
        }
    }

    /// A replayed greeting is answered, but its sender can neither read the answer nor continue.
    #[test]
    fn a_replay_does_not_join() -> Result<(), Box<dyn std::error::Error>> {
        let (initiator, hello) = Initiator::new(&key(1), 1)?;
        let (_, first, _, mut opener) = answer(&key(1), &hello)?;
        let (mut sealer, _) = initiator.finish(&first)?;
        let join = sealer.seal(&Message::Join)?;
        assert_eq!(opener.read(&mut join.as_slice())?, Message::Join);
        let (_, second, _, mut opener) = answer(&key(1), &hello)?;
        assert_ne!(first, second);
        assert!(opener.read(&mut join.as_slice()).is_err());
        Ok(())
    }
}
