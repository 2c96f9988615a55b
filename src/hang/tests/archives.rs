//! Archives of dumps: one report with their folder, and hostile ones end with an error.

#![allow(clippy::expect_used, reason = "a failed step ends the test")]

mod simulator;

use std::{
    fs::{self, File},
    io::{Cursor, Write},
    path::Path,
};

use flate2::{Compression, write::GzEncoder};
use hir_hang::{
    dumps::Dumps,
    files::{self, LoadError},
    report::report,
};
use simulator::pickles;
use zip::{ZipWriter, write::SimpleFileOptions};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    out.write_all(bytes).and_then(|()| out.finish()).expect("gzip")
}

fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        out.append_data(&mut header, name, *bytes).expect("an entry");
    }
    out.into_inner().expect("an archive")
}

fn zip(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in files {
        out.start_file(
            *name,
            SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated),
        )
        .expect("an entry");
        out.write_all(bytes).expect("a file");
    }
    out.finish().expect("an archive").into_inner()
}

fn load(name: &str, bytes: &[u8]) -> Result<Dumps, LoadError> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    fs::write(&path, bytes).expect("a file");
    files::load(&[path])
}

fn text(loaded: Result<Dumps, LoadError>) -> String {
    loaded.err().map(|it| it.to_string()).unwrap_or_default()
}

#[test]
fn an_archive_gives_the_report_of_its_folder() {
    let pickles = pickles();
    let long = format!("job/{}/trace_rank_", "x".repeat(150));
    let compressed: Vec<Vec<u8>> = pickles.iter().map(|it| gzip(it)).collect();
    let names = |prefix: &str| [format!("{prefix}0"), format!("{prefix}1")];
    let archives = |names: &[String; 2], dumps: &[Vec<u8>]| {
        let files = [
            (names[0].as_str(), dumps[0].as_slice()),
            (names[1].as_str(), dumps[1].as_slice()),
            ("job/train.py", b"import torch"),
        ];
        let tar = tar(&files);
        [("a.zip", zip(&files)), ("a.tgz", gzip(&tar)), ("a.tar.gz", gzip(&tar)), ("a.tar", tar)]
    };
    for (names, dumps) in
        [(names("trace_rank_"), &pickles), (names(&long), &pickles), (names("job/rank_"), &compressed)]
    {
        for (name, bytes) in archives(&names, dumps) {
            let found = report(&load(name, &bytes).expect("dumps"));
            assert_eq!(found.findings[0].code.text(), "E0801", "{name}");
            assert_eq!(found.findings[0].ranks, [1], "{name}");
        }
    }
    let found = report(&load("rank_0.gz", &compressed[0]).expect("a dump"));
    assert!(found.summary().starts_with("1 dump"), "{}", found.summary());
}

/// What the watchdogs of four ranks print: rank 2 passes another size.
const LOG: &str = include_str!("../../../docs/examples/job-hangs.log");

#[test]
fn logs_are_read_from_archives_and_from_folders_of_torchrun() {
    let is_found = |dumps: Dumps| {
        let found = report(&dumps);
        assert_eq!((found.findings[0].code.text(), found.findings[0].ranks.as_slice()), ("E0802", &[2][..]));
    };
    let tar = tar(&[("job/job.log", LOG.as_bytes())]);
    for (name, bytes) in
        [("a.zip", zip(&[("job.log", LOG.as_bytes())])), ("a.tgz", gzip(&tar)), ("a.tar", tar)]
    {
        is_found(load(name, &bytes).expect("a log"));
    }
    let folder = tempfile::tempdir().expect("a folder");
    for rank in 0..4 {
        // In the first start, another rank failed.
        let label = format!("[rank{rank}]");
        let own: Vec<&str> = LOG.lines().filter(|it| it.starts_with(&label)).collect();
        let sizes = [if rank == 1 { "NumelIn=7, " } else { "NumelIn=1, " }, "NumelIn=1, "];
        for (attempt, size) in sizes.into_iter().enumerate() {
            let path = folder.path().join(format!("run_x/attempt_{attempt}/{rank}"));
            fs::create_dir_all(&path).expect("a folder");
            let text = own.join("\n");
            let text = if attempt == 0 { text.replace("NumelIn=1024, ", size) } else { text };
            fs::write(path.join("stderr.log"), text).expect("a file");
        }
    }
    is_found(files::load(&[folder.path().to_owned()]).expect("logs"));
    is_found(files::load(&[folder.path().join("run_x")]).expect("logs"));
}

#[test]
fn all_entries_of_a_folder_are_the_folder() {
    let pickles = pickles();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("old")).expect("a folder");
    for (name, bytes) in [
        ("rank_0", pickles[0].clone()),
        ("rank_1", pickles[1].clone()),
        ("old/rank_0", pickles[1].clone()),
        ("job.zip", zip(&[("rank_0", pickles[1].as_slice())])),
    ] {
        fs::write(path(name), bytes).expect("a file");
    }
    let all = ["job.zip", "old", "rank_0", "rank_1"].map(path);
    let [whole, each] = [&[folder.path().to_owned()][..], &all].map(|it| files::load(it).expect("dumps"));
    assert_eq!((&whole.notes, report(&whole).findings), (&each.notes, report(&each).findings));
    assert_eq!(report(&whole).findings[0].ranks, [1]);
}

#[test]
fn several_jobs_in_an_archive_are_not_mixed() {
    let pickles = pickles();
    let files = [("a/rank_0", pickles[0].as_slice()), ("b/rank_0", &pickles[0]), ("b/rank_1", &pickles[1])];
    assert!(text(load("a.zip", &zip(&files))).contains("it has dumps in `a` and `b`: give one folder"));
    // One folder for each host.
    let found = report(&load("a.zip", &zip(&[files[0], files[2]])).expect("dumps"));
    assert_eq!(found.findings[0].ranks, [1]);
}

