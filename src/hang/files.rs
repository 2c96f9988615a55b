//! Finds the dumps among files and folders, and reads them.
//!
//! A dump names its rank only in its file name. A folder may hold other files, and both encodings of one dump: the pickle is read
//! then, because only it has source lines. A folder below is another job or another moment, or it has the dumps of one host.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use rayon::prelude::*;

use crate::{
    archive::{self, MAX_FILE},
    dump,
    dumps::{Dumps, ReadDump, Skipped, combine, is_program},
    host::{self, Hosts},
    json, nccl, pickle,
    record::{Interners, MAX_RANK, Rank, RankLog},
    torch_log,
};

/// The bytes in which a dump is recognized.
const MAX_HEAD: u64 = 4 << 10;

/// Why no dump can be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file or folder cannot be read.
    #[error("cannot read `{}`: {fault}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        fault: io::Error,
    },
    /// A pipe or a device: it may never end, and its name has no rank.
    #[error("`{}` is neither a file nor a folder: write the dump to a file", .0.display())]
    NotAFile(PathBuf),
    /// No file is a dump.
    #[error("{}", no_dumps(folder, folders, archives))]
    NoDumps {
        /// Where hir looked.
        folder: String,
        /// The folders below it that contain files with the name of a dump.
        folders: Vec<String>,
        /// The archives in it.
        archives: Vec<String>,
    },
    /// The name of a file has no rank.
    #[error("the name of `{}` has no rank: that of a dump has one, as `nccl_trace_rank_3` or `rank_3.json` for rank 3", .0.display())]
    NoRank(PathBuf),
    /// No dump could be read.
    #[error("no dump can be read; the first one: {0}")]
    Unreadable(Skipped),
}

fn no_dumps(folder: &str, folders: &[String], archives: &[String]) -> String {
    let list = |it: &[String]| grammar::list_text(it.iter().map(String::as_str), 4, "and");
    let there = match (folders, archives) {
        ([], []) => "`TORCH_FR_DUMP_TEMP_FILE` (older: `TORCH_NCCL_DEBUG_INFO_TEMP_FILE`) says where PyTorch writes them".to_owned(),
        ([], archives) => format!("{NOT_UNPACKED}: {}", list(archives)),
        (folders, _) => format!("there are dumps in {}", list(folders)),
    };
    format!("no dump of the flight recorder, and no log that shows calls or stacks, in `{folder}`: {there}")
}

/// Why an archive in a folder is not read: it may be that of another job.
const NOT_UNPACKED: &str = "an archive is read only if it is given by its own name";

