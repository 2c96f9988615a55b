//! Reads what NCCL says of its communicators: lines of `NCCL_DEBUG=INFO`, and answers of its RAS subsystem as text and as JSON.
//!
//! From NCCL's sources and its documents of RAS. `HOST:PID:TID [0] NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 4 … commId 0x27a0 - Init START` names a
//! communicator by its hash, and `AllReduce: opCount 3d … count 64 datatype 7 … comm 0x55` (of `NCCL_DEBUG_SUBSYS=COLL`) a call, counted from 0. RAS counts
//! the calls that each rank has launched. Ranks of the largest communicator are those of the world, and processes tell which ranks are in others.
//!
//! What was launched need not have completed, and ranks are not asked at one moment: only two answers of RAS without a change show a hang.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    host::{Hosts, behind, number},
    record::{Interners, Kind, MAX_RANK, Rank, RankLog, Signature},
    torch_log::{Call, log_of},
};

/// The communicators of a text that are kept.
const MAX_COMMUNICATORS: usize = 4096;

/// What is known of a communicator.
#[derive(Default, Clone, PartialEq)]
struct Communicator {
    size: usize,
    /// The process of each rank, if it is known.
    processes: BTreeMap<Rank, String>,
    /// The number of calls that each rank has launched, and the last one.
    launched: BTreeMap<Rank, (u32, Signature)>,
    /// The ranks that do not answer.
    missing: Vec<Rank>,
    /// The ranks that have begun to make it and have not ended.
    begun: Vec<Rank>,
    /// The number of calls of the ranks that an answer does not list.
    rest: Option<u32>,
}

/// What RAS says of ranks that do not answer, before it lists them.
const MISSING: &str = "Missing communicator data from ";

/// Adds what an answer of RAS says of the hosts of ranks.
pub(crate) fn read_hosts(text: &str, hosts: &mut Hosts) {
    let (mut is_missing, mut is_communicator) = (false, false);
    for line in text.lines().map(str::trim) {
        is_communicator = is_communicator && !line.is_empty() || line.starts_with('#');
        is_missing = is_communicator
            && (is_missing || line.starts_with(MISSING))
            && !line.starts_with("Communicator ");
        let Some(rank) = line.strip_prefix("Rank ").and_then(number::<Rank>).filter(|it| *it <= MAX_RANK)
        else {
            continue;
        };
        let at = match behind(line, " has status ").and_then(|it| it.split(' ').next()) {
            Some("NOCOMM") => "without the communicator, by NCCL's RAS",
            Some("ABORT") => "behind an abort of the communicator, by NCCL's RAS",
            None if is_missing => "silent: NCCL's RAS has no answer of it",
            _ => continue,
        };
        hosts.entry(rank).or_default().at.get_or_insert_with(|| at.to_owned());
    }
}

/// Returns whether a text has lines of NCCL.
pub(crate) fn is_nccl(text: &str) -> bool {
    text.contains(" NCCL INFO ")
        || text.contains("\"communicators\"")
        || text.contains("Communicator ranks have")
        || text.contains(MISSING)
}

/// Makes the log of each rank of which the texts, in the order of their times, say something.
pub(crate) fn read(texts: &[(String, String)], tables: &Interners) -> Vec<(Rank, RankLog)> {
    let mut all: BTreeMap<String, Vec<Communicator>> = BTreeMap::new();
    for (_, text) in texts {
        let mut found = match text.find('{').filter(|_| text.contains("\"communicators\"")) {
            Some(begin) => of_json(&text[begin..]),
            None => of_answer(text),
        };
        found.extend(of_lines(text));
        for (hash, it) in found.into_iter().take(MAX_COMMUNICATORS) {
            all.entry(hash).or_default().push(it);
        }
    }
    let Some(world) = all.values().flatten().max_by_key(|it| it.size).cloned() else { return Vec::new() };
    let ranks: BTreeMap<&String, Rank> = world.processes.iter().map(|it| (it.1, *it.0)).collect();
    let mut calls: BTreeMap<Rank, Vec<Call>> = BTreeMap::new();
    // The communicator, its description, and the numbers of its last calls.
    type Last = (String, String, (i64, i64));
    let mut last: BTreeMap<Rank, Vec<Last>> = BTreeMap::new();
    for (hash, answers) in &all {
        let Some(now) = answers.last() else { continue };
        let is_stuck = answers.len() > 1 && answers[answers.len() - 2].launched == now.launched;
        let rank = |it: &Rank| match now.size == world.size {
            true => Some(*it),
            false => ranks.get(now.processes.get(it)?).copied(),
        };
        let all = || (0..now.size as Rank).filter(|it| !now.missing.contains(it));
        let members: Option<Vec<Rank>> = (0..now.size as Rank).map(|it| rank(&it)).collect();
        let Some(members) = members else { continue };
        let call = |seq: u32, signature: Signature, is_over: bool| Call {
            group: hash.clone(),
            description: String::new(),
            members: Some(members.clone()),
            seq,
            signature,
            frames: Vec::new(),
            is_over,
        };
        if !now.begun.is_empty() {
            for it in now.begun.iter().filter_map(rank) {
                calls.entry(it).or_default().push(call(1, of("its initialization"), false));
            }
            continue;
        }
        let most = now.launched.values().map(|it| it.0).max().unwrap_or(0);
        let is_behind = now.launched.values().any(|it| it.0 < most);
        let is_open =
            is_behind || !now.missing.is_empty() || now.launched.values().any(|it| !it.1.inputs.is_empty());
        for it in all() {
            let (Some(of_world), Some((count, signature))) = (rank(&it), now.launched.get(&it)) else {
                continue;
            };
            last.entry(of_world).or_default().push((hash.clone(), String::new(), (i64::from(*count), -1)));
            if *count == most && most > 0 && is_open {
                let call = call(most, signature.clone(), is_stuck && is_behind);
                calls.entry(of_world).or_default().push(call);
            }
        }
    }
    let file = texts.first().map_or("", |it| it.0.as_str());
    let mut known: Vec<Rank> = calls.keys().chain(last.keys()).copied().collect();
    known.sort_unstable();
    known.dedup();
    let log = |rank: Rank| {
        let (calls, last) = (calls.remove(&rank).unwrap_or_default(), last.remove(&rank).unwrap_or_default());
        (rank, log_of(rank, file, calls, &last, tables))
    };
    known.into_iter().map(log).collect()
}

