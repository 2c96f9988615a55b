//! Opens program files.

use std::{
    io::{self, IsTerminal, Write},
    path::Path,
};

use grammar::source::Source;

use hir_process::{input_file, tool_name::tool_name};

/// Maximum size of a text in bytes: positions have 32 bits.
const MAX_TEXT: u64 = u32::MAX as u64;

/// Reads a file, or standard input for `-`. `grammar::encode` returns the bytes of the text, also
/// those that are not UTF-8.
///
/// # Errors
/// Returns the error of the operating system, or an error for a text whose positions do not fit into 32
/// bits.
pub fn open(path: &str) -> io::Result<Source> {
    let (name, bytes) = match path {
        "-" => {
            if io::stdin().is_terminal() {
                let note = "reading the program from the terminal; Ctrl-D ends it, `--help` shows other ways";
                let _ = writeln!(io::stderr(), "{}: {note}", tool_name());
            }
            ("<stdin>".to_owned(), input_file::read_stream(io::stdin().lock())?)
        }
        _ => (path.to_owned(), input_file::read_at_most(Path::new(path), MAX_TEXT)?),
    };
    let text = grammar::decode(bytes);
    if text.len() as u64 > MAX_TEXT {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too many bytes that are not UTF-8"));
    }
    Ok(Source::new(name, text))
}
