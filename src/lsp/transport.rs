//! Messages on standard input and output, by the base protocol of the Language Server Protocol 3.17: headers, and JSON of the stated length.
//!
//! A message that is no JSON is answered, and the next one is read. Bytes are allocated as they come, not as the header states them.

use std::{
    collections::HashSet,
    io::{self, BufRead, Read, Write},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
};

use crossbeam_channel::{Sender, bounded, unbounded};
use lsp_server::{Connection, ErrorCode, Message, RequestId};
use lsp_types::notification::{self, Notification as _};
use serde_json::{Value, json};

/// The most bytes of a message. An editor sends whole documents.
const MAX_MESSAGE: u64 = 1 << 28;
/// The most bytes of the headers of a message.
const MAX_HEADERS: u64 = 1 << 12;

/// The requests that the editor has cancelled before they were answered.
pub(crate) type Cancelled = Arc<Mutex<HashSet<RequestId>>>;

/// The threads that read and write.
pub(crate) struct Threads {
    reader: JoinHandle<io::Result<()>>,
    writer: JoinHandle<io::Result<()>>,
}

impl Threads {
    /// Waits until all is written, and returns what could not be read or written.
    pub(crate) fn join(self) -> io::Result<()> {
        let lost = |_| io::Error::other("a thread has ended");
        self.writer.join().map_err(lost)??;
        self.reader.join().map_err(lost)?
    }
}

/// Connects to the editor that has started this process.
///
/// # Errors
/// The system refuses a thread.
pub(crate) fn stdio() -> io::Result<(Connection, Cancelled, Threads)> {
    let cancelled = Cancelled::default();
    let (sender, outgoing) = bounded::<Message>(0);
    // A request that waits here may be cancelled.
    let (incoming, receiver) = unbounded();
    let writer = thread::Builder::new()
        .name("writer".to_owned())
        .spawn(move || outgoing.into_iter().try_for_each(|it| it.write(&mut io::stdout().lock())))?;
    let shared = Arc::clone(&cancelled);
    let reader = thread::Builder::new()
        .name("reader".to_owned())
        .spawn(move || read_all(&mut io::stdin().lock(), &incoming, &shared))?;
    Ok((Connection { sender, receiver }, cancelled, Threads { reader, writer }))
}

/// Reads messages until the editor ends the session or closes the connection.
fn read_all(input: &mut impl BufRead, to: &Sender<Message>, cancelled: &Cancelled) -> io::Result<()> {
    while let Some(text) = read_text(input)? {
        let message: Message = match serde_json::from_slice(&text) {
            Ok(message) => message,
            Err(fault) => {
                refuse(&text, &fault)?;
                continue;
            }
        };
        let is_exit =
            matches!(&message, Message::Notification(it) if it.method == notification::Exit::METHOD);
        if let Message::Notification(it) = &message
            && it.method == notification::Cancel::METHOD
            && let Ok(id) = serde_json::from_value(it.params["id"].clone())
        {
            cancelled.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
        }
        if to.send(message).is_err() || is_exit {
            break;
        }
    }
    Ok(())
}

/// Answers a message that cannot be read.
fn refuse(text: &[u8], fault: &serde_json::Error) -> io::Result<()> {
    let value: Option<Value> = serde_json::from_slice(text).ok();
    let code = if value.is_some() { ErrorCode::InvalidRequest } else { ErrorCode::ParseError } as i32;
    let id = value.and_then(|it| it.get("id").cloned()).unwrap_or_default();
    let message = format!("the message cannot be read: {fault}");
    let answer = json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}).to_string();
    let mut output = io::stdout().lock();
    write!(output, "Content-Length: {}\r\n\r\n{answer}", answer.len())?;
    output.flush()
}

/// Reads the text of a message; `None` at the end.
fn read_text(input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut length = None;
    let mut headers = input.take(MAX_HEADERS);
    loop {
        let mut line = Vec::new();
        if headers.read_until(b'\n', &mut line)? == 0 {
            if headers.limit() == 0 {
                return Err(invalid(format!("the headers of a message have more than {MAX_HEADERS} bytes")));
            }
            return Ok(None);
        }
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| invalid(format!("`{line}` is no header")))?;
        if name.eq_ignore_ascii_case("Content-Length") {
            let bytes = value.trim().parse().ok().filter(|it| *it <= MAX_MESSAGE);
            let bytes =
                bytes.ok_or_else(|| invalid(format!("`{line}`: expected at most {MAX_MESSAGE} bytes")))?;
            length = Some(bytes);
        }
    }
    let length = length.ok_or_else(|| invalid("a message has no Content-Length".to_owned()))?;
    let mut text = Vec::new();
    input.take(length).read_to_end(&mut text)?;
    if (text.len() as u64) < length {
        return Err(invalid(format!("a message ends after {} of {length} bytes", text.len())));
    }
    Ok(Some(text))
}
