//! The file in which rank 0 publishes the job secret for the other ranks of its host.
//!
//! The file has mode 0600 and lies in a folder that only this user can enter. Rank 0 locks it (`flock`) while
//! the ranks meet. A file without a lock is left over from a job that was killed, and its secret is not used.
//! The file also contains the port on which rank 0 listens.

use std::{
    ffi::OsStr,
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{AtFlags, FlockOperation, Mode, OFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{EntryFault, EntryType, Secret, check_private};
use crate::{LaunchError, Result, message};

/// Maximum size of the file, in bytes.
const MAX_BYTES: u64 = 256;
/// Time to wait for another process that examines the lock of a left-over file.
const LOCK_EXAMINATION_WAIT: Duration = Duration::from_secs(1);

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct Contents {
    version: u32,
    port: u16,
    secret: [u8; 32],
}

/// The paths where the ranks of a job look for the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretFileLocation {
    /// The folders, in the order in which they are tried.
    folders: Vec<PathBuf>,
    name: String,
}

impl SecretFileLocation {
    /// Returns the location for a job that meets at `port` or at one of the ports after it. `job` is the
    /// launcher's name for the job.
    pub fn new(job: &str, port: u16, variable: impl Fn(&str) -> Option<String>) -> Self {
        let user = rustix::process::geteuid().as_raw();
        // Ranks of one job may have different environments, so they look into both folders.
        let runtime = variable("XDG_RUNTIME_DIR").filter(|it| it.starts_with('/'));
        let runtime = runtime.map(|it| Path::new(&it).join("hir"));
        let folders = runtime.into_iter().chain([PathBuf::from(format!("/tmp/hir-{user}"))]).collect();
        let digest = blake3::hash(job.as_bytes()).to_hex();
        Self { folders, name: format!("job-{}-{port}", &digest[..16]) }
    }
}

impl std::fmt::Display for SecretFileLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let paths: Vec<String> =
            self.folders.iter().map(|it| format!("`{}`", it.join(&self.name).display())).collect();
        f.write_str(&paths.join(" or "))
    }
}

/// A file or a folder that is not used, and why.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` {fault}", path.display())]
pub struct NamedFault {
    path: PathBuf,
    fault: EntryFault,
}

impl EntryFault {
    fn of(self, path: impl Into<PathBuf>) -> NamedFault {
        NamedFault { path: path.into(), fault: self }
    }

    /// Returns what the operating system refuses to do: `opened`.
    fn system(what: &'static str) -> impl FnOnce(Errno) -> Self {
        move |fault| Self::System(what, fault.to_string())
    }
}

/// Why there is nothing to read yet.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadFault {
    /// No folder has the file.
    #[error("rank 0 has not published the job secret in {0}: it is not running, or is stopped")]
    NotPublished(SecretFileLocation),
    /// What is there cannot be used.
    #[error("{}", joined(.0))]
    Unusable(Vec<NamedFault>),
}

