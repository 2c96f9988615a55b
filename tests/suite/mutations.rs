//! Runs thousands of broken programs: seeded mutations of every sample and case, and hostile texts that are
//! too large to keep as files.
//!
//! Each of them must give a result or diagnostics within a time limit. `HIR_MUTATIONS=500` (mutants per
//! program) and `HIR_SEED=7` try others. A text that fails is written to the temporary folder, and its name
//! is printed.

use std::{
    collections::HashSet,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use grammar::{codes::Code, diagnostic::has_errors};
use libtest_mimic::{Failed, Trial};

use crate::{invariants, part, rng::Rng, setting::number_or};

/// Default number of mutants per program.
const MUTANTS: usize = 24;
/// Number of trials that share the programs.
const SHARDS: usize = part::PARTS;
/// Time limit for one text, unoptimised and on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Returns the trials of this file. `cases` are the programs to mutate, and `samples` those whose pieces are
/// inserted into them.
pub fn trials(cases: &[PathBuf], samples: &[PathBuf]) -> Vec<Trial> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let programs: Arc<Vec<String>> = Arc::new(cases.iter().map(read).collect());
    let pieces: Arc<Vec<String>> = Arc::new(samples.iter().map(read).collect());
    let (count, seed) = (number_or("HIR_MUTATIONS", MUTANTS), number_or("HIR_SEED", 0) as u64);
    let shard = |shard: usize| {
        let (programs, pieces) = (Arc::clone(&programs), Arc::clone(&pieces));
        Trial::test(format!("mutants_survive_{shard}"), move || {
            let mine = programs.iter().skip(shard).step_by(SHARDS);
            let mutants = mine.flat_map(|text| (0..count).map(|at| mutant(text, &pieces, seed + at as u64)));
            fail_with_all(mutants.map(|text| survives(&text)))
        })
        .with_ignored_flag(!part::includes(shard))
    };
    let hostile = Trial::test("hostile_texts_survive", || {
        fail_with_all(
            hostile().into_iter().map(|(name, text)| survives(&text).map_err(|it| format!("{name}: {it}"))),
        )
    });
    let texts = Arc::clone(&programs);
    let guesses = Trial::test("every_guess_has_a_fix", move || check_lossy_warnings(&texts));
    (0..SHARDS).map(shard).chain([hostile, guesses]).collect()
}

/// Checks that `--fix` leaves no `lossy-…` warning in any program, and that every such warning occurs in some
/// case.
fn check_lossy_warnings(texts: &[String]) -> Result<(), Failed> {
    let mut left: HashSet<Code> =
        Code::ALL.iter().copied().filter(|it| it.text().starts_with("lossy")).collect();
    // Printing gives the first of these warnings and `--assume` the second, not reading.
    for code in [Code::LossyDialect, Code::LossyScalar] {
        left.remove(&code);
    }
    let mut faults = Vec::new();
    for text in texts {
        let (programs, diagnostics) = grammar::read(text);
        let lossy: Vec<Code> =
            diagnostics.iter().map(|it| it.code).filter(|it| it.text().starts_with("lossy")).collect();
        // A program that the verifier rejects is not edited.
        let rejected = || programs.iter().any(|it| has_errors(&grammar::verify(it)));
        if !lossy.is_empty() && !has_errors(&diagnostics) && !rejected() {
            lossy.iter().for_each(|it| _ = left.remove(it));
            faults.extend(invariants::check_fix(text, &programs).err());
        }
    }
    faults.extend(left.into_iter().map(|it| format!("no case gives the warning {}", it.text())));
    fail_with_all(faults.into_iter().map(Err))
}

/// Fails with the list of all faults.
fn fail_with_all(results: impl Iterator<Item = Result<(), String>>) -> Result<(), Failed> {
    let faults: Vec<String> = results.filter_map(Result::err).collect();
    if faults.is_empty() {
        Ok(())
    } else {
        Err(format!("{} texts fail:\n{}", faults.len(), faults.join("\n")).into())
    }
}

