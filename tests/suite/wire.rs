//! Invariants for arbitrary bytes that a process of a job receives, at both ends of a connection.

use std::io;

use hir_launch::{
    message::{self, Message},
    secret::Secret,
    session::{self, ANSWER_BYTES, HELLO_BYTES, Initiator, JobKey},
};
use hir_process::exit::Exit;

/// Feeds bytes to both ends of a connection: before it is authenticated, after it, and as the content of
/// messages.
///
/// # Errors
/// Returns an error if the bytes are accepted as those of a process of the job, or if a failure decodes with
/// a success exit code.
pub fn run(bytes: &[u8]) -> Result<(), String> {
    let said = |what: &str| Err(format!("{what}: {bytes:?}"));
    let secret =
        Secret::from_text("0123456789abcdef0123456789abcdef", "a test").map_err(|it| it.to_string())?;
    let key = JobKey { secret, job: "job".to_owned(), world: 4 };
    let (initiator, hello) = Initiator::new(&key, 1).map_err(|it| it.to_string())?;
    // Rank 0 receives the bytes, and a greeting damaged by them.
    let mut greeting = [0; HELLO_BYTES];
    fill(&mut greeting, bytes);
    let mut damaged = hello;
    damaged.iter_mut().zip(bytes).for_each(|(it, other)| *it ^= other);
    for it in [greeting, damaged] {
        // A replayed greeting is answered but leads no further. The fuzzer can produce it, because it sees
        // the compared bytes.
        let Ok((_, _, _, mut opener)) = session::answer(&key, &it) else { continue };
        if it != hello && opener.read(&mut io::Cursor::new(bytes)).is_ok() {
            return said("a process without the secret joined");
        }
    }
    // Both ends of an authenticated connection.
    let (_, answer, mut sealer, mut opener) = session::answer(&key, &hello).map_err(|it| it.to_string())?;
    let (_, mut theirs) = initiator.finish(&answer).map_err(|it| it.to_string())?;
    let mut records = sealer.seal(&Message::Welcome(7)).map_err(|it| it.to_string())?;
    let whole = records.clone();
    records.iter_mut().zip(bytes).for_each(|(it, other)| *it ^= other);
    let mut from = records.as_slice();
    if records != whole && theirs.read(&mut from).is_ok() {
        return said("a damaged record was read");
    }
    // The length, with its tag, ends the connection before more is read.
    if records[..20] != whole[..20] && records.len() - from.len() > 20 {
        return said("bytes behind a damaged length were read");
    }
    if opener.read(&mut io::Cursor::new(bytes)).is_ok() {
        return said("a record of a process without the secret was read");
    }
    // Another rank receives the bytes instead of an answer.
    let (initiator, _) = Initiator::new(&key, 2).map_err(|it| it.to_string())?;
    let mut answer = [0; ANSWER_BYTES];
    fill(&mut answer, bytes);
    if initiator.finish(&answer).is_ok() {
        return said("a process without the secret was accepted as rank 0");
    }
    let Ok(message) = message::decode::<Message>(bytes) else { return Ok(()) };
    let exit = match &message {
        Message::Fault(fault) => fault.exit().into(),
        Message::ExitCode(exit) => Exit::from(*exit),
        _ => Exit::InternalError,
    };
    if exit == Exit::Success {
        return said("a failure with exit code 0");
    }
    match message.encode().map(|it| message::decode(&it) == Ok(message)) {
        Ok(true) => Ok(()),
        Ok(false) | Err(_) => said("a message that changes when it is encoded again"),
    }
}

fn fill(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}