fn joined(faults: &[NamedFault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The published file. Dropping it removes the file.
pub struct PublishedSecret {
    folder: OwnedFd,
    name: String,
    /// Holds the lock.
    _file: File,
}

/// Creates the file.
///
/// # Errors
/// Returns an error if another user has created the folder or the file, if a job of the same name is starting
/// now, or if the disk is full.
pub fn publish(place: &SecretFileLocation, secret: &Secret, port: u16) -> Result<PublishedSecret> {
    let mut faults = Vec::new();
    for path in &place.folders {
        let made = open_folder(path, true).and_then(|folder| {
            let file = write(&folder, &place.name, secret, port)
                .map_err(|fault| fault.of(path.join(&place.name)))?;
            Ok(PublishedSecret { folder, name: place.name.clone(), _file: file })
        });
        match made {
            Ok(published) => return Ok(published),
            Err(fault) => faults.push(fault),
        }
    }
    Err(LaunchError::Environment(format!(
        "rank 0 cannot publish the job secret: {}; set `{}` to the same random text on all ranks instead",
        joined(&faults),
        super::VARIABLE
    )))
}

/// Reads the file if it exists and rank 0 is alive. Returns the secret, and the port on which rank 0 listens.
///
/// # Errors
/// Returns the reason why there is nothing to read yet.
pub fn read(place: &SecretFileLocation) -> Result<(Secret, u16), ReadFault> {
    let mut faults = Vec::new();
    for path in &place.folders {
        match read_in(path, &place.name) {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => (),
            Err(fault) => faults.push(fault),
        }
    }
    Err(if faults.is_empty() { ReadFault::NotPublished(place.clone()) } else { ReadFault::Unusable(faults) })
}

fn read_in(path: &Path, name: &str) -> Result<Option<(Secret, u16)>, NamedFault> {
    let named = |fault: EntryFault| fault.of(path.join(name));
    if !path.exists() {
        return Ok(None);
    }
    let folder = open_folder(path, false)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match rustix::fs::openat(&folder, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(fault) => return Err(named(EntryFault::system("read")(fault))),
    };
    check_private(&file, EntryType::File).map_err(named)?;
    // The operating system releases the lock when rank 0 ends, however it ends.
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => (),
        Ok(()) => return Err(named(EntryFault::LeftOver)),
        Err(fault) => return Err(named(EntryFault::system("locked")(fault))),
    }
    let mut bytes = Vec::new();
    File::from(file)
        .take(MAX_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|fault| named(EntryFault::System("read", fault.to_string())))?;
    let contents: Contents = message::decode(&bytes).map_err(|_| named(EntryFault::OtherVersion))?;
    if contents.version == message::VERSION {
        Ok(Some((Secret(contents.secret), contents.port)))
    } else {
        Err(named(EntryFault::OtherVersion))
    }
}

/// Opens a folder that only this user can enter. Creates it if it does not exist and `make` is set.
fn open_folder(path: &Path, make: bool) -> Result<OwnedFd, NamedFault> {
    let named = |fault: EntryFault| fault.of(path);
    if make {
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => (),
            Err(fault) => return Err(named(EntryFault::system("created")(fault))),
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(folder) => folder,
        Err(Errno::LOOP | Errno::NOTDIR) => return Err(named(EntryFault::NotFolder)),
        Err(fault) => return Err(named(EntryFault::system("opened")(fault))),
    };
    check_private(&folder, EntryType::Folder).map_err(named)?;
    Ok(folder)
}

/// Creates the file under a temporary name, locks it, and links it to its name when it is complete.
fn write(folder: &OwnedFd, name: &str, secret: &Secret, port: u16) -> Result<File, EntryFault> {
    let contents = Contents { version: message::VERSION, port, secret: *secret.bytes() };
    let bytes = message::encode(&contents).map_err(|it| EntryFault::System("encoded", it.to_string()))?;
    let fresh = format!("{name}.{}.{port}", std::process::id());
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Removes a file left over from a process with the same process id.
    let _ = rustix::fs::unlinkat(folder, &fresh, AtFlags::empty());
    let file = rustix::fs::openat(folder, &fresh, flags, Mode::RUSR | Mode::WUSR)
        .map_err(EntryFault::system("created"))?;
    let mut file = File::from(file);
    let linked = file
        .write_all(&bytes)
        .map_err(|it| EntryFault::System("written", it.to_string()))
        .and_then(|()| {
            let lock = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
            lock.map_err(EntryFault::system("locked"))
        })
        .and_then(|()| link_file(folder, &fresh, name));
    let _ = rustix::fs::unlinkat(folder, &fresh, AtFlags::empty());
    linked.map(|()| file)
}

/// Links the file to its name. Replaces a file that a killed job left behind.
fn link_file(folder: &OwnedFd, fresh: &str, name: &str) -> Result<(), EntryFault> {
    let deadline = Instant::now() + LOCK_EXAMINATION_WAIT;
    loop {
        match rustix::fs::linkat(folder, fresh, folder, name, AtFlags::empty()) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => (),
            Err(fault) => return Err(EntryFault::system("created")(fault)),
        }
        if remove_stale(folder, name.as_ref())? {
            continue;
        }
        if Instant::now() > deadline {
            return Err(EntryFault::InUse);
        }
        thread::sleep(LOCK_EXAMINATION_WAIT / 50);
    }
}