/// Returns a call of which only the name is known.
fn of(name: &str) -> Signature {
    let name = name.to_lowercase();
    let kind = Kind::of(&name);
    Signature { name: kind.name().map_or(name, str::to_owned), kind, ..Signature::default() }
}

/// Adds the commas that NCCL 2.28 leaves out before the `"status"` of a rank that does not answer.
fn with_commas(text: &str) -> String {
    let mut all = String::with_capacity(text.len() + 8);
    for line in text.lines() {
        let is_open = all.ends_with([',', '{', '[', ':']) || all.is_empty();
        all.push_str(if line.trim_start().starts_with('"') && !is_open { "," } else { "" });
        all.push_str(line.trim());
    }
    all
}

/// Reads an answer of RAS as JSON.
fn of_json(text: &str) -> BTreeMap<String, Communicator> {
    let parsed = |text: &str| serde_json::Deserializer::from_str(text).into_iter::<Value>().next()?.ok();
    let Some(answer) = parsed(text).or_else(|| parsed(&with_commas(text))) else { return BTreeMap::new() };
    let rank_of =
        |it: &Value| it["rank"].as_u64().and_then(|it| Rank::try_from(it).ok()).filter(|it| *it <= MAX_RANK);
    let mut found = BTreeMap::new();
    for it in answer["communicators"].as_array().into_iter().flatten() {
        let mut own = Communicator {
            size: it["size"].as_u64().unwrap_or(0).min(MAX_RANK.into()) as usize,
            ..Communicator::default()
        };
        let ranks = || it["ranks"].as_array().into_iter().flatten();
        let missing = || it["missing_ranks"].as_array().into_iter().flatten();
        for rank in ranks().chain(missing()) {
            let process = format!("{} {}", rank["host"], rank["pid"]);
            own.processes.extend(rank_of(rank).map(|it| (it, process)));
        }
        own.missing = missing().filter_map(rank_of).collect();
        let counts = |rank: &Value| -> Vec<(String, u64)> {
            let counts = rank["collective_counts"].as_object().into_iter().flatten();
            counts.map(|(name, it)| (name.clone(), it.as_u64().unwrap_or(0))).collect()
        };
        // The kind of call that ranks have launched differently often.
        let all: Vec<Vec<(String, u64)>> = ranks().map(counts).collect();
        let differs = |name: &str, count: u64| all.iter().flatten().any(|it| it.0 == name && it.1 != count);
        let name =
            all.iter().flatten().find(|it| differs(&it.0, it.1)).map_or("collective", |it| it.0.as_str());
        for rank in ranks() {
            let sum = counts(rank).iter().map(|it| it.1).sum::<u64>().min(u64::from(u32::MAX) / 4) as u32;
            own.launched.extend(rank_of(rank).map(|it| (it, (sum, of(name)))));
        }
        found.insert(it["hash"].as_str().unwrap_or("0").trim_start_matches("0x").to_owned(), own);
    }
    found
}

