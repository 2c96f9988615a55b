//! Reads the files of an archive: `.zip`, `.tar`, `.tar.gz` and `.tgz`, and the bytes of a compressed dump.
//!
//! Nothing is written to disk, and the paths in an archive are only names. What is unpacked is limited: `MAX_FILE` for a file, and `most_unpacked` for all of an
//! archive with what is skipped in it. Archives in archives are not read.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
};

use flate2::read::GzDecoder;

/// The largest file that is read, in bytes: a dump of 100,000 records has about 30 MB.
pub const MAX_FILE: u64 = 256 << 20;

/// Returns the bytes that are unpacked at most from so many: dumps are compressed to about a twentieth.
fn most_unpacked(size: u64) -> u64 {
    (64 << 20) + size.saturating_mul(40).min(4 << 30)
}

/// Returns the number of values that a dump has at most if it was unpacked from so many bytes. An unpacked file has fewer values than bytes.
pub(crate) fn most_values(size: u64) -> usize {
    (6 << 20) + 4 * size as usize
}

/// The longest name of a file in an archive, in bytes.
const MAX_NAME: u64 = 1 << 16;

/// Returns whether a path has the name of an archive.
pub(crate) fn is_archive(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    [".zip", ".tar", ".tar.gz", ".tgz"].iter().chain(&OTHERS).any(|it| name.ends_with(it))
}

/// The names of archives that are not unpacked.
const OTHERS: [&str; 7] = [".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst", ".7z"];

/// Returns how a file is compressed that is not unpacked, with the command that does it.
pub(crate) fn other_compression(head: &[u8]) -> Option<&'static str> {
    match head {
        [b'B', b'Z', b'h', ..] => Some("it is compressed with bzip2: `bunzip2` unpacks it"),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => Some("it is compressed with xz: `unxz` unpacks it"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("it is compressed with zstd: `unzstd` unpacks it"),
        _ => None,
    }
}

/// Calls `each` with the name and the bytes of each file of an archive that `wanted` selects by its name. Files that are compressed by themselves are
/// unpacked, too.
///
/// # Errors
/// An archive that cannot be read, and more bytes than the limits.
pub(crate) fn read(
    path: &Path,
    wanted: impl Fn(&str) -> bool,
    each: impl FnMut(&str, Vec<u8>),
) -> io::Result<()> {
    let file = File::open(path)?;
    let most = most_unpacked(file.metadata()?.len());
    let file = BufReader::new(file);
    let name = path.to_string_lossy().to_lowercase();
    if OTHERS.iter().any(|it| name.ends_with(it)) {
        let message =
            "hir unpacks `.zip`, `.tar`, `.tar.gz` and `.tgz`: unpack it (`tar -xf`), and give the folder";
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    } else if name.ends_with(".zip") {
        read_zip(file, most, wanted, each)
    } else if name.ends_with(".tar") {
        read_tar(file, most, wanted, each)
    } else {
        read_tar(GzDecoder::new(file), most, wanted, each)
    }
}

/// Where there are no files, there are no archives.
#[cfg(target_family = "wasm")]
fn read_zip(
    _: BufReader<File>,
    _: u64,
    _: impl Fn(&str) -> bool,
    _: impl FnMut(&str, Vec<u8>),
) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_family = "wasm"))]
fn read_zip(
    file: BufReader<File>,
    mut left: u64,
    wanted: impl Fn(&str) -> bool,
    mut each: impl FnMut(&str, Vec<u8>),
) -> io::Result<()> {
    let mut archive = zip::ZipArchive::new(file).map_err(io::Error::other)?;
    for at in 0..archive.len() {
        let entry = archive.by_index(at).map_err(io::Error::other)?;
        let name = entry.name().map_err(io::Error::other)?.into_owned();
        if entry.is_file() && wanted(&name) {
            each(&name, unpack_whole(entry, &mut left)?);
        }
    }
    Ok(())
}

fn read_tar(
    stream: impl Read,
    mut left: u64,
    wanted: impl Fn(&str) -> bool,
    mut each: impl FnMut(&str, Vec<u8>),
) -> io::Result<()> {
    // What is skipped is unpacked, too.
    let mut archive = tar::Archive::new(Limited { stream, left });
    // A long name is an entry before that of its file. The library would read one of any size into memory.
    let mut long_name = None;
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        if kind.is_gnu_longname() || kind.is_pax_local_extensions() {
            let mut bytes = Vec::new();
            (&mut entry).take(MAX_NAME).read_to_end(&mut bytes)?;
            let name = if kind.is_gnu_longname() {
                Some(
                    String::from_utf8_lossy(bytes.split(|it| *it == 0).next().unwrap_or_default())
                        .into_owned(),
                )
            } else {
                let values = tar::PaxExtensions::new(&bytes).flatten();
                let mut names = values.filter(|it| it.key_bytes() == b"path");
                names.next().map(|it| String::from_utf8_lossy(it.value_bytes()).into_owned())
            };
            long_name = name.or(long_name);
            continue;
        }
        let own = || entry.path_bytes().into_owned();
        let name = long_name.take().unwrap_or_else(|| String::from_utf8_lossy(&own()).into_owned());
        if kind.is_file() && wanted(&name) {
            each(&name, unpack_whole(entry, &mut left)?);
        }
    }
    Ok(())
}

/// Returns the bytes of a dump that is compressed by itself.
///
/// # Errors
/// As `read`.
pub fn unpack_gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    unpack(GzDecoder::new(bytes), &mut most_unpacked(bytes.len() as u64))
}

/// Unpacks a file of an archive, and what is compressed in it. `left` is what the archive may still unpack.
fn unpack_whole(from: impl Read, left: &mut u64) -> io::Result<Vec<u8>> {
    let bytes = unpack(from, left)?;
    if bytes.starts_with(&[0x1f, 0x8b]) { unpack(GzDecoder::new(bytes.as_slice()), left) } else { Ok(bytes) }
}

fn unpack(from: impl Read, left: &mut u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = MAX_FILE.min(*left);
    from.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(too_large());
    }
    *left -= bytes.len() as u64;
    Ok(bytes)
}

fn too_large() -> io::Error {
    let message = format!(
        "a file in it has more than {} MiB, or all of them have more than 64 MiB and 40 times its size: unpack it and give the folder",
        MAX_FILE >> 20
    );
    io::Error::new(io::ErrorKind::FileTooLarge, message)
}

/// A stream that fails behind a number of bytes.
struct Limited<R> {
    stream: R,
    left: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(too_large)?;
        Ok(count)
    }
}
