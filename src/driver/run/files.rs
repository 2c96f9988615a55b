//! Writes the files of a run: reports, timelines, tables and orders of steps.

use std::path::Path;

use super::failure::{JobFailure, Result};
use hir_process::atomic_file;

/// Replaces the contents of a file, or creates it.
///
/// # Errors
/// The file cannot be written.
pub fn write_file(path: &Path, text: &str) -> Result<()> {
    atomic_file::write(path, text.as_bytes()).map_err(|fault| cannot_write(path, fault.to_string()))
}

/// Returns the failure for a file that cannot be written.
pub(crate) fn cannot_write(path: &Path, cause: String) -> JobFailure {
    JobFailure::CannotWrite { path: path.to_owned(), cause }
}
