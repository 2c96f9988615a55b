//! Opens program files as text, each with the front end that reads it (`hir_front::FRONT_ENDS`).

use std::{
    io::{self, IsTerminal},
    path::Path,
};

use grammar::Source;
use hir_hang::unpack_gzip;

use crate::session::Session;
use hir_process::input_file::read_stream;

/// Maximum size of a text in bytes: positions have 32 bits.
const MAX_TEXT: u64 = u32::MAX as u64;

/// Reads a program and, behind its text, the files with fusions that its kernels execute.
///
/// # Errors
/// Returns the name of the file that cannot be read, and the error of `open`.
pub fn open_program(
    session: &Session,
    path: &str,
    fusions: &[String],
) -> Result<Source, (String, io::Error)> {
    let named = |path: &str| open(session, path).map_err(|fault| (path.to_owned(), fault));
    let program = named(path)?;
    let program =
        fusions.iter().try_fold(program, |program, path| Ok(program.with_fusions(&named(path)?)))?;
    if program.text.len() as u64 > MAX_TEXT {
        let fault = io::Error::new(io::ErrorKind::FileTooLarge, "too many bytes with its fusions");
        return Err((path.to_owned(), fault));
    }
    Ok(program)
}

/// Reads a file, or the standard input of the process for `-`. `grammar::encode` returns the bytes of the text, also
/// those that are not UTF-8.
///
/// # Errors
/// Returns the error of the operating system, or an error for a text whose positions do not fit into 32
/// bits.
pub fn open(session: &Session, path: &str) -> io::Result<Source> {
    let (name, bytes) = bytes(session, path)?;
    let text = decoded(bytes);
    if text.len() as u64 > MAX_TEXT {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too many bytes that are not UTF-8"));
    }
    Ok(hir_front::source(name, text))
}

/// Reads the bytes of a file, unpacked if it is compressed by gzip, with the name by which it is reported.
///
/// # Errors
/// As for `open`.
pub fn bytes(session: &Session, path: &str) -> io::Result<(String, Vec<u8>)> {
    let (name, bytes) = match path {
        "-" => {
            if io::stdin().is_terminal() {
                session.notice(
                    "reading the program from the terminal; Ctrl-D ends it, `--help` shows other ways",
                );
            }
            ("<stdin>".to_owned(), read_stream(io::stdin().lock())?)
        }
        _ => (path.to_owned(), session.files.read_at_most(Path::new(path), MAX_TEXT)?),
    };
    let bytes = if bytes.starts_with(&[0x1f, 0x8b]) { unpack_gzip(&bytes)? } else { bytes };
    Ok((name, bytes))
}

/// Returns the text of a file, decoded if a mark says that it is UTF-16.
fn decoded(bytes: Vec<u8>) -> String {
    let units: fn([u8; 2]) -> u16 = match bytes.first_chunk::<2>() {
        Some([0xff, 0xfe]) => u16::from_le_bytes,
        Some([0xfe, 0xff]) => u16::from_be_bytes,
        _ => return grammar::decode(bytes),
    };
    let (pairs, _) = bytes.get(2..).unwrap_or(&[]).as_chunks();
    char::decode_utf16(pairs.iter().map(|it| units(*it))).map(|it| it.unwrap_or('\u{fffd}')).collect()
}
