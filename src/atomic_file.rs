//! Writes whole files: a reader of the path finds the old contents or the new ones, never a part of either.
//!
//! The new contents go to a temporary file in the target's folder, are flushed to the storage device, and are renamed to the
//! target. A failure at any step leaves the target as it was and removes the temporary file. Every tool writes its files
//! here; a test refuses other writers in `src`.
//!
//! A symbolic link is followed and stays. Of a file with several hard links only the one that is named gets the new contents:
//! writing into the file that all of them share could leave a part of it.

use std::{
    fs::{self, File, Metadata, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::out_of_memory::remove_on_out_of_memory;

/// Bytes of one write.
const CHUNK: usize = 1 << 16;
/// Most symbolic links that are followed, as Linux has it.
const MAX_LINKS: usize = 40;
/// The permission bits of a new file, before the process's umask.
const NEW_FILE: u32 = 0o666;
/// The bits of a mode that are permissions.
const PERMISSIONS: u32 = 0o7777;

/// Held while a file is being replaced.
static WRITING: Mutex<()> = Mutex::new(());

/// Waits until no file is being replaced, and lets none be as long as the guard lives: for a process that is about to end.
pub fn block_writers() -> MutexGuard<'static, ()> {
    WRITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replaces the contents of a file, or makes it. The permissions of an existing file stay, and its owner where the system
/// allows that. A symbolic link stays, and its target is written. `-` and `/dev/stdout` are standard output; FIFOs and
/// devices are written directly.
///
/// # Errors
/// What the operating system says. A regular file then has its old contents.
pub fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    write_in_steps(path, contents, &mut |_| Ok(()))
}

/// Where `write` puts the contents: the path without symbolic links, as far as there is one.
pub fn destination(path: &Path) -> PathBuf {
    match resolve(path) {
        Ok(Target::Regular(path, ..) | Target::Direct(path)) => path,
        Ok(Target::Stdout | Target::Stderr) | Err(_) => path.to_owned(),
    }
}

/// Makes the folder of a path and the folders above it, then writes the file.
///
/// # Errors
/// As `write`.
pub fn write_in_new_folder(path: &Path, contents: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    write(path, contents)
}

/// What replacing a file does, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Create,
    Write,
    Permissions,
    Flush,
    Rename,
}

/// Where a path leads.
enum Target {
    Stdout,
    Stderr,
    /// A FIFO, a device, or an open file of this process.
    Direct(PathBuf),
    /// A regular file, its folder, and what is there now.
    Regular(PathBuf, PathBuf, Option<Metadata>),
}

/// `before` is called before every step; its error is the step's.
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
        Target::Direct(path) => all(OpenOptions::new().append(true).open(path)?, contents),
        Target::Regular(path, folder, existing) => {
            let _writing = block_writers();
            replace(&path, &folder, existing.as_ref(), contents, before)
        }
    }
}

fn replace(
    path: &Path,
    folder: &Path,
    existing: Option<&Metadata>,
    contents: &[u8],
    before: &mut dyn FnMut(Step) -> io::Result<()>,
) -> io::Result<()> {
    if existing.is_some() {
        // A rename would replace a file that the user may not write.
        drop(OpenOptions::new().write(true).open(path)?);
    }
    before(Step::Create)?;
    let mut new = tempfile::Builder::new()
        .prefix(".hir-")
        .suffix(".tmp")
        .permissions(Permissions::from_mode(NEW_FILE))
        .tempfile_in(folder)
        .map_err(|fault| {
            let (kind, folder) = (fault.kind(), folder.display());
            io::Error::new(kind, format!("{kind}: no new file can be created in {folder}"))
        })?;
    let _temporary = remove_on_out_of_memory(new.path());
    for chunk in contents.chunks(CHUNK) {
        before(Step::Write)?;
        new.as_file_mut().write_all(chunk)?;
    }
    if let Some(old) = existing {
        before(Step::Permissions)?;
        let now = new.as_file().metadata()?;
        if (now.uid(), now.gid()) != (old.uid(), old.gid()) {
            // Only a privileged user may give a file away.
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
    // The file is complete. Not every file system can flush a folder.
    let _ = File::open(folder).and_then(|it| it.sync_all());
    Ok(())
}

/// Follows symbolic links to what the path names, whether it exists or not.
fn resolve(path: &Path) -> io::Result<Target> {
    if path == Path::new("-") {
        return Ok(Target::Stdout);
    }
    // `Path` leaves out a slash at the end, and a dot behind it: a file would be written where a folder is named.
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
            // A descriptor of this process: opening it again would begin at its first byte.
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

    /// What lies in a folder: names and contents.
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
                steps.clear();
                let written = write_in_steps(&path, &new, &mut |step| {
                    steps.push(step);
                    match steps.len() > failing {
                        true => Err(io::ErrorKind::StorageFull.into()),
                        false => Ok(()),
                    }
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
        // A link to nothing makes what it names.
        symlink("b", at("dangling"))?;
        write(&at("dangling"), b"made")?;
        assert_eq!(fs::read(at("b"))?, b"made");
        symlink("loop", at("loop"))?;
        assert!(write(&at("loop"), b"").is_err());
        assert!(write(folder.path(), b"").is_err());
        // A slash at the end names a folder, whether there is one or not.
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
