//! Runs the kept corpus of the fuzz targets, and seeded mutations of it, through the functions of the
//! targets. So the failures that fuzzing has found are tested without a fuzzer. `HIR_REPLAY=600` (seconds per
//! target) and `HIR_SEED=7` try more. An input that fails is written to the temporary folder, and its name is
//! printed.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use libtest_mimic::{Failed, Trial};

use super::{ROOT, batch_text, invariants, untrusted, wire};
use crate::{rng::Rng, setting::number_or};

/// Default time for the mutations of a target, in seconds. All targets together take half a minute.
const SECONDS: usize = 4;
/// Time limit for one input, unoptimised and on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Maximum length of an input. Longer inputs are truncated, since failures also show in short ones.
const MAX_INPUT_BYTES: usize = 16 << 10;

type Target = (&'static str, fn(&[u8]) -> Result<(), String>);

/// The targets, each with its folder in `fuzz/kept`.
const TARGETS: &[Target] = &[
    ("reader", |bytes| invariants::read(&String::from_utf8_lossy(bytes))),
    ("plan", |bytes| invariants::run(&String::from_utf8_lossy(bytes))),
    ("pipeline", |bytes| untrusted::pipeline(&String::from_utf8_lossy(bytes), invariants::lower)),
    ("tensor", untrusted::tensor),
    ("options", |bytes| untrusted::options(&String::from_utf8_lossy(bytes))),
    ("wire", wire::run),
    ("edits", |bytes| hir_lsp::follows_edits(&String::from_utf8_lossy(bytes)).map(|_| ())),
    ("batch", |bytes| batch_text::run(&String::from_utf8_lossy(bytes))),
];

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let trial = |target: &Target| {
        let target = *target;
        Trial::test(format!("replay::{}", target.0), move || replay(target))
    };
    TARGETS.iter().map(trial).collect()
}

fn replay((name, run): Target) -> Result<(), Failed> {
    let mut rng = Rng(number_or("HIR_SEED", 0) as u64);
    let kept = corpus(name)?;
    kept.iter().try_for_each(|bytes| survives(name, run, bytes))?;
    let until = Instant::now() + Duration::from_secs(number_or("HIR_REPLAY", SECONDS) as u64);
    while Instant::now() < until {
        let mut bytes = rng.choose_cloned(&kept);
        for _ in 0..=rng.below(4) {
            mutate(&mut bytes, &kept, &mut rng);
        }
        bytes.truncate(MAX_INPUT_BYTES);
        survives(name, run, &bytes)?;
    }
    Ok(())
}

/// Returns the inputs of a target. Fails if there are none.
fn corpus(name: &str) -> Result<Vec<Vec<u8>>, Failed> {
    let folder = Path::new(ROOT).join("fuzz/kept").join(name);
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder)?.flatten().map(|it| it.path()).collect();
    paths.sort();
    let kept = paths.iter().map(fs::read).collect::<Result<Vec<_>, _>>()?;
    if kept.is_empty() { Err(format!("{} is empty", folder.display()).into()) } else { Ok(kept) }
}

fn survives(name: &str, run: fn(&[u8]) -> Result<(), String>, bytes: &[u8]) -> Result<(), Failed> {
    let start = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| run(bytes)));
    let fault = match outcome {
        Ok(Ok(())) if start.elapsed() < TIME_LIMIT => return Ok(()),
        Ok(Ok(())) => format!("takes {:?}", start.elapsed()),
        Ok(Err(fault)) => fault,
        Err(_) => "panicked, see above".to_owned(),
    };
    let hash = bytes.iter().fold(0u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    let file = std::env::temp_dir().join(format!("hir-replay-{name}-{hash:016x}"));
    fs::write(&file, bytes)?;
    Err(format!("{}: {fault}", file.display()).into())
}

/// Changes, repeats, moves or deletes bytes, or inserts bytes of another input.
fn mutate(bytes: &mut Vec<u8>, kept: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.below(bytes.len() + 1);
    let end = (at + 1 + rng.below(24)).min(bytes.len());
    match rng.below(6) {
        0 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
        1 if at < bytes.len() => bytes[at] = rng.choose_cloned(b"\0\xff 0129(){}[],:=%/*iTr\n"),
        2 if at < end => drop(bytes.drain(at..end)),
        3 if at < end => {
            let piece = bytes[at..end].to_vec();
            let to = rng.below(bytes.len());
            bytes.splice(to..to, piece);
        }
        4 => {
            let number = rng.choose_cloned(&[
                "0",
                "1",
                "2",
                "-1",
                "2147483647",
                "4294967296",
                "9223372036854775807",
                "1e400",
            ]);
            bytes.splice(at..at, number.bytes());
        }
        _ => {
            let other = rng.choose_cloned(kept);
            let from = rng.below(other.len() + 1);
            let piece = other[from..(from + rng.below(200)).min(other.len())].to_vec();
            bytes.splice(at..at, piece);
        }
    }
}