/// Reads the dumps of files and folders.
///
/// # Errors
/// A path that cannot be read, no dumps, or none that can be read.
pub fn load(paths: &[PathBuf]) -> Result<Dumps, LoadError> {
    let folder = whole_folder(paths);
    let paths = folder.as_ref().map_or(paths, std::slice::from_ref);
    let tables = Interners::default();
    let (mut candidates, mut read, mut inner, mut logs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut printed: Vec<(String, String)> = Vec::new();
    for path in paths {
        let fault = |fault| LoadError::Read { path: path.clone(), fault };
        let about = fs::metadata(path).map_err(fault)?;
        if about.is_dir() {
            candidates.extend(in_folder(path)?);
            logs.extend(logs_in(path));
        } else if !about.is_file() {
            return Err(LoadError::NotAFile(path.clone()));
        } else if archive::is_archive(path) {
            read.extend(in_archive(path, &tables, &mut printed)?);
        } else {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            match rank_of_name(&name) {
                _ if is_log_name(&name) => logs.push(path.clone()),
                _ if paths.len() > 1 && is_no_dump(&name) => (),
                Some(rank) => candidates.push((rank, path.clone())),
                None if looks_like_dump(path) => return Err(LoadError::NoRank(path.clone())),
                None => logs.push(path.clone()),
            }
        }
    }
    let mut archives: Vec<PathBuf> = paths.iter().flat_map(|it| archives_in(it)).collect();
    archives.retain(|it| !paths.iter().any(|given| is_same_file(given, it)));
    // One folder or one archive for each host is one job, if no two have a dump of one rank.
    if candidates.is_empty() && read.is_empty() {
        let folders: Vec<PathBuf> = paths.iter().flat_map(|it| folders_with_dumps(it)).collect();
        let all = folders.iter().map(|it| in_folder(it)).collect::<Result<Vec<_>, _>>()?.concat();
        if are_apart(&all) {
            (candidates, inner) = (all, folders);
        }
    }
    if candidates.is_empty() && read.is_empty() {
        let mut in_archives = Vec::new();
        let all = archives.iter().map(|it| in_archive(it, &tables, &mut in_archives));
        let all: Vec<ReadDump> =
            all.collect::<Result<Vec<_>, _>>().unwrap_or_default().into_iter().flatten().collect();
        if are_apart(&all) {
            read = all;
            if logs.is_empty() {
                printed.append(&mut in_archives);
            }
            archives.clear();
        }
    }
    printed.extend(logs.iter().filter_map(|it| text_of(it)));
    let (of_logs, hosts) = of_logs(printed, &tables);
    let archives: Vec<String> = archives.iter().map(|it| format!("`{}`", it.display())).collect();
    if candidates.is_empty() && read.is_empty() && of_logs.is_empty() {
        let shown: Vec<String> = paths.iter().map(|it| it.display().to_string()).collect();
        let folders =
            paths.iter().flat_map(|it| folders_with_dumps(it)).map(|it| format!("`{}`", it.display()));
        return Err(LoadError::NoDumps { folder: shown.join("`, `"), folders: folders.collect(), archives });
    }
    let files = candidates.into_par_iter().map(|(rank, path)| (rank, read_file(&path, rank, &tables)));
    read.extend(files.collect::<Vec<_>>());
    add_logs(&mut read, of_logs);
    let mut dumps = combine(read, tables).map_err(unreadable)?;
    dumps.hosts = hosts;
    dumps.folders = paths.iter().map(|it| folder_of(it)).chain(inner).collect();
    if !archives.is_empty() {
        let list = grammar::list_text(archives.iter().map(String::as_str), 4, "and");
        dumps.notes.push(format!("{list} beside the dumps: {NOT_UNPACKED}"));
    }
    Ok(dumps)
}

/// Reads the files of a job that are in memory, each with its path: dumps, whose names have their ranks, and the program. Others are left
/// out.
///
/// # Errors
/// No file is a dump, no dump can be read, or dumps are in several folders.
pub fn read(files: &[(String, Vec<u8>)]) -> Result<Dumps, LoadError> {
    let tables = Interners::default();
    let mut found = InFolders::new(&tables, None);
    for (name, bytes) in files.iter().filter(|it| InFolders::is_wanted(&it.0)) {
        found.add(name, name.clone(), bytes);
    }
    let path = || "these files".to_owned();
    let logs = files.iter().filter(|it| is_log_name(&it.0));
    let text = |it: &(String, Vec<u8>)| (it.0.clone(), String::from_utf8_lossy(&it.1).into_owned());
    let (printed, hosts) = of_logs(logs.map(text).collect(), &tables);
    let mut read = found.finish().map_err(|fault| LoadError::Read { path: path().into(), fault })?;
    add_logs(&mut read, printed);
    if read.is_empty() {
        return Err(LoadError::NoDumps { folder: path(), folders: Vec::new(), archives: Vec::new() });
    }
    let mut dumps = combine(read, tables).map_err(unreadable)?;
    dumps.hosts = hosts;
    let sources = files.iter().filter(|it| is_program(Path::new(&it.0)));
    dumps.sources = sources.map(|it| (it.0.clone().into(), grammar::decode(it.1.clone()))).collect();
    Ok(dumps)
}

/// Dumps with their paths in an archive or in a folder.
struct InFolders<'t> {
    tables: &'t Interners,
    read: Vec<ReadDump>,
    folders: BTreeSet<String>,
    /// The size of the archive.
    packed: Option<u64>,
}