/// Removes a file on which no process holds the lock. Returns true if the file is gone.
fn remove_stale(folder: &OwnedFd, name: &OsStr) -> Result<bool, EntryFault> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match rustix::fs::openat(folder, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(true),
        Err(Errno::LOOP) => return Err(EntryFault::Link),
        Err(fault) => return Err(EntryFault::system("opened")(fault)),
    };
    check_private(&file, EntryType::File)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => (),
        Err(Errno::WOULDBLOCK) => return Ok(false),
        Err(fault) => return Err(EntryFault::system("locked")(fault)),
    }
    // A process that removes the file holds its lock. So, while this lock is held, the name refers to this
    // file or to a newer one.
    let (mine, now) = (rustix::fs::fstat(&file), rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW));
    match (mine, now) {
        (Ok(mine), Ok(now)) if (mine.st_dev, mine.st_ino) == (now.st_dev, now.st_ino) => {
            rustix::fs::unlinkat(folder, name, AtFlags::empty()).map_err(EntryFault::system("removed"))?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

impl Drop for PublishedSecret {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&self.folder, self.name.as_str(), AtFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, symlink},
    };

    use super::*;

    /// Returns a location in a folder of the test.
    fn place(name: &str) -> std::io::Result<(SecretFileLocation, PathBuf)> {
        let runtime = std::env::temp_dir().join(format!("hir-published-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&runtime);
        fs::create_dir_all(&runtime)?;
        let folder = runtime.join("hir");
        let mut place = SecretFileLocation::new("job", 700, |_| Some(runtime.display().to_string()));
        place.folders.truncate(1);
        Ok((place, folder))
    }

    fn secret(byte: u8) -> Secret {
        Secret::from_bytes([byte; 32])
    }

    #[test]
    fn rank_0_publishes_and_removes() -> Result<(), Box<dyn std::error::Error>> {
        let (place, folder) = place("works")?;
        assert!(read(&place).is_err_and(|it| matches!(it, ReadFault::NotPublished(_))));
        let published = publish(&place, &secret(1), 701)?;
        assert_eq!(read(&place), Ok((secret(1), 701)));
        let modes = [folder.clone(), folder.join(&place.name)].map(|it| fs::metadata(it).map(|it| it.mode()));
        assert!(matches!(modes, [Ok(a), Ok(b)] if (a & 0o777, b & 0o777) == (0o700, 0o600)));
        // Another job of the same name.
        let again = publish(&place, &secret(2), 702).map(|_| ()).map_err(|it| it.to_string());
        assert!(again.is_err_and(|it| it.contains("another job with this name is starting")));
        assert_eq!(read(&place), Ok((secret(1), 701)));
        drop(published);
        assert_eq!(fs::read_dir(&folder)?.count(), 0);
        Ok(())
    }

    #[test]
    fn a_stale_file_is_refused_and_replaced() -> Result<(), Box<dyn std::error::Error>> {
        let (place, _) = place("stale")?;
        let mut killed = publish(&place, &secret(1), 701)?;
        // A killed process does not remove its file; the operating system drops the lock.
        let other = place.folders[0].join("other");
        fs::rename(place.folders[0].join(&place.name), &other)?;
        fs::copy(&other, place.folders[0].join(&place.name))?;
        killed.name = "other".to_owned();
        drop(killed);
        assert!(
            read(&place).is_err_and(|it| it.to_string().contains("is left over from a job that has ended"))
        );
        let _published = publish(&place, &secret(2), 702)?;
        assert_eq!(read(&place), Ok((secret(2), 702)));
        Ok(())
    }

    #[test]
    fn what_others_may_have_made_is_refused() -> Result<(), Box<dyn std::error::Error>> {
        let (place, folder) = place("foreign")?;
        let refused = |wanted: &str| {
            let fault = publish(&place, &secret(1), 701).map(|_| ()).map_err(|it| it.to_string());
            assert!(fault.as_ref().is_err_and(|it| it.contains(wanted)), "{fault:?}");
        };
        // A folder that other users can write to.
        fs::create_dir(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
        refused("can be accessed by other users (mode 777)");
        assert!(read(&place).is_err());
        fs::remove_dir(&folder)?;
        let elsewhere = folder.with_extension("else");
        fs::create_dir(&elsewhere)?;
        symlink(&elsewhere, &folder)?;
        refused("is not a directory");
        fs::remove_file(&folder)?;
        // A file that other users can read, and a symbolic link with its name.
        fs::create_dir(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
        let file = folder.join(&place.name);
        fs::write(&file, "x")?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
        refused("can be accessed by other users (mode 644)");
        assert!(read(&place).is_err());
        fs::remove_file(&file)?;
        symlink(&elsewhere, &file)?;
        refused("is a symbolic link");
        assert!(read(&place).is_err());
        Ok(())
    }

    use std::os::unix::fs::MetadataExt as _;
}
