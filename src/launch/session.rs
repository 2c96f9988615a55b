//! The encrypted connection between two processes of a job.
//!
//! A connection begins with a Noise handshake (pattern NN with the job's secret as pre-shared key), which only processes that
//! hold the secret complete, and whose prologue binds the version, the job, the number of ranks and the rank:
//!
//! ```text
//! rank r -> rank 0   MAGIC, r, psk, e     60 bytes
//! rank 0 -> rank r   e, ee                48 bytes
//! rank r -> rank 0   Message::Join        the first encrypted message; a replayed first line cannot produce it
//! ```
//!
//! After it, a message is a sequence of encrypted records: a length of two bytes, then the ciphertext. The plaintext of the
//! first record begins with the length of the whole message, four bytes. Numbers are little-endian.

use std::{io, sync::Arc};

use snow::{Builder, HandshakeState, StatelessTransportState};

use super::{
    message::{self, MAX_MESSAGE, Message, VERSION},
    secret::Secret,
};

/// What a connection begins with.
const MAGIC: &[u8; 8] = b"hir-rank";
/// The Noise protocol.
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Bytes of a handshake message: an ephemeral key and a tag.
const NOISE_MESSAGE_BYTES: usize = 32 + TAG_BYTES;
/// Bytes of an authentication tag.
const TAG_BYTES: usize = 16;
/// Bytes of a record's ciphertext at most, as Noise has it.
const MAX_RECORD_BYTES: usize = 65_535;
/// Bytes of the length in front of a message.
const LENGTH_BYTES: usize = 4;

/// Bytes of the first message of a connection.
pub const HELLO_BYTES: usize = 8 + 4 + NOISE_MESSAGE_BYTES;
/// Bytes of rank 0's answer.
pub const ANSWER_BYTES: usize = NOISE_MESSAGE_BYTES;
/// Bytes of the record that contains `Message::Join`.
pub const JOIN_BYTES: usize = 2 + LENGTH_BYTES + 1 + TAG_BYTES;

/// Which job a process belongs to: what both ends of a connection have to agree on.
#[derive(Clone)]
pub struct JobKey {
    /// Known to the processes of the job only.
    pub secret: Secret,
    /// The launcher's name for the job, and where its ranks meet.
    pub job: String,
    /// Number of ranks.
    pub world: usize,
}

/// A record that came over a connection and is not what its other end sent, or is not the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a record that its peer did not encrypt, or not as the next one")]
pub struct InvalidRecord;

/// Why a connection was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The other end is not a process of hir.
    #[error("it does not follow hir's protocol")]
    NotHir,
    /// The other end has another secret, or is of another job, number of ranks or version.
    #[error("it has another secret, or belongs to another job")]
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

/// A rank's end of a handshake.
pub struct Initiator {
    state: HandshakeState,
}

impl Initiator {
    /// Begins a handshake; the bytes are for rank 0.
    ///
    /// # Errors
    /// No random numbers.
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
    /// An answer that the holder of the secret did not give.
    pub fn finish(mut self, answer: &[u8; ANSWER_BYTES]) -> Result<(Sealer, Opener), HandshakeError> {
        self.state.read_message(answer, &mut []).map_err(|_| HandshakeError::Unauthenticated)?;
        halves(self.state)
    }
}

/// Rank 0's end of a handshake: the rank that the other end claims, the bytes for it, and the connection's halves.
///
/// # Errors
/// A stranger, or a process that does not hold the secret.
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

/// Encrypts what this end sends.
pub struct Sealer {
    cipher: Arc<StatelessTransportState>,
    nonce: u64,
}

impl Sealer {
    /// The records of a message.
    ///
    /// # Errors
    /// A message that is too long.
    pub fn seal(&mut self, message: &Message) -> io::Result<Vec<u8>> {
        let invalid = |fault: &'static str| io::Error::new(io::ErrorKind::InvalidInput, fault);
        let encoded = message.encode().map_err(|_| invalid("a message that is too long"))?;
        let plain = [&(encoded.len() as u32).to_le_bytes()[..], &encoded].concat();
        let mut records =
            Vec::with_capacity(plain.len() + (plain.len() / MAX_RECORD_BYTES + 1) * (2 + TAG_BYTES));
        for chunk in plain.chunks(MAX_RECORD_BYTES - TAG_BYTES) {
            let start = records.len();
            records.extend(((chunk.len() + TAG_BYTES) as u16).to_le_bytes());
            records.resize(start + 2 + chunk.len() + TAG_BYTES, 0);
            self.cipher
                .write_message(self.nonce, chunk, &mut records[start + 2..])
                .map_err(|_| invalid("a message that cannot be encrypted"))?;
            self.nonce += 1;
        }
        Ok(records)
    }
}

/// Decrypts what the other end sends.
pub struct Opener {
    cipher: Arc<StatelessTransportState>,
    nonce: u64,
}

impl Opener {
    /// Reads one message. It holds at most `MAX_MESSAGE` bytes and one record.
    ///
    /// # Errors
    /// `InvalidData` for what the holder of the secret does not send, `Altered` within for what nobody sent who holds it; else
    /// what the connection says.
    pub fn read(&mut self, from: &mut impl io::Read) -> io::Result<Message> {
        let invalid = |fault: &str| io::Error::new(io::ErrorKind::InvalidData, fault.to_owned());
        let mut message = Vec::new();
        let mut wanted = None;
        let mut record = Vec::new();
        loop {
            let mut length = [0; 2];
            from.read_exact(&mut length)?;
            record.resize(usize::from(u16::from_le_bytes(length)), 0);
            from.read_exact(&mut record)?;
            let start = message.len();
            message.resize(start + record.len(), 0);
            let count = self
                .cipher
                .read_message(self.nonce, &record, &mut message[start..])
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, InvalidRecord))?;
            self.nonce += 1;
            message.truncate(start + count);
            let length = *wanted.get_or_insert_with(|| {
                message
                    .first_chunk::<LENGTH_BYTES>()
                    .map_or(usize::MAX, |it| u32::from_le_bytes(*it) as usize)
            });
            // An empty record brings the message no further: a peer could send such records for ever.
            if length > MAX_MESSAGE || count == 0 || message.len() > LENGTH_BYTES + length {
                return Err(invalid("a message of a wrong length"));
            }
            if message.len() == LENGTH_BYTES + length {
                return message::decode(&message[LENGTH_BYTES..])
                    .map_err(|fault| invalid(&fault.to_string()));
            }
        }
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
        // Of several records.
        let long = Message::GatheredData { more: false, bytes: b"program ".repeat(50_000) };
        let records = sealer_0.seal(&long)?;
        assert!(!records.windows(8).any(|it| it == b"program "));
        let mut damaged = records.clone();
        damaged[100_000] ^= 1;
        assert_eq!(back.read(&mut records.as_slice())?, long);
        // Neither again, nor altered.
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
        // A rank that the job does not have.
        assert_eq!(refused(&key(1), 4, &key(1)), Some(HandshakeError::Unauthenticated));
        assert_eq!(refused(&key(1), 0, &key(1)), Some(HandshakeError::Unauthenticated));
        assert!(matches!(answer(&key(1), &[b'G'; HELLO_BYTES]), Err(HandshakeError::NotHir)));
        // Another rank's name in front of the message of a process that holds the secret.
        if let Ok((_, mut hello)) = Initiator::new(&key(1), 1) {
            hello[8] = 2;
            assert!(matches!(answer(&key(1), &hello), Err(HandshakeError::Unauthenticated)));
        }
    }

    /// Who repeats what was on the wire is answered, and can neither read the answer nor go on.
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
