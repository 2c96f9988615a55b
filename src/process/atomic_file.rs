//! Writes files atomically: a reader of the path sees either the old contents or the new contents, never a
//! part of either.
//!
//! The new contents are written to a temporary file in the target's folder, flushed to the storage device,
//! and renamed to the target. A failure at any step leaves the target unchanged and removes the temporary
//! file. All tools write their files with this module; a test rejects other code in `src` that writes files.
//!
//! Symbolic links are followed and preserved. If a file has several hard links, only the one that is named
//! gets the new contents, because writing to the shared file could leave it incomplete.

use std::{
    fs::{self, File, Metadata, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{OFlags, fcntl_setfl},
    io::Errno,
};
use tempfile::NamedTempFile;

use crate::out_of_memory::{TemporaryPath, remove_on_out_of_memory};

/// Bytes per write.
const CHUNK: usize = 1 << 16;
/// How long a FIFO may have no reader.
const READER_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of symbolic links that are followed, as in Linux.
const MAX_LINKS: usize = 40;
/// The permission bits of a new file, before the umask of the process.
const NEW_FILE: u32 = 0o666;
/// The permission bits of a mode.
const PERMISSIONS: u32 = 0o7777;

/// Locked while a file is being replaced.
static WRITING: Mutex<()> = Mutex::new(());

/// Waits until no file is being replaced, and blocks further writes while the guard exists. For a process
/// that is about to end.
pub fn block_writers() -> MutexGuard<'static, ()> {
    WRITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replaces the contents of a file, or creates it.
///
/// The permissions of an existing file are preserved, and its owner if the system permits that. A symbolic
/// link is preserved, and its target is written. `-` and `/dev/stdout` denote standard output. FIFOs and
/// devices are written directly.
///
/// # Errors
/// Returns the error of the operating system; a regular file is then unchanged.
pub fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    write_in_steps(path, contents, &mut |_| Ok(()))
}

/// Checks that `write` can replace or create a regular file: creates and removes a temporary file in its folder. The file
/// itself does not change. Other targets are not opened.
///
/// # Errors
/// As `write`.
pub fn check(path: &Path) -> io::Result<()> {
    let _writing = block_writers();
    match resolve(path)? {
        Target::Stdout | Target::Stderr | Target::Direct(_) => Ok(()),
        Target::Regular(path, folder, existing) => new_file(&path, &folder, existing.is_some()).map(drop),
    }
}

/// Returns the path that `write` writes: the path without symbolic links, as far as it exists.
pub fn destination(path: &Path) -> PathBuf {
    match resolve(path) {
        Ok(Target::Regular(path, ..) | Target::Direct(path)) => path,
        Ok(Target::Stdout | Target::Stderr) | Err(_) => path.to_owned(),
    }
}

/// Creates the folder of a path and its parents, then writes the file.
///
/// # Errors
/// As `write`.
pub fn write_in_new_folder(path: &Path, contents: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    write(path, contents)
}

/// The steps of replacing a file, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Create,
    Write,
    Permissions,
    Flush,
    Rename,
}

/// The kind of file that a path names.
enum Target {
    Stdout,
    Stderr,
    /// A FIFO, a device, or an open file of this process.
    Direct(PathBuf),
    /// A regular file, its folder, and the metadata of the existing file.
    Regular(PathBuf, PathBuf, Option<Metadata>),
}

