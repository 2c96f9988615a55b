//! Selects the process that prints the report of a lost job when rank 0, which prints it otherwise, is lost.
//!
//! The other ranks have no connection to each other. The first process of a host that creates a file named after
//! the job prints the report. A file that is older than `MAX_AGE` was left by another job of this name.

use std::{
    collections::hash_map::DefaultHasher,
    fs::{self, File},
    hash::{Hash, Hasher},
    path::Path,
    thread,
    time::Duration,
};

/// The age up to which a file belongs to this job. All ranks notice the loss of rank 0 within a few seconds.
const MAX_AGE: Duration = Duration::from_secs(20);
/// How long the file remains, for processes that notice the loss later.
const HELD: Duration = Duration::from_secs(2);

/// Returns true in the first process of this host that calls it for a job, and in every process if the file
/// cannot be created.
pub(super) fn is_first(job: &str) -> bool {
    let mut hasher = DefaultHasher::new();
    job.hash(&mut hasher);
    let path = std::env::temp_dir().join(format!("hir-report-{:016x}", hasher.finish()));
    if !claim(&path) {
        return false;
    }
    // If the process ends before, the file becomes too old.
    let _ = thread::Builder::new().spawn(move || {
        thread::sleep(HELD);
        let _ = fs::remove_file(&path);
    });
    true
}

/// Creates a file. Returns false if it exists and is new.
fn claim(path: &Path) -> bool {
    if File::create_new(path).is_ok() {
        return true;
    }
    let age = fs::metadata(path).and_then(|it| it.modified()).map(|it| it.elapsed().unwrap_or_default());
    match age {
        Ok(age) if age <= MAX_AGE => false,
        Ok(_) | Err(_) => {
            // Of several processes that replace an old file, one creates the new one.
            let _ = fs::remove_file(path);
            File::create_new(path).is_ok() || !path.exists()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_claims_a_report() -> std::io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("report");
        assert_eq!([claim(&path), claim(&path)], [true, false]);
        let old = fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
        File::options().write(true).open(&path)?.set_times(old)?;
        assert_eq!([claim(&path), claim(&path)], [true, false]);
        assert!(claim(&folder.path().join("no such folder/report")));
        Ok(())
    }
}