/// Reads an answer of RAS as text: of communicators whose ranks differ, or do not answer.
fn of_answer(text: &str) -> BTreeMap<String, Communicator> {
    let mut found: BTreeMap<String, Communicator> = BTreeMap::new();
    let (mut current, mut kind, mut count) = (None, "collective".to_owned(), 0);
    for line in text.lines().map(str::trim) {
        if line.starts_with('#')
            && let Some(hash) = behind(line, "(").and_then(|it| it.split(')').next())
        {
            current = Some(found.entry(hash.to_owned()).or_default());
        }
        let Some(own) = current.as_deref_mut() else { continue };
        if let Some(name) = behind(line, "have different ").and_then(|it| it.split(" operation").next()) {
            kind = name.to_owned();
        } else if let Some(last) = behind(line, "launched up to operation ").and_then(number::<u32>) {
            count = last;
            match line.strip_prefix("Rank ").and_then(number::<Rank>) {
                Some(rank) => own.add(rank, count, &kind),
                None => own.size += number::<usize>(line).unwrap_or(0),
            }
            own.size += usize::from(line.starts_with("Rank "));
            // The most frequent number comes first.
            own.rest = own.rest.or((!line.starts_with("Rank ")).then_some(count));
        } else if line.contains("have not launched any") {
            (count, own.size) = (0, own.size + number::<usize>(line).unwrap_or(0));
        } else if let Some(rank) = line.strip_prefix("Rank ").and_then(number::<Rank>) {
            own.add(rank, count, &kind);
        }
    }
    for own in found.values_mut() {
        let rest = (0..own.size.min(MAX_RANK as usize) as Rank).filter(|it| !own.launched.contains_key(it));
        let rest: Vec<Rank> = rest.collect();
        let count = own.rest.unwrap_or(0);
        rest.into_iter().for_each(|it| own.add(it, count, &kind));
    }
    found
}

/// Reads lines of `NCCL_DEBUG=INFO`.
fn of_lines(text: &str) -> BTreeMap<String, Communicator> {
    let mut found: BTreeMap<String, Communicator> = BTreeMap::new();
    // The communicators of a process by their addresses.
    let mut known: BTreeMap<(String, String), (String, Rank)> = BTreeMap::new();
    let mut with_messages = Vec::new();
    let word = |line: &str, name: &str| behind(line, name)?.split([' ', ',']).next().map(str::to_owned);
    for line in text.lines() {
        let Some((head, line)) = line.split_once(" NCCL INFO ") else { continue };
        // `HOST:PID:TID [0]`, perhaps behind the label of a launcher.
        let place = head.split(' ').rev().find(|it| it.matches(':').count() == 2).unwrap_or("");
        let process = place.rsplit_once(':').map_or("", |it| it.0).to_owned();
        let Some(address) = word(line, "comm ") else { continue };
        let key = (process.clone(), address);
        if let (Some(rank), Some(size)) = (
            behind(line, " rank ").and_then(number::<Rank>),
            behind(line, "nranks ").and_then(number::<usize>),
        ) {
            let hash = word(line, "commId ").map(|it| it.trim_start_matches("0x").to_owned());
            let hash = hash.or_else(|| known.get(&key).map(|it| it.0.clone()));
            let Some(hash) = hash.filter(|_| rank <= MAX_RANK && size <= MAX_RANK as usize) else { continue };
            let own = found.entry(hash.clone()).or_default();
            own.size = size;
            own.processes.insert(rank, process);
            own.begun.retain(|it| *it != rank);
            if line.contains("Init START") {
                own.begun.push(rank);
            }
            known.insert(key, (hash, rank));
        } else if let (Some(last), Some((hash, rank))) = (word(line, "opCount "), known.get(&key)) {
            let Ok(last) = u32::from_str_radix(&last, 16) else { continue };
            let mut signature = of(line.split(':').next().unwrap_or_default().trim());
            if matches!(signature.kind, Kind::Send | Kind::Recv) {
                with_messages.push(hash.clone());
            }
            let size = |it: &str| behind(line, it).and_then(number::<i64>);
            signature.inputs.extend(size(" count ").map(|it| vec![it]));
            let types =
                ["Char", "Byte", "Int", "UInt32", "Long", "UInt64", "Half", "Float", "Double", "BFloat16"];
            let name = size("datatype ").and_then(|it| types.get(usize::try_from(it).ok()?));
            signature.input_types.extend(name.map(|it| (*it).to_owned()));
            found
                .entry(hash.clone())
                .or_default()
                .launched
                .insert(*rank, (last.min(u32::MAX / 4) + 1, signature));
        }
    }
    // `opCount` counts what a rank launches (`ncclProxyStart`), also messages, of which ranks have different numbers.
    for hash in with_messages {
        found.entry(hash).or_default().launched.clear();
    }
    found
}

impl Communicator {
    fn add(&mut self, rank: Rank, count: u32, kind: &str) {
        if rank <= MAX_RANK {
            self.launched.insert(rank, (count, of(kind)));
        }
    }
}