impl<'t> InFolders<'t> {
    fn new(tables: &'t Interners, packed: Option<u64>) -> Self {
        Self { tables, read: Vec::new(), folders: BTreeSet::new(), packed }
    }

    /// Whether a path may be that of a dump. macOS adds hidden files with the names of others.
    fn is_wanted(path: &str) -> bool {
        let name = base(path);
        rank_of_name(name).is_some() && !is_no_dump(name) && !name.starts_with('.')
    }

    /// Reads a file if it looks like a dump. `file` is its name in messages.
    fn add(&mut self, path: &str, file: String, bytes: &[u8]) {
        let looks = begins_like_dump(&bytes[..bytes.len().min(MAX_HEAD as usize)]);
        if let Some(rank) = rank_of_name(base(path)).filter(|_| looks || base(path).contains("rank")) {
            self.folders.insert(path.rsplit_once('/').map_or("", |it| it.0).to_owned());
            let log = read_bytes(bytes, rank, &file, self.tables, self.packed);
            self.read.push((rank, log.map_err(|it| Skipped { file, rank, why: it.to_string() })));
        }
    }

    /// Returns the dumps, which are in one folder, or in several without two of one rank.
    fn finish(self) -> io::Result<Vec<ReadDump>> {
        if self.folders.len() > 1 && !are_apart(&self.read) {
            let folders: Vec<String> = self.folders.iter().map(|it| format!("`{it}`")).collect();
            let list = grammar::list_text(folders.iter().map(String::as_str), 4, "and");
            return Err(io::Error::other(format!("it has dumps in {list}: give one folder")));
        }
        Ok(self.read)
    }
}

/// Reads the dumps of an archive, and adds the names and the texts of its logs.
fn in_archive(
    path: &Path,
    tables: &Interners,
    printed: &mut Vec<(String, String)>,
) -> Result<Vec<ReadDump>, LoadError> {
    let mut found = InFolders::new(tables, fs::metadata(path).ok().map(|it| it.len()));
    let file = |name: &str| format!("{}/{name}", path.display());
    let is_wanted =
        |name: &str| InFolders::is_wanted(name) || is_log_name(base(name)) && !base(name).starts_with('.');
    let add = |name: &str, bytes: Vec<u8>| {
        if is_log_name(base(name)) {
            printed.push((file(name), String::from_utf8_lossy(&bytes).into_owned()));
        } else {
            found.add(name, file(name), &bytes);
        }
    };
    archive::read(path, is_wanted, add)
        .and_then(|()| found.finish())
        .map_err(|fault| LoadError::Read { path: path.to_owned(), fault })
}

/// Whether no two dumps are of one rank.
fn are_apart<T>(dumps: &[(Rank, T)]) -> bool {
    let ranks: BTreeSet<Rank> = dumps.iter().map(|it| it.0).collect();
    ranks.len() == dumps.len()
}

/// Returns the name of a file in its folder.
fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns why there are no dumps, from why the first one cannot be read.
fn unreadable(first: Option<Skipped>) -> LoadError {
    let none = LoadError::NoDumps { folder: String::new(), folders: Vec::new(), archives: Vec::new() };
    first.map_or(none, LoadError::Unreadable)
}

/// Returns a folder, or the one that a file is in.
fn folder_of(path: &Path) -> PathBuf {
    let folder = if path.is_dir() { Some(path) } else { path.parent() };
    folder.unwrap_or(Path::new("")).to_owned()
}

/// Returns the files of a folder that look like dumps: a rank in the name, and the first bytes of a pickle or of JSON.
fn in_folder(folder: &Path) -> Result<Vec<(Rank, PathBuf)>, LoadError> {
    let fault = |fault| LoadError::Read { path: folder.to_owned(), fault };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(fault)? {
        let path = entry.map_err(fault)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(rank) = rank_of_name(&name) else { continue };
        if path.is_file() && (name.contains("rank") || looks_like_dump(&path)) && !is_no_dump(&name) {
            found.push((rank, path));
        }
    }
    found.sort();
    Ok(found)
}