fn survives(text: &str) -> Result<(), String> {
    let start = Instant::now();
    let check = || {
        invariants::read(text)
            .and_then(|()| invariants::plans_of_printed(text))
            .and_then(|_| invariants::run(text))
    };
    let fault = match catch_unwind(AssertUnwindSafe(check)) {
        Ok(Ok(())) if start.elapsed() < TIME_LIMIT => return Ok(()),
        Ok(Ok(())) => format!("takes {:?}", start.elapsed()),
        Ok(Err(fault)) => fault,
        Err(_) => "panicked, see above".to_owned(),
    };
    let file = std::env::temp_dir().join(format!("hir-mutant-{:016x}.hir", hash(text)));
    let _ = fs::write(&file, text);
    Err(format!("{}: {fault}", file.display()))
}

// ---- Mutations

/// Hashes a text. Seeds derive from it, so a case has the same mutants whatever other cases there are.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn mutant(program: &str, pieces: &[String], seed: u64) -> String {
    let mut rng = Rng(hash(program).wrapping_add(seed.wrapping_mul(0x1_0000_0001)));
    let mut text = program.to_owned();
    for _ in 0..=rng.below(3) {
        text = match rng.below(8) {
            0 => lines(&text, &mut rng),
            1 => indentation(&text, &mut rng),
            2 => bytes(&text, &mut rng),
            3 => splice(&text, &pieces[rng.below(pieces.len())], &mut rng),
            4 | 5 => numbers(&text, &mut rng),
            _ => tokens(&text, &mut rng),
        };
    }
    text
}

/// Deletes, duplicates or swaps pieces of a text.
fn shuffle(mut pieces: Vec<&str>, rng: &mut Rng) -> String {
    if !pieces.is_empty() {
        let (here, there) = (rng.below(pieces.len()), rng.below(pieces.len()));
        match rng.below(4) {
            0 => drop(pieces.remove(here)),
            1 => pieces.insert(there, pieces[here]),
            2 => pieces[here] = pieces[there],
            _ => pieces.swap(here, there),
        }
    }
    pieces.concat()
}

fn lines(text: &str, rng: &mut Rng) -> String {
    shuffle(text.split_inclusive('\n').collect(), rng)
}

fn tokens(text: &str, rng: &mut Rng) -> String {
    shuffle(split(text), rng)
}

/// Splits a text into words, numbers, and single other characters.
fn split(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let class = |it: char| if it.is_ascii_digit() { 1 } else { u8::from(it.is_alphabetic()) * 2 };
    let mut before = 0;
    for (at, it) in text.char_indices() {
        if at > 0 && (class(it) != before || before == 0) {
            pieces.push(&text[start..at]);
            start = at;
        }
        before = class(it);
    }
    pieces.push(&text[start..]);
    pieces
}

fn numbers(text: &str, rng: &mut Rng) -> String {
    const NUMBERS: &[&str] = &[
        "0",
        "1",
        "2",
        "3",
        "7",
        "-1",
        "64",
        "1000",
        "65536",
        "1000000007",
        "2147483648",
        "4294967295",
        "4294967296",
        "1000000000000000000",
        "9223372036854775807",
        "9223372036854775808",
        "99999999999999999999999",
        "i0",
        "rank",
        "1.5",
        "1e400",
        "(1 / 0)",
        "ceilDiv(3, 0)",
    ];
    let mut pieces = split(text);
    let places: Vec<usize> =
        (0..pieces.len()).filter(|at| pieces[*at].starts_with(|it: char| it.is_ascii_digit())).collect();
    if let (Some(at), Some(number)) = (places.get(rng.below(places.len())), rng.choose(NUMBERS)) {
        // Usually replaces every mention of the number, so that the program stays consistent.
        let old = pieces[*at];
        match rng.below(3) {
            0 => pieces[*at] = number,
            _ => pieces.iter_mut().filter(|it| **it == old).for_each(|it| *it = number),
        }
    }
    pieces.concat()
}

