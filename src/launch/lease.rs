//! A process that another one started ends when that one does, however it ends: it holds the reading end of a pipe
//! whose writing end only its parent has, and the operating system closes that with the parent. What comes by the pipe asks for
//! a report, as SIGUSR1 does.

use std::{
    io::{self, Read},
    thread,
};

use signal_hook::{consts::SIGUSR1, low_level};

use crate::exit::Exit;

/// Set for children whose standard input is their lease.
pub const VARIABLE: &str = "HIR_LEASE";

/// Ends this process when its standard input closes, if that is its lease.
///
/// # Errors
/// No thread.
pub fn keep(variable: impl Fn(&str) -> Option<String>) -> io::Result<()> {
    if variable(VARIABLE).as_deref() != Some("stdin") {
        return Ok(());
    }
    let wait = || {
        let mut bytes = [0; 64];
        while io::stdin().lock().read(&mut bytes).is_ok_and(|count| count > 0) {
            let _ = low_level::raise(SIGUSR1);
        }
        Exit::Hang.now()
    };
    thread::Builder::new().name("hir-lease".to_owned()).spawn(wait).map(|_| ())
}
