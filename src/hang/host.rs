//! What a job prints of the host of a rank: the exception or the signal that ended it, the stack where it is, a message that timed out.
//!
//! Python's tracebacks, which PyTorch prefixes with `[rank1]: `, the report of `torchrun`, dumps of `py-spy` and of `faulthandler`, and lines of the
//! watchdog about sends and receives, which do not name the other rank. Text without a prefix is of the rank in the name of its file.

use std::collections::BTreeMap;

use crate::{record::Rank, site::is_own_file};

/// The function, file and line of a frame.
pub(crate) type Place = (String, String, u32);

/// The frames of a stack that are kept.
const MAX_FRAMES: usize = 512;

/// What is known of the host of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// What may have ended it: `printed` with an exception and its place, or `ended with` a signal.
    pub end: Option<String>,
    /// Where it is, as `in recv, called from step (train.py:14)`.
    pub at: Option<String>,
    /// A send or a receive that timed out, as `recv (train.py:14)`.
    pub message: Option<String>,
    /// Whether its watchdog has printed that a call timed out.
    pub timed_out: bool,
}

/// The hosts of ranks.
pub type Hosts = BTreeMap<Rank, Host>;

/// Adds what a text says. `rank` is that in the name of its file. Returns whether the text is a dump of stacks.
pub(crate) fn read(text: &str, rank: Option<Rank>, hosts: &mut Hosts) -> bool {
    tracebacks(text, rank, hosts);
    report_of_torchrun(text, hosts);
    let Some((rank, at)) = rank.and_then(|rank| Some((rank, stack_of(text)?))) else { return false };
    hosts.entry(rank).or_default().at = Some(at);
    true
}

/// Reads the tracebacks of exceptions; the last one of a rank stays. One of an interrupt shows where the host was.
fn tracebacks(text: &str, of_file: Option<Rank>, hosts: &mut Hosts) {
    let mut open: BTreeMap<Rank, Vec<Place>> = BTreeMap::new();
    for line in text.lines() {
        let labelled = line.strip_prefix("[rank").and_then(|it| it.split_once("]: "));
        let labelled = labelled.and_then(|(rank, line)| Some((rank.parse().ok()?, line)));
        let Some((rank, line)) = labelled.or_else(|| Some((of_file?, line))) else { continue };
        if line.starts_with("Traceback (most recent call last):") {
            open.insert(rank, Vec::new());
            continue;
        }
        let Some(frames) = open.get_mut(&rank) else { continue };
        if let Some(frame) = python_frame(line) {
            frames.extend((frames.len() < MAX_FRAMES).then_some(frame));
        } else if !line.starts_with(' ') && !line.trim().is_empty() {
            let frames = open.remove(&rank).unwrap_or_default();
            let frames: Vec<Place> = frames.into_iter().rev().collect();
            let name = line.split(':').next().unwrap_or(line);
            let is_name = name.chars().all(|it| it.is_alphanumeric() || matches!(it, '.' | '_'));
            let host = hosts.entry(rank).or_default();
            match name.rsplit('.').next() {
                _ if !is_name => (),
                Some("KeyboardInterrupt" | "SignalException") => host.at = place_text(&frames),
                _ => {
                    let shown: String = line.trim_end().chars().take(MAX_SHOWN).collect();
                    let shown = format!("printed `{shown}`{}", place_behind(&frames));
                    host.end = Some(grammar::escape_control(&shown));
                }
            }
        }
    }
}

/// The letters of an exception that are shown.
const MAX_SHOWN: usize = 120;