fn indentation(text: &str, rng: &mut Rng) -> String {
    let count = text.lines().count();
    let (from, to) = (rng.below(count), rng.below(count));
    let indent = " ".repeat(rng.below(8));
    let change = |(at, line): (usize, &str)| {
        if (from.min(to)..=from.max(to)).contains(&at) {
            format!("{indent}{}", line.trim_start_matches(' '))
        } else {
            line.to_owned()
        }
    };
    text.split_inclusive('\n').enumerate().map(change).collect()
}

fn bytes(text: &str, rng: &mut Rng) -> String {
    const NASTY: &[u8] = b"\0\n\r\t (){}[]=,:;%/\xff\xc3";
    let mut bytes = text.as_bytes().to_vec();
    let at = rng.below(bytes.len() + 1);
    match rng.below(5) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(..at)),
        2 => bytes.insert(at, rng.below(256) as u8),
        3 => drop(bytes.drain(at..bytes.len().min(at + 1 + rng.below(40)))),
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = NASTY[rng.below(NASTY.len())];
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Joins the beginning of one program and the end of another.
fn splice(text: &str, other: &str, rng: &mut Rng) -> String {
    let (head, tail) = (rng.below(text.lines().count() + 1), rng.below(other.lines().count() + 1));
    text.split_inclusive('\n').take(head).chain(other.split_inclusive('\n').skip(tail)).collect()
}

// ---- Hostile texts

fn container(body: &str) -> String {
    format!(
        "%HostIrContainer {{ (T0_g_float[iS0{{4}}]) -> (T0_g_float[iS0{{4}}]) :\n{body}}} // %HostIrContainer\n"
    )
}

fn hostile() -> Vec<(&'static str, String)> {
    const LONG: usize = 1 << 20;
    let nested = |depth: usize| -> String {
        let line = |at: usize| format!("{}FOR i{at} from 0 to 2:\n", " ".repeat(2 + at));
        (0..depth).map(line).collect()
    };
    let doubling: String = (1..200).map(|at| format!("  i{at} = i{} + i{};\n", at - 1, at - 1)).collect();
    let chain: String = (1..20_000).map(|at| format!("  i{at} = i{} + 1;\n", at - 1)).collect();
    let defined = |definitions: &str, last: usize| {
        format!(
            "{}\nIndex definitions:\n  i0 = 0;\n{definitions}",
            container(&format!("  SetCurrentStream(Stream i{last})\n"))
        )
    };
    vec![
        ("empty", String::new()),
        ("zero bytes", "\0".repeat(LONG)),
        ("blanks", " ".repeat(LONG)),
        ("new lines", "\n".repeat(LONG)),
        ("percent signs", "%".repeat(LONG)),
        ("headers", "%HostIrContainer {\n".repeat(2_000)),
        ("options", "%options numberOfStreams=4\n".repeat(2_000)),
        ("replacement characters", container(&"\u{fffd}".repeat(LONG / 8))),
        ("open parentheses", container(&"(".repeat(LONG))),
        ("open braces", container(&"{".repeat(LONG / 8))),
        ("open brackets", container(&"T1_g_float[".repeat(LONG / 64))),
        ("minus signs", container(&format!("  i1 = {}1\n", "-".repeat(LONG / 8)))),
        ("a long sum", container(&format!("  i1 = 1{}\n", " + 1".repeat(LONG / 16)))),
        ("a long name", container(&format!("  {} = 1\n", "i".repeat(LONG)))),
        ("a long number", container(&format!("  i1 = {}\n", "9".repeat(LONG)))),
        ("a long line", container(&format!("  {}\n", "Wait Communication 1 ".repeat(LONG / 64)))),
        ("a long line of errors", container(&format!("  {}\n", "Wait(Communication 1) ".repeat(LONG / 32)))),
        ("nested loops", container(&nested(1_000))),
        ("loops that can nest", container(&nested(150))),
        ("a doubling definition", defined(&doubling, 199)),
        ("a chain of definitions", defined(&chain, 19_999)),
        ("unrolled", container(&"  i1 = rank + 1\n".repeat(20_000))),
        (
            "many streams",
            container(
                &(0..20_000).map(|at| format!("  SetCurrentStream(Stream {at})\n")).collect::<String>(),
            ),
        ),
    ]
}