/// The keys of which each dump in JSON has one near its beginning.
const KEYS: [&str; 4] = ["\"entries\"", "\"pg_config\"", "\"comm_lib_version\"", "\"nccl_version\""];

/// Whether a name is that of what a job prints.
fn is_log_name(name: &str) -> bool {
    let is_answer = name.contains("ras") && name.ends_with(".json");
    is_answer || [".log", ".txt", ".out", ".err"].iter().any(|it| name.ends_with(it))
}

/// Returns the logs of a folder, and those that `torchrun --log-dir` writes to it: `RUN/attempt_0/RANK/stderr.log`.
fn logs_in(folder: &Path) -> Vec<PathBuf> {
    let entries = |it: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(it).into_iter().flatten().flatten();
        entries.map(|it| it.path()).collect()
    };
    let name = |it: &PathBuf| it.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let is_log = |it: &PathBuf| is_log_name(&name(it)) && it.is_file();
    let is_attempt = |it: &PathBuf| name(it).starts_with(ATTEMPT);
    let here = entries(folder);
    let below = here.iter().filter(|it| !is_log(it)).flat_map(|it| entries(it));
    let attempts = here.iter().cloned().chain(below).filter(is_attempt);
    let of_ranks: Vec<PathBuf> = attempts.flat_map(|it| entries(&it)).flat_map(|it| entries(&it)).collect();
    let mut found: Vec<PathBuf> = here.into_iter().chain(of_ranks).filter(is_log).collect();
    found.sort();
    found
}

/// How the name of the folder of each start of a job begins, in what torchrun writes.
const ATTEMPT: &str = "attempt_";

/// Returns the logs without those of starts before the last one.
fn last_attempt(mut logs: Vec<(String, String)>) -> Vec<(String, String)> {
    let attempt = |it: &(String, String)| attempt_of(&it.0).map(|it| it.0);
    if let Some(last) = logs.iter().filter_map(attempt).max() {
        logs.retain(|it| attempt(it).is_none_or(|it| it == last));
    }
    logs
}

/// Returns the number of the start and the rank in the path of a log of torchrun.
fn attempt_of(path: &str) -> Option<(u32, Rank)> {
    let mut names = path.rsplit(['/', '\\']).skip(1);
    let rank = names.next()?.parse().ok()?;
    Some((names.next()?.strip_prefix(ATTEMPT)?.parse().ok()?, rank))
}

/// Returns the folder whose entries are all given: what a shell makes of `DIR/*`.
fn whole_folder(paths: &[PathBuf]) -> Option<PathBuf> {
    let folder = paths.first().filter(|_| paths.len() > 1)?.parent()?;
    let given: BTreeSet<_> =
        paths.iter().filter(|it| it.parent() == Some(folder)).filter_map(|it| it.file_name()).collect();
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut shown = fs::read_dir(folder).ok()?.flatten().map(|it| it.file_name()).collect::<Vec<_>>();
    shown.retain(|it| !it.to_string_lossy().starts_with('.'));
    let is_whole = shown.len() == paths.len() && shown.iter().all(|it| given.contains(it.as_os_str()));
    is_whole.then(|| folder.to_owned())
}

/// Returns the name and the text of a log, if it can be read.
fn text_of(path: &Path) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    File::open(path).and_then(|it| it.take(MAX_FILE).read_to_end(&mut bytes)).ok()?;
    Some((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()))
}

