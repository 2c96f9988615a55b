//! The job secret, which only the processes of the job have.
//!
//! A process that `spawn` starts gets it from its parent. Under a launcher the user sets it. If all ranks are
//! on one host and it is not set, rank 0 creates it and publishes it in a file (`published`) that only the
//! same user can read.

use std::{fs::File, io::Read, os::fd::AsFd, path::Path};

use rustix::fs::{Mode, OFlags};

use super::{LaunchError, Result};

pub mod published;

/// The variable that contains the job secret itself, the same on all ranks.
pub const VARIABLE: &str = "HIR_JOB_SECRET";
/// The variable that names a file with the job secret.
pub const FILE_VARIABLE: &str = "HIR_JOB_SECRET_FILE";
/// Minimum length of a secret that a user sets: 128 bits if the characters are hexadecimal digits.
const MIN_CHARACTERS: usize = 32;
/// Maximum size of a file that contains a secret, in bytes.
const MAX_BYTES: u64 = 4096;

/// A secret of 32 random bytes. Its `Debug` output does not show them.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Creates a random secret.
    ///
    /// # Errors
    /// Returns an error if the operating system has no random numbers.
    pub fn random() -> Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)
            .map_err(|fault| LaunchError::Environment(format!("cannot get random numbers: {fault}")))?;
        Ok(Self(bytes))
    }

    #[cfg(test)]
    pub(super) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the secret as text for `HIR_JOB_SECRET`.
    pub fn to_text(&self) -> String {
        self.0.iter().map(|it| format!("{it:02x}")).collect()
    }

    /// Derives the secret from a text that the user or a parent process sets. `origin` names the source in
    /// errors.
    ///
    /// # Errors
    /// Returns an error if the text is too short.
    pub fn from_text(text: &str, origin: &str) -> Result<Self> {
        let text = text.trim();
        if text.chars().count() < MIN_CHARACTERS {
            return Err(LaunchError::Environment(format!(
                "{origin} has fewer than {MIN_CHARACTERS} characters: create one with `openssl rand -hex 32`"
            )));
        }
        Ok(Self(blake3::derive_key("hir 2026-11 job secret", text.as_bytes())))
    }
}

/// The source of a process's job secret.
pub enum SecretOrigin {
    /// The environment, or a file that it names.
    Given(Secret),
    /// A file that rank 0 creates on the host of all ranks.
    Published,
}

/// Determines the source of the job secret from the environment.
///
/// # Errors
/// Returns an error if the secret is too short, if other users can read its file, or if there are several
/// hosts and no secret.
pub fn secret_origin(is_one_host: bool, variable: impl Fn(&str) -> Option<String>) -> Result<SecretOrigin> {
    let set = |name: &str| variable(name).filter(|it| !it.trim().is_empty());
    if let Some(text) = set(VARIABLE) {
        return Secret::from_text(&text, &format!("`{VARIABLE}`")).map(SecretOrigin::Given);
    }
    if let Some(path) = set(FILE_VARIABLE) {
        return read_file(&path).map(SecretOrigin::Given);
    }
    if is_one_host {
        return Ok(SecretOrigin::Published);
    }
    Err(LaunchError::Environment(format!(
        "the ranks are on several hosts and have no job secret: set `{VARIABLE}` to the same random text on all ranks, or \
         `{FILE_VARIABLE}` to a file that all hosts can read (`(umask 077; openssl rand -hex 32 > FILE)`)"
    )))
}

fn read_file(path: &str) -> Result<Secret> {
    let origin = format!("`{FILE_VARIABLE}`: `{path}`");
    let cannot = |fault: &dyn std::fmt::Display| {
        LaunchError::Environment(format!(
            "{origin} cannot be read: {fault}; create it with `(umask 077; openssl rand -hex 32 > {path})`"
        ))
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(Path::new(path), flags, Mode::empty()).map_err(|it| cannot(&it))?;
    check_private(&file, EntryType::File)
        .map_err(|fault| LaunchError::Environment(format!("{origin} {fault}")))?;
    let mut text = String::new();
    File::from(file).take(MAX_BYTES).read_to_string(&mut text).map_err(|it| cannot(&it))?;
    Secret::from_text(&text, &origin)
}

/// The required type of a directory entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryType {
    File,
    Folder,
}