/// Reads `rank : 1 (local_rank: 1)` and the `exitcode : -9` behind it. A rank that the watchdog or `torchrun` ends has 6 or 15.
fn report_of_torchrun(text: &str, hosts: &mut Hosts) {
    let mut rank = None;
    for line in text.lines().map(str::trim) {
        let Some((key, value)) = line.split_once(':') else { continue };
        match key.rsplit(' ').find(|it| !it.is_empty()).unwrap_or_default() {
            "rank" if value.contains("(local_rank") => rank = number::<Rank>(value),
            "exitcode" => {
                let signal = value.trim_start().strip_prefix('-').and_then(number::<u32>);
                let Some((rank, signal)) = rank.take().zip(signal.filter(|it| !matches!(it, 6 | 15))) else {
                    continue;
                };
                let host = hosts.entry(rank).or_default();
                host.end = host.end.take().or(Some(format!(
                    "ended with signal {signal}{}",
                    if signal == 9 { " (SIGKILL)" } else { "" }
                )));
            }
            _ => (),
        }
    }
}

/// Returns where the main thread is, by a dump of `py-spy` or of `faulthandler`: of the last thread that runs a module.
fn stack_of(text: &str) -> Option<String> {
    let mut threads: Vec<Vec<Place>> = Vec::new();
    for line in text.lines() {
        if line.contains("(most recent call first)")
            || (line.starts_with("Thread ") && line.contains("): \""))
        {
            threads.push(Vec::new());
        } else if let Some(thread) = threads.last_mut().filter(|it| it.len() < MAX_FRAMES) {
            thread.extend(python_frame(line).or_else(|| py_spy_frame(line)));
        }
    }
    let is_main = |it: &&Vec<Place>| it.last().is_some_and(|it| it.0 == "<module>");
    place_text(threads.iter().rev().find(is_main)?)
}

/// Writes where a stack is, innermost frame first.
fn place_text(stack: &[Place]) -> Option<String> {
    let inner = stack.first()?;
    let own = own(stack)?;
    let within = if own == inner { String::new() } else { format!("{}, called from ", inner.0) };
    Some(grammar::escape_control(&format!("in {within}{} ({}:{})", own.0, own.1, own.2)))
}

/// Returns the innermost frame of the program: of no installed package and not of Python.
fn own(stack: &[Place]) -> Option<&Place> {
    stack.iter().find(|it| is_own_file(&it.1)).or(stack.last())
}

/// Returns a frame of `File "train.py", line 14, in step`; faulthandler writes no comma before `in`.
fn python_frame(line: &str) -> Option<Place> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
    let function = behind(rest, " in ").unwrap_or("<module>");
    Some((function.trim_end().to_owned(), file.to_owned(), number(rest)?))
}

/// Returns a frame of `step (train.py:14)`.
fn py_spy_frame(line: &str) -> Option<Place> {
    let (function, place) = line.trim().strip_suffix(')')?.rsplit_once(" (")?;
    let (file, line) = place.rsplit_once(':')?;
    Some((function.to_owned(), file.to_owned(), line.parse().ok()?))
}

impl Host {
    /// Writes what is known of the host of a rank that waits in no recorded call.
    pub fn text(&self, rank: Rank) -> Option<String> {
        let end = self.end.as_ref().map(|it| format!("rank {rank} {it}"));
        end.or_else(|| Some(format!("the host of rank {rank} is {}", self.at.as_ref()?)))
    }
}

/// Adds a send or a receive that timed out, with the frames of its stack.
pub(crate) fn add_message(hosts: &mut Hosts, rank: Rank, name: &str, frames: &[Place]) {
    let message = format!("{name}{}", place_behind(frames));
    hosts.entry(rank).or_default().message = Some(grammar::escape_control(&message));
}

/// Writes the place of a stack in the program behind a word, if there is one.
fn place_behind(stack: &[Place]) -> String {
    own(stack).map_or(String::new(), |it| format!(" ({}:{})", it.1, it.2))
}

/// Returns the text behind a word, if a line has it.
pub(crate) fn behind<'l>(line: &'l str, word: &str) -> Option<&'l str> {
    line.find(word).map(|at| &line[at + word.len()..])
}

pub(crate) fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let text = text.trim_start();
    let end = text.find(|it: char| !it.is_ascii_digit() && it != '-').unwrap_or(text.len());
    text[..end].parse().ok()
}