/// Reads what Python, PyTorch and NCCL have printed, in the order of the names of the files. PyTorch's lines say more. Of a rank without any, its
/// log says that it has made no call of which they tell.
fn of_logs(texts: Vec<(String, String)>, tables: &Interners) -> (Vec<ReadDump>, Hosts) {
    let (mut found, mut of_nccl, mut hosts) = (Vec::new(), Vec::new(), Hosts::new());
    let mut named: BTreeMap<Rank, String> = BTreeMap::new();
    let texts = last_attempt(texts);
    // The folders of several hosts have the numbers of the ranks on each.
    let mut folders: Vec<(Rank, &str)> =
        texts.iter().filter_map(|it| Some((attempt_of(&it.0)?.1, it.0.rsplit_once('/')?.0))).collect();
    folders.sort_unstable();
    folders.dedup();
    let is_one_host = folders.windows(2).all(|it| it[0].0 != it[1].0);
    for (file, text) in texts {
        let in_name = Some(base(&file)).filter(|it| it.contains("rank")).and_then(rank_of_name);
        let rank = in_name.or_else(|| attempt_of(&file).map(|it| it.1).filter(|_| is_one_host));
        if torch_log::is_log(&text) {
            found.extend(torch_log::read(&text, &file, tables, &mut hosts));
        }
        // Other files of a rank than its log say nothing of what it printed.
        let is_log = !host::read(&text, rank, &mut hosts) && !nccl::is_nccl(&text);
        named.extend(rank.filter(|_| is_log).map(|it| (it, file.clone())));
        if nccl::is_nccl(&text) {
            nccl::read_hosts(&text, &mut hosts);
            of_nccl.push((file, text));
        }
    }
    let read = |logs: Vec<(Rank, RankLog)>| logs.into_iter().map(|(rank, log)| (rank, Ok(log))).collect();
    let mut found: Vec<ReadDump> = read(found);
    let of_hosts = hosts.keys().map(|it| (*it, named.get(it).cloned().unwrap_or_default()));
    let mut without: BTreeMap<Rank, String> = of_hosts.collect();
    if !found.is_empty() {
        without.extend(named);
    }
    add_logs(&mut found, read(nccl::read(&of_nccl, tables)));
    let silent = |(rank, file): (Rank, String)| (rank, torch_log::silent(rank, &file, tables));
    add_logs(&mut found, read(without.into_iter().map(silent).collect()));
    (found, hosts)
}

/// Adds the logs of ranks without a dump, which says more. Beside dumps, a rank that has printed nothing of its calls is one without a dump.
fn add_logs(read: &mut Vec<ReadDump>, logs: Vec<ReadDump>) {
    let known: BTreeSet<Rank> = read.iter().filter(|it| it.1.is_ok()).map(|it| it.0).collect();
    let has_dumps = read.iter().any(|it| it.1.as_ref().is_ok_and(|it| !it.from_log));
    let is_silent =
        |it: &ReadDump| it.1.as_ref().is_ok_and(|it| it.records.is_empty() && it.status.is_empty());
    read.extend(logs.into_iter().filter(|it| !(known.contains(&it.0) || has_dumps && is_silent(it))));
}

/// Whether a name is that of a log, a script or another file of a job, which may have a number, too.
fn is_no_dump(name: &str) -> bool {
    let extension = name.rsplit_once('.').map_or("", |it| it.1);
    is_log_name(name) || ["py", "md", "sh", "yaml", "yml", "csv", "html", "svg", "hir"].contains(&extension)
}

fn looks_like_dump(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|it| it.take(MAX_HEAD).read_to_end(&mut head));
    read.is_ok() && begins_like_dump(&head)
}

/// Returns whether the first bytes of a file are those of a dump.
fn begins_like_dump(head: &[u8]) -> bool {
    match head {
        [0x80, 2..=5, ..] => true,
        [b'{', ..] => {
            let text = String::from_utf8_lossy(head);
            KEYS.iter().any(|it| text.contains(it))
        }
        _ => false,
    }
}

/// Returns the folders of a folder that have files with the names of dumps.
fn folders_with_dumps(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|it| it.path());
    let with_dumps = entries.filter(|it| it.is_dir() && in_folder(it).is_ok_and(|it| !it.is_empty()));
    let mut found: Vec<PathBuf> = with_dumps.collect();
    found.sort();
    found
}