#[test]
fn folders_and_archives_of_hosts_are_one_job() {
    let pickles = pickles();
    let folder = tempfile::tempdir().expect("a folder");
    let hosts = [0, 1].map(|it| folder.path().join(format!("host{it}")));
    for (rank, host) in hosts.iter().enumerate() {
        fs::create_dir(host).expect("a folder");
        fs::write(host.join(format!("rank_{rank}")), &pickles[rank]).expect("a file");
    }
    fs::write(folder.path().join("train.py"), "").expect("a file");
    // `DIR` is `DIR/*`.
    let all = vec![hosts[0].clone(), hosts[1].clone(), folder.path().join("train.py")];
    for paths in [vec![folder.path().to_owned()], all] {
        assert_eq!(report(&files::load(&paths).expect("dumps")).findings[0].ranks, [1]);
    }
    fs::write(hosts[1].join("rank_0"), &pickles[0]).expect("a file");
    assert!(text(files::load(&[folder.path().to_owned()])).contains("there are dumps in"));
}

#[test]
fn an_archive_in_a_folder_is_read_if_nothing_else_is_there() {
    let pickles = pickles();
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("job.zip"), zip(&[("rank_1", pickles[1].as_slice())])).expect("a file");
    let paths = [folder.path().to_owned()];
    assert_eq!(files::load(&paths).expect("dumps").records.ranks.len(), 1);
    fs::write(folder.path().join("rank_0"), &pickles[0]).expect("a file");
    let notes = files::load(&paths).expect("dumps").notes;
    assert!(notes.len() == 1 && notes[0].contains("job.zip"), "{notes:?}");
    // It is read, too.
    let given = [folder.path().to_owned(), folder.path().join("job.zip")];
    assert_eq!(files::load(&given).expect("dumps").notes, [""; 0]);
}

#[test]
fn what_is_not_unpacked_is_named() {
    assert!(text(load("a.tar.zst", b"")).contains("unpack it (`tar -xf`)"));
    for (name, bytes) in
        [("rank_0.bz2", &b"BZh9"[..]), ("rank_0.xz", b"\xfd7zXZ"), ("rank_0.zst", b"\x28\xb5\x2f\xfd")]
    {
        assert!(text(load(name, bytes)).contains("it is compressed with"), "{name}");
    }
}

#[test]
fn hostile_archives_end_with_an_error() {
    let zeros = vec![0u8; (256 << 20) + 1];
    let limit = "a file in it has more than 256 MiB";
    // Bombs: a file, a file that is skipped, a dump that is compressed by itself, and a name.
    assert!(text(load("a.zip", &zip(&[("rank_0", &zeros)]))).contains(limit));
    assert!(text(load("a.tgz", &gzip(&tar(&[("rank_0", &zeros)])))).contains(limit));
    assert!(text(load("a.tgz", &gzip(&tar(&[("rank_0", &gzip(&zeros))])))).contains(limit));
    assert!(text(load("a.zip", &zip(&[("rank_0", &gzip(&zeros))]))).contains(limit));
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNULongName);
    header.set_size(zeros.len() as u64);
    let mut name = tar::Builder::new(Vec::new());
    header.set_cksum();
    name.append(&header, zeros.as_slice()).expect("an entry");
    let found = text(load("a.tgz", &gzip(&name.into_inner().expect("an archive"))));
    assert!(found.contains("40 times its size"), "{found}");
    // Archives in archives are no dumps; paths out of the folder are names.
    let inner = zip(&[("rank_0", &pickles()[0])]);
    assert!(text(load("a.zip", &zip(&[("rank_0.zip", &inner)]))).contains("it is neither a pickle nor JSON"));
    let outside = load("a.zip", &zip(&[("../../rank_0", &pickles()[0]), ("../../rank_1", &pickles()[1])]));
    assert_eq!(report(&outside.expect("dumps")).findings[0].code.text(), "E0801");
    assert!(!Path::new("../../rank_0").exists());
    // Every prefix of an archive is an error or has fewer dumps.
    let files = [("rank_0", pickles()[0].clone()), ("rank_1", pickles()[1].clone())];
    let files: Vec<(&str, &[u8])> = files.iter().map(|it| (it.0, it.1.as_slice())).collect();
    for (name, bytes) in [("a.zip", zip(&files)), ("a.tgz", gzip(&tar(&files)))] {
        for end in (0..bytes.len()).step_by(97) {
            if let Ok(dumps) = load(name, &bytes[..end]) {
                assert!(dumps.records.ranks.len() < 2, "{name} {end}");
            }
        }
    }
    assert!(text(files::load(&["absent.zip".into()])).contains("absent.zip"));
    assert!(File::open("absent.zip").is_err());
}

/// A small archive cannot fill the memory: neither with the bytes nor with the values of its files.
#[test]
fn what_a_small_archive_becomes_is_limited() {
    let values = [&b"\x80\x02"[..], &vec![b'N'; 20 << 20], b"."].concat();
    assert!(text(load("a.zip", &zip(&[("rank_0", &values)]))).contains("more values than hir reads"));
    let bytes = vec![0; 80 << 20];
    assert!(text(load("a.zip", &zip(&[("rank_0", &bytes)]))).contains("40 times its size"));
    // A slot of the memo that no pickler can have written takes no memory.
    let slot = [&b"\x80\x02Nr"[..], &(1u32 << 24).to_le_bytes(), &vec![b'N'; 1 << 22], b"."].concat();
    assert!(text(load("a.zip", &zip(&[("rank_0", &slot)]))).contains("a memo slot is out of range"));
}
