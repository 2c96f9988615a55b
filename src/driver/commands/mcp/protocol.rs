//! The messages of the protocol: JSON-RPC 2.0, one message a line.

use std::io::{self, BufRead, Read};

use serde_json::{Value, json};

/// The longest message, in bytes. Longer ones are refused.
pub(super) const MAX_MESSAGE: usize = 16 << 20;

/// The versions of the protocol that hir speaks, the newest first. What hir uses is the same in all of them.
const VERSIONS: [&str; 3] = ["2025-06-18", "2025-03-26", "2024-11-05"];

/// A message of the agent.
#[derive(Debug, PartialEq)]
pub(super) enum Incoming {
    /// It has an answer.
    Request { id: Value, method: String, params: Value },
    /// It has none.
    Notification { method: String, params: Value },
}

/// Why a request has no result.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RpcError {
    /// The code of JSON-RPC.
    code: i32,
    /// The reason, for the agent.
    message: String,
}

impl RpcError {
    /// The method is unknown.
    pub(super) fn no_method(method: &str) -> Self {
        Self { code: -32601, message: format!("hir does not answer `{method}`") }
    }

    /// The parameters are not those of the method.
    pub(super) fn parameters(message: impl Into<String>) -> Self {
        Self { code: -32602, message: message.into() }
    }

    fn request(message: &str) -> Self {
        Self { code: -32600, message: message.to_owned() }
    }
}

/// Reads the next line. Returns whether there is one. Of a line that is too long, as much is kept as shows that.
///
/// # Errors
/// The input cannot be read.
pub(super) fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let most = MAX_MESSAGE as u64 + 1;
    let read = input.by_ref().take(most).read_until(b'\n', line)?;
    if read as u64 == most && line.last() != Some(&b'\n') {
        // The rest of the line.
        loop {
            let part = input.fill_buf()?;
            let end = part.iter().position(|it| *it == b'\n');
            let used = end.map_or(part.len(), |it| it + 1);
            let is_last = end.is_some() || part.is_empty();
            input.consume(used);
            if is_last {
                break;
            }
        }
    }
    Ok(read > 0)
}

/// Reads a message. An empty line, and the answer to a request, are none.
///
/// # Errors
/// The line is no message; with the id of the request if it has one.
pub(super) fn parse(line: &[u8]) -> Result<Option<Incoming>, (Value, RpcError)> {
    if line.len() > MAX_MESSAGE {
        let message =
            format!("a message has at most {} MiB: give a `path` instead of a text", MAX_MESSAGE >> 20);
        return Err((Value::Null, RpcError::request(&message)));
    }
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let message: Value = serde_json::from_slice(line)
        .map_err(|fault| (Value::Null, RpcError { code: -32700, message: fault.to_string() }))?;
    let id = message.get("id").cloned();
    let refuse = |reason| Err((id.clone().unwrap_or_default(), RpcError::request(reason)));
    if !message.is_object() {
        return refuse("a message is one JSON object");
    }
    let params = message.get("params").cloned().unwrap_or(Value::Null);
    match (message.get("method"), &id) {
        (Some(Value::String(method)), None) => {
            Ok(Some(Incoming::Notification { method: method.clone(), params }))
        }
        (Some(Value::String(method)), Some(Value::String(_) | Value::Number(_))) => {
            Ok(Some(Incoming::Request { id: id.unwrap_or_default(), method: method.clone(), params }))
        }
        (Some(Value::String(_)), Some(_)) => refuse("an id is a text or a number"),
        (None, Some(_)) if message.get("result").is_some() || message.get("error").is_some() => Ok(None),
        (_, _) => refuse("a request has a `method`"),
    }
}

/// Returns the version of the protocol for an agent that asks for `wanted`.
pub(super) fn version(wanted: Option<&str>) -> &'static str {
    let [newest, ..] = VERSIONS;
    VERSIONS.into_iter().find(|it| Some(*it) == wanted).unwrap_or(newest)
}

/// Returns the answer to a request.
pub(super) fn response(id: &Value, answer: Result<Value, RpcError>) -> Value {
    match answer {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(RpcError { code, message }) => {
            json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_refused_and_the_next_one_read() -> io::Result<()> {
        let text = [vec![b' '; MAX_MESSAGE + 10], b"\n{\"method\":\"m\"}\n".to_vec()].concat();
        let mut input = io::BufReader::new(&text[..]);
        let mut line = Vec::new();
        assert!(read_line(&mut input, &mut line)?);
        assert!(parse(&line).is_err());
        assert!(read_line(&mut input, &mut line)?);
        let expected = Incoming::Notification { method: "m".to_owned(), params: Value::Null };
        assert_eq!(parse(&line), Ok(Some(expected)));
        assert!(!read_line(&mut input, &mut line)?);
        Ok(())
    }

    #[test]
    fn what_is_no_message_has_the_code_of_json_rpc() {
        let code = |line: &str| parse(line.as_bytes()).map_err(|it| (it.0, it.1.code));
        assert_eq!(code("{"), Err((Value::Null, -32700)));
        assert_eq!(code("[]"), Err((Value::Null, -32600)));
        assert_eq!(code("{\"id\":3}"), Err((json!(3), -32600)));
        assert_eq!(code("{\"id\":null,\"method\":\"m\"}"), Err((Value::Null, -32600)));
        assert_eq!(code("{\"id\":3,\"result\":{}}"), Ok(None));
        assert_eq!(code(" "), Ok(None));
        assert_eq!((version(Some("2024-11-05")), version(Some("1"))), ("2024-11-05", "2025-06-18"));
    }
}