/// Opens a FIFO or a device. Opening a FIFO waits for a reader, but not without end.
fn open_direct(path: &Path) -> io::Result<File> {
    let open =
        |flags: OFlags| OpenOptions::new().append(true).custom_flags(flags.bits().cast_signed()).open(path);
    if !fs::metadata(path)?.file_type().is_fifo() {
        return open(OFlags::empty());
    }
    let start = Instant::now();
    loop {
        match open(OFlags::NONBLOCK) {
            Ok(writer) => {
                // Opening it again would wait without end for another reader if this one has gone.
                fcntl_setfl(&writer, OFlags::APPEND)?;
                return Ok(writer);
            }
            Err(fault) if fault.raw_os_error() != Some(Errno::NXIO.raw_os_error()) => return Err(fault),
            Err(fault) if start.elapsed() > READER_WAIT => {
                let message = format!("no process reads this FIFO (waited {READER_WAIT:?})");
                return Err(io::Error::new(fault.kind(), message));
            }
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Writes a file; `before` is called before each step, and an error that it returns is the error of the step.
fn write_in_steps(
    path: &Path,
    contents: &[u8],
    before: &mut dyn FnMut(Step) -> io::Result<()>,
) -> io::Result<()> {
    fn all(mut to: impl Write, contents: &[u8]) -> io::Result<()> {
        to.write_all(contents)?;
        to.flush()
    }
    match resolve(path)? {
        Target::Stdout => all(io::stdout().lock(), contents),
        Target::Stderr => all(io::stderr().lock(), contents),
        Target::Direct(path) => all(open_direct(&path)?, contents),
        Target::Regular(path, folder, existing) => {
            let _writing = block_writers();
            replace(&path, &folder, existing.as_ref(), contents, before)
        }
    }
}

/// Creates the temporary file that replaces `path`, and registers it to be removed if memory is exhausted.
fn new_file(path: &Path, folder: &Path, exists: bool) -> io::Result<(NamedTempFile, TemporaryPath)> {
    if exists {
        // A rename would replace a file that the user has no permission to write.
        drop(OpenOptions::new().write(true).open(path)?);
    }
    let new = tempfile::Builder::new()
        .prefix(".hir-")
        .suffix(".tmp")
        .permissions(Permissions::from_mode(NEW_FILE))
        .tempfile_in(folder);
    let new = new.map_err(|fault| {
        let (kind, folder) = (fault.kind(), folder.display());
        io::Error::new(kind, format!("{kind}: no new file can be created in {folder}"))
    })?;
    let temporary = remove_on_out_of_memory(new.path());
    Ok((new, temporary))
}

fn replace(
    path: &Path,
    folder: &Path,
    existing: Option<&Metadata>,
    contents: &[u8],
    before: &mut dyn FnMut(Step) -> io::Result<()>,
) -> io::Result<()> {
    before(Step::Create)?;
    let (mut new, _temporary) = new_file(path, folder, existing.is_some())?;
    for chunk in contents.chunks(CHUNK) {
        before(Step::Write)?;
        new.as_file_mut().write_all(chunk)?;
    }
    if let Some(old) = existing {
        before(Step::Permissions)?;
        let now = new.as_file().metadata()?;
        if (now.uid(), now.gid()) != (old.uid(), old.gid()) {
            // Only a privileged user can change the owner.
            let _ = fchown(new.as_file(), Some(old.uid()), Some(old.gid()));
        }
        let mode = old.mode() & PERMISSIONS;
        if now.mode() & PERMISSIONS != mode {
            new.as_file().set_permissions(Permissions::from_mode(mode))?;
        }
    }
    before(Step::Flush)?;
    new.as_file().sync_all()?;
    before(Step::Rename)?;
    new.persist(path).map_err(|it| it.error)?;
    // The file is complete. Some file systems cannot flush a folder.
    let _ = File::open(folder).and_then(|it| it.sync_all());
    Ok(())
}

/// Follows symbolic links to the file that the path names, whether it exists or not.
fn resolve(path: &Path) -> io::Result<Target> {
    if path == Path::new("-") {
        return Ok(Target::Stdout);
    }
    // `Path` ignores a trailing slash and a trailing `/.`; without this check, a file would be written where
    // the path names a folder.
    let names_folder = |it: &Path| {
        let bytes = it.as_os_str().as_encoded_bytes();
        bytes.ends_with(b"/") || bytes.ends_with(b"/.")
    };
    let own = Path::new("/proc").join(std::process::id().to_string()).join("fd");
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let name = path.file_name().filter(|_| !names_folder(&path)).ok_or(io::ErrorKind::IsADirectory)?;
        let folder = path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = fs::canonicalize(folder)?;
        let here = folder.join(name);
        if folder == own {
            // A descriptor of this process: opening it again would write from its first byte.
            return Ok(match name.to_str() {
                Some("1") => Target::Stdout,
                Some("2") => Target::Stderr,
                Some(_) | None => Target::Direct(here),
            });
        }
        match fs::symlink_metadata(&here) {
            Err(fault) if fault.kind() == io::ErrorKind::NotFound => {
                return Ok(Target::Regular(here, folder, None));
            }
            Err(fault) => return Err(fault),
            Ok(it) if it.is_symlink() => path = folder.join(fs::read_link(&here)?),
            Ok(it) if it.is_file() => return Ok(Target::Regular(here, folder, Some(it))),
            Ok(_) => return Ok(Target::Direct(here)),
        }
    }
    Err(io::Error::other("too many levels of symbolic links"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Returns the names and contents of the files in a folder.
    fn files(folder: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            found.push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?));
        }
        found.sort();
        Ok(found)
    }

    #[test]
    fn a_failure_of_any_step_leaves_the_old_contents_and_no_other_file() -> io::Result<()> {
        let (old, new) = (vec![b'o'; 3 * CHUNK], vec![b'n'; 2 * CHUNK + 1]);
        for exists in [true, false] {
            let mut steps = Vec::new();
            for failing in 0.. {
                let folder = tempfile::tempdir()?;
                let path = folder.path().join("a.hir");
                let name = |contents: &[u8]| vec![("a.hir".to_owned(), contents.to_vec())];
                if exists {
                    fs::write(&path, &old)?;
                }
                check(&path)?;
                steps.clear();
                let written = write_in_steps(&path, &new, &mut |step| {
                    steps.push(step);
                    if steps.len() > failing { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
                });
                if written.is_ok() {
                    assert_eq!(files(folder.path())?, name(&new));
                    break;
                }
                let left = if exists { name(&old) } else { Vec::new() };
                assert_eq!(files(folder.path())?, left, "step {failing}, {:?}", steps.last());
            }
            assert_eq!(steps.len(), if exists { 7 } else { 6 }, "{steps:?}");
        }
        Ok(())
    }

    #[test]
    fn permissions_and_links_stay() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a"), "old")?;
        fs::set_permissions(at("a"), Permissions::from_mode(0o750))?;
        symlink("a", at("near"))?;
        symlink(at("near"), at("far"))?;
        write(&at("far"), b"new")?;
        assert_eq!(fs::read(at("a"))?, b"new");
        assert_eq!(fs::metadata(at("a"))?.mode() & PERMISSIONS, 0o750);
        assert_eq!(fs::read_link(at("far"))?, at("near"));
        // A dangling link: its target is created.
        symlink("b", at("dangling"))?;
        write(&at("dangling"), b"made")?;
        assert_eq!(fs::read(at("b"))?, b"made");
        symlink("loop", at("loop"))?;
        assert!(write(&at("loop"), b"").is_err());
        assert!(write(folder.path(), b"").is_err());
        // A path with a trailing slash names a folder, whether it exists or not.
        for name in ["a/", "a/.", "new/"] {
            assert_eq!(write(&at(name), b"").map_err(|it| it.kind()), Err(io::ErrorKind::IsADirectory));
        }
        assert!(fs::read(at("a"))? == b"new" && !at("new").exists());
        Ok(())
    }

    #[test]
    fn other_hard_links_keep_the_old_contents() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a"), "old")?;
        fs::hard_link(at("a"), at("b"))?;
        write(&at("a"), b"new")?;
        assert_eq!((fs::read(at("a"))?, fs::read(at("b"))?), (b"new".to_vec(), b"old".to_vec()));
        Ok(())
    }

    #[test]
    fn a_new_file_has_the_permissions_that_any_other_has() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let at = |name: &str| folder.path().join(name);
        fs::write(at("usual"), "")?;
        write(&at("new"), b"")?;
        assert_eq!(fs::metadata(at("new"))?.mode(), fs::metadata(at("usual"))?.mode());
        Ok(())
    }

    #[test]
    fn devices_are_written_directly() -> io::Result<()> {
        write(Path::new("/dev/null"), b"gone")?;
        assert!(!fs::metadata("/dev/null")?.is_file());
        if Path::new("/dev/full").exists() {
            assert!(write(Path::new("/dev/full"), b"lost").is_err());
        }
        Ok(())
    }
}