/// Returns the archives of a folder, for a message.
fn archives_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|it| it.path());
    let mut found: Vec<PathBuf> = entries.filter(|it| it.is_file() && archive::is_archive(it)).collect();
    found.sort();
    found
}

/// Returns whether two paths name one file.
fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Returns the rank in the name of a dump: the number behind the last `rank`, or else the last number of the name without its extension.
pub(crate) fn rank_of_name(name: &str) -> Option<Rank> {
    let mut stem = name;
    for extension in [".gz", ".bz2", ".xz", ".zst", ".json", ".pickle", ".pkl", ".bin", ".dump"] {
        stem = stem.strip_suffix(extension).unwrap_or(stem);
    }
    let behind = stem.rfind("rank").map(|at| stem[at + 4..].trim_start_matches(['_', '-', '.', '=', ' ']));
    let digits = match behind {
        Some(text) if text.starts_with(|it: char| it.is_ascii_digit()) => {
            &text[..text.find(|it: char| !it.is_ascii_digit()).unwrap_or(text.len())]
        }
        _ => {
            let end = stem.rfind(|it: char| it.is_ascii_digit())? + 1;
            let start = stem[..end].rfind(|it: char| !it.is_ascii_digit()).map_or(0, |it| it + 1);
            stem.get(start..end)?
        }
    };
    digits.parse().ok().filter(|it| *it <= MAX_RANK)
}

fn read_file(path: &Path, rank: Rank, tables: &Interners) -> Result<RankLog, Skipped> {
    let shown = path.display().to_string();
    let skip = |why: String| Skipped { file: shown.clone(), rank, why };
    let file = File::open(path).map_err(|fault| skip(fault.to_string()))?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|fault| skip(fault.to_string()))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(skip(format!("it has more than {} MiB", MAX_FILE >> 20)));
    }
    read_bytes(&bytes, rank, &shown, tables, None).map_err(|fault| skip(fault.to_string()))
}

/// Why a file is not a dump.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnreadableDump {
    /// It cannot be unpacked.
    #[error(transparent)]
    Packed(#[from] io::Error),
    /// It has no bytes.
    #[error("it is empty: the process ended before it wrote its dump")]
    Empty,
    /// It is not a pickle that a flight recorder writes.
    #[error(transparent)]
    Pickle(#[from] pickle::PickleError),
    /// It ends too early.
    #[error("{0}: the file is cut off")]
    CutOff(serde_json::Error),
    /// It is not JSON.
    #[error("it is neither a pickle nor JSON: {0}")]
    Json(serde_json::Error),
    /// It has not the keys of a dump.
    #[error(transparent)]
    Dump(#[from] dump::DumpError),
}

/// Makes the log of a rank from the bytes of its dump. `packed` is the size of the archive that it comes from.
pub(crate) fn read_bytes(
    bytes: &[u8],
    rank: Rank,
    file: &str,
    tables: &Interners,
    packed: Option<u64>,
) -> Result<RankLog, UnreadableDump> {
    let (unpacked, size) = (matches!(bytes, [0x1f, 0x8b, ..]), bytes.len() as u64);
    let most = packed.or(unpacked.then_some(size)).map(archive::most_values);
    let unpacked;
    let bytes = match bytes {
        [0x1f, 0x8b, ..] => {
            unpacked = archive::unpack_gzip(bytes)?;
            unpacked.as_slice()
        }
        _ => bytes,
    };
    let (values, root) = match bytes {
        [] => return Err(UnreadableDump::Empty),
        _ if let Some(how) = archive::other_compression(bytes) => return Err(io::Error::other(how).into()),
        [0x80, ..] => pickle::read(bytes, most)?,
        _ => json::read(bytes, most).map_err(|fault| match fault.classify() {
            serde_json::error::Category::Eof => UnreadableDump::CutOff(fault),
            _ => UnreadableDump::Json(fault),
        })?,
    };
    Ok(dump::read(&values, root, rank, file, tables)?)
}