/// Why a file or a folder is not used. The text follows its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EntryFault {
    /// It is no file.
    #[error("is not a regular file")]
    NotFile,
    /// It is no folder.
    #[error("is not a directory")]
    NotFolder,
    /// It leads elsewhere.
    #[error("is a symbolic link")]
    Link,
    /// Another user owns it.
    #[error("belongs to user {owner}, and this process runs as user {user}")]
    OtherOwner {
        /// The owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// Other users can read or write it, as its mode shows.
    #[error("can be accessed by other users (mode {0:o}): `chmod go= FILE`")]
    Accessible(u32),
    /// The job that wrote it has ended.
    #[error("is left over from a job that has ended")]
    LeftOver,
    /// It has another format.
    #[error("was written by another version of hir")]
    OtherVersion,
    /// A file of this name belongs to a job that starts now.
    #[error("cannot be replaced: another job with this name is starting: choose another `HIR_MASTER_PORT`")]
    InUse,
    /// The operating system refuses, in words.
    #[error("cannot be {0}: {1}")]
    System(&'static str, String),
}

/// Checks that this user owns an open file or folder, and that no other user can read or write it.
fn check_private(file: impl AsFd, wanted: EntryType) -> Result<(), EntryFault> {
    let found = rustix::fs::fstat(file).map_err(|it| EntryFault::System("examined", it.to_string()))?;
    let kind = rustix::fs::FileType::from_raw_mode(found.st_mode);
    check_owner_and_mode(kind, found.st_uid, found.st_mode, rustix::process::geteuid().as_raw(), wanted)
}

fn check_owner_and_mode(
    kind: rustix::fs::FileType,
    owner: u32,
    mode: u32,
    user: u32,
    wanted: EntryType,
) -> Result<(), EntryFault> {
    match (kind, wanted) {
        (rustix::fs::FileType::RegularFile, EntryType::File)
        | (rustix::fs::FileType::Directory, EntryType::Folder) => {}
        (_, EntryType::File) => return Err(EntryFault::NotFile),
        (_, EntryType::Folder) => return Err(EntryFault::NotFolder),
    }
    if owner != user {
        return Err(EntryFault::OtherOwner { owner, user });
    }
    if mode & 0o077 != 0 {
        return Err(EntryFault::Accessible(mode & 0o777));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use rustix::fs::FileType;

    use super::*;

    const TEXT: &str = "0123456789abcdef0123456789abcdef";

    fn given(variables: &[(&str, &str)]) -> Result<Secret, String> {
        let set = |name: &str| variables.iter().find(|(it, _)| *it == name).map(|(_, it)| (*it).to_owned());
        match secret_origin(false, set) {
            Ok(SecretOrigin::Given(secret)) => Ok(secret),
            Ok(SecretOrigin::Published) => Err("published".to_owned()),
            Err(fault) => Err(fault.to_string()),
        }
    }

    #[test]
    fn several_hosts_need_a_secret() {
        let fault = given(&[]).err().unwrap_or_default();
        assert!(fault.contains("`HIR_JOB_SECRET`") && fault.contains("`HIR_JOB_SECRET_FILE`"), "{fault}");
        assert!(matches!(secret_origin(true, |_| None), Ok(SecretOrigin::Published)));
        let short = given(&[(VARIABLE, "hunter2")]).err().unwrap_or_default();
        assert!(short.contains("fewer than 32 characters"), "{short}");
        assert_eq!(given(&[(VARIABLE, TEXT)]), given(&[(VARIABLE, &format!("{TEXT}\n"))]));
        assert_ne!(given(&[(VARIABLE, TEXT)]), given(&[(VARIABLE, &TEXT.replace('0', "1"))]));
        assert_eq!(format!("{:?}", Secret::from_bytes([7; 32])), "Secret");
    }

    #[test]
    fn a_secret_file_is_for_its_owner_only() -> std::io::Result<()> {
        let folder = std::env::temp_dir().join(format!("hir-secret-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let path = folder.join("secret");
        let name = path.display().to_string();
        let read = |name: &str| given(&[(FILE_VARIABLE, name)]);
        assert!(read(&name).is_err_and(|it| it.contains("openssl rand -hex 32")));
        fs::write(&path, TEXT)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
        assert!(read(&name).is_err_and(|it| it.contains("can be accessed by other users (mode 644)")));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        assert_eq!(read(&name), given(&[(VARIABLE, TEXT)]));
        let link = folder.join("link");
        std::os::unix::fs::symlink(&path, &link)?;
        assert!(read(&link.display().to_string()).is_err());
        assert!(read(&folder.display().to_string()).is_err_and(|it| it.contains("not a regular file")));
        fs::remove_dir_all(&folder)
    }

    #[test]
    fn another_users_file_is_refused() {
        let check =
            |owner, mode| check_owner_and_mode(FileType::RegularFile, owner, mode, 1000, EntryType::File);
        assert_eq!(check(1000, 0o600), Ok(()));
        assert_eq!(check(1001, 0o600), Err(EntryFault::OtherOwner { owner: 1001, user: 1000 }));
        assert!(check(1000, 0o620).is_err());
    }
}
