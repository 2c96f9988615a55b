//! A server of hir that a test talks to over its standard input and output.

use std::{
    io::BufReader,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use libtest_mimic::Failed;

use super::ROOT;

/// A server and its streams.
pub struct ServerProcess {
    pub process: Child,
    pub input: ChildStdin,
    pub output: BufReader<ChildStdout>,
    requests: u32,
}

impl ServerProcess {
    /// Starts `hir` with these arguments, in the root of the repository.
    pub fn start(arguments: &[&str]) -> Result<Self, Failed> {
        let mut process = Command::new(env!("CARGO_BIN_EXE_hir"))
            .args(arguments)
            .current_dir(ROOT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let input = process.stdin.take().ok_or("no standard input")?;
        let output = BufReader::new(process.stdout.take().ok_or("no standard output")?);
        Ok(Self { process, input, output, requests: 0 })
    }

    /// Returns the number of the next request.
    pub fn next_request(&mut self) -> u32 {
        self.requests += 1;
        self.requests
    }
}
