//! Turns the values of one dump into the log of a rank.

mod keys;

use grammar::escape_control;
use rustc_hash::FxHashMap;

use crate::{
    batch::mark_batches,
    record::{
        Batch, Frame, Group, GroupId, GroupStatus, Interners, Kind, MAX_RANK, NameId, Peer, Rank, RankLog,
        Record, Signature, SignatureId, Stack, StackId, State,
    },
    value::{Id, Values},
};
use keys::Keys;

/// Why values are not a dump.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DumpError {
    #[error(
        "it is {0}, and a dump of the flight recorder is a dictionary with `version`, `pg_config` and `entries`"
    )]
    NotADump(&'static str),
    #[error("it has more than {MAX_RECORDS} records")]
    TooManyRecords,
    #[error("its groups have more than {MAX_MEMBERS} members in all")]
    TooManyMembers,
    #[error(
        "record {record} has no usable `{key}` (version {version} of the format): hir reads versions 2.3 and later, and others \
         with the same keys"
    )]
    Key { record: usize, key: &'static str, version: String },
}

/// The records of a dump, and the members of all of its groups, at most. A pickle fetches equal values from its memo, so that a small file could
/// hold any number of them.
const MAX_RECORDS: usize = 1_000_000;
const MAX_MEMBERS: usize = 8_000_000;

/// The groups whose status is kept.
const MAX_STATUS: usize = 1 << 12;

/// The shapes of one tensor list, the extents of one shape, and the frames of one stack that are kept.
const MAX_SHAPES: usize = 1 << 14;
const MAX_EXTENTS: usize = 64;
const MAX_FRAMES: usize = 512;

/// The bytes of the name of a call or a group at most.
const MAX_NAME: usize = 1024;

/// Makes the log of a rank.
///
/// # Errors
/// Values that are no dump, and records without a key that hir needs.
pub(crate) fn read(
    values: &Values,
    root: Id,
    rank: Rank,
    file: &str,
    tables: &Interners,
) -> Result<RankLog, DumpError> {
    let top: FxHashMap<&str, Id> = values.dict(root).ok_or(DumpError::NotADump(values.kind(root)))?.collect();
    let entries = match top.get("entries") {
        Some(entries) => {
            values.list(*entries).ok_or(DumpError::NotADump("a dictionary whose `entries` are no list"))?
        }
        // The JSON of a recorder without records.
        None if top.contains_key("pg_config") && top.contains_key("version") => &[],
        None => return Err(DumpError::NotADump("a dictionary without `entries`")),
    };
    let version = top.get("version").and_then(|it| values.text(*it)).unwrap_or("unknown").to_owned();
    let members = match top.get("pg_config") {
        Some(config) => members_of_groups(values, *config)?,
        None => Members::default(),
    };
    if entries.len() > MAX_RECORDS {
        return Err(DumpError::TooManyRecords);
    }
    let mut reader = Reader { values, tables, version, members, cache: Caches::default(), has_stacks: false };
    let mut records = Vec::with_capacity(entries.len());
    let (mut lost, mut is_p2p) = (0, Vec::with_capacity(entries.len()));
    let (mut has_gaps, mut next) = (false, None);
    let mut numbers: FxHashMap<u32, GroupId> = FxHashMap::default();
    for (at, entry) in entries.iter().enumerate() {
        let (record, id, of_p2p, number) = reader.record(at, *entry)?;
        number.into_iter().for_each(|it| _ = numbers.insert(it, record.group));
        if reader.cache.members > MAX_MEMBERS {
            return Err(DumpError::TooManyMembers);
        }
        is_p2p.push(of_p2p);
        if at == 0 {
            lost = id.unwrap_or(0);
        }
        has_gaps |= next.is_some() && id.is_some() && next != id;
        next = id.map(|it| it + 1);
        records.push(record);
    }
    let backend = reader.cache.backend.clone();
    let groups = reader.groups();
    mark_batches(&mut records, tables, &reader.cache.kinds, &is_p2p, lost > 0);
    let reports_completion = set_done(&mut records, &backend);
    Ok(RankLog {
        rank,
        file: file.to_owned(),
        records,
        groups,
        lost,
        has_gaps,
        only_active: false,
        from_log: false,
        has_stacks: reader.has_stacks,
        reports_completion,
        status: top.get("pg_status").map(|it| status_of_groups(values, *it, &numbers)).unwrap_or_default(),
    })
}

/// Reads `pg_status`; groups without usable numbers are left out.
fn status_of_groups(values: &Values, status: Id, numbers: &FxHashMap<u32, GroupId>) -> Vec<GroupStatus> {
    let groups = values.dict(status).into_iter().flatten().take(MAX_STATUS);
    let read = |(number, group): (&str, Id)| {
        let last = |key: &str| values.dict(group)?.find(|it| it.0 == key).and_then(|it| values.int(it.1));
        let (enqueued, completed) = (last("last_enqueued_collective")?, last("last_completed_collective")?);
        let group = number.parse().ok()?;
        Some(GroupStatus { group, of: numbers.get(&group).copied(), enqueued, completed })
    };
    groups.filter_map(read).collect()
}

/// Sets `done`, and returns whether the recorder reports completion. Plain gloo leaves every record `scheduled` and retires it
/// when it finished; a hook on a backend that does not report completion retires every record when it is issued.
fn set_done(records: &mut [Record], backend: &str) -> bool {
    let retires = backend == "gloo" && records.iter().all(|it| it.state == State::Scheduled);
    let reports = retires
        || backend.starts_with("nccl")
        || records.iter().any(|it| it.state == State::Completed || !it.retired);
    for record in records {
        // The end of a group of calls has set `done` of its members.
        record.done |= record.state == State::Completed || retires && record.retired;
    }
    reports
}

/// The name and description of a group with its members, by name.
type Members<'v> = FxHashMap<&'v str, (&'v str, Vec<Rank>)>;

fn members_of_groups(values: &Values, config: Id) -> Result<Members<'_>, DumpError> {
    let (mut found, mut count) = (Members::default(), 0);
    for (name, group) in values.dict(config).into_iter().flatten() {
        let Some(keys) = values.dict(group) else { continue };
        let (mut ranks, mut description) = (Vec::new(), "");
        for (key, value) in keys {
            match key {
                "ranks" => ranks = ranks_of(values, value),
                "desc" => description = values.text(value).unwrap_or(""),
                _ => (),
            }
        }
        count += ranks.len();
        if count > MAX_MEMBERS {
            return Err(DumpError::TooManyMembers);
        }
        found.insert(name, (description, ranks));
    }
    Ok(found)
}

/// Returns ranks, which are a text such as `[0, 1]` or a list.
fn ranks_of(values: &Values, id: Id) -> Vec<Rank> {
    if let Some(list) = values.list(id) {
        let ranks = list.iter().filter_map(|it| Rank::try_from(values.int(*it)?).ok());
        return ranks.filter(|it| *it <= MAX_RANK).collect();
    }
    let text = values.text(id).unwrap_or("").trim_matches(['[', ']', '(', ')']);
    text.split(',').filter_map(|it| it.trim().parse().ok()).filter(|it| *it <= MAX_RANK).collect()
}

/// Numbers of what the records of this file have in common.
#[derive(Default)]
struct Caches {
    signatures: FxHashMap<Vec<u8>, SignatureId>,
    /// The same by the values: those of a pickle may share their lists.
    signatures_by_value: FxHashMap<[Option<Id>; 5], SignatureId>,
    kinds: FxHashMap<SignatureId, Kind>,
    groups: FxHashMap<Vec<u8>, GroupId>,
    stacks: FxHashMap<Vec<u8>, StackId>,
    names: FxHashMap<String, NameId>,
    backend: String,
    /// The number of members of all groups, one for each backend.
    members: usize,
    key: Vec<u8>,
}

/// A record, its number, whether it is of messages, and the number of its group in the process.
type ReadRecord = (Record, Option<u64>, bool, Option<u32>);

struct Reader<'v> {
    values: &'v Values,
    tables: &'v Interners,
    version: String,
    members: Members<'v>,
    cache: Caches,
    has_stacks: bool,
}

impl<'v> Reader<'v> {
    fn record(&mut self, at: usize, entry: Id) -> Result<ReadRecord, DumpError> {
        let values = self.values;
        let missing = |key, version: &str| DumpError::Key { record: at, key, version: version.to_owned() };
        let keys = Keys::of(values, entry).ok_or_else(|| missing("profiling_name", &self.version))?;
        let name = keys.name.and_then(|it| self.name_text(it));
        let name = name.ok_or_else(|| missing("profiling_name", &self.version))?;
        let state = match keys.state.and_then(|it| values.text(it)) {
            Some("completed") => State::Completed,
            Some("started") => State::Started,
            Some("scheduled") => State::Scheduled,
            _ => return Err(missing("state", &self.version)),
        };
        // Older versions have one sequence number for both.
        let seq = self.number(keys.seq).ok_or_else(|| missing("collective_seq_id", &self.version))?;
        let time = |id: Option<Id>| id.and_then(|it| values.int(it)).unwrap_or(0);
        let created = keys.created.and_then(|it| values.int(it));
        let created = created.ok_or_else(|| missing("time_created_ns", &self.version))?;
        let (backend, operation) = name.rsplit_once(':').unwrap_or(("", name));
        let (operation, peer) = operation.split_once(' ').unwrap_or((operation, ""));
        let group = self.group(keys.process_group, keys.pg_id, backend);
        let group = group.ok_or_else(|| missing("process_group", &self.version))?;
        let signature = self.signature(operation, &keys);
        let peer = self.peer(peer, &keys);
        let (completed, timeout) = (time(keys.completed), time(keys.timeout));
        let waited = completed.saturating_sub(created) / 1_000_000;
        let has_waited = |limit: i64| timeout > 0 && completed > 0 && waited >= limit;
        let id = keys.record_id.and_then(|it| values.int(it)).and_then(|it| u64::try_from(it).ok());
        let record = Record {
            signature,
            number: id.map_or(at as u32, |it| it as u32),
            group,
            stack: self.stack(keys.frames),
            seq,
            p2p_seq: self.number(keys.p2p_seq).unwrap_or(0),
            op: self.number(keys.op).unwrap_or(0),
            peer,
            state,
            retired: keys.retired.and_then(|it| values.bool(it)).unwrap_or(state == State::Completed),
            done: false,
            batch: Batch::Alone,
            created,
            started: time(keys.started),
            completed,
            outlived: has_waited(timeout),
            waited_long: has_waited(timeout / 2),
        };
        let is_p2p = keys.is_p2p.and_then(|it| values.bool(it)).unwrap_or(peer != Peer::None);
        Ok((record, id, is_p2p, self.number(keys.pg_id)))
    }

    /// Returns the name of a call or of a group: records may share a long text, which each of them would read.
    fn name_text(&self, id: Id) -> Option<&'v str> {
        self.values.text(id).filter(|it| it.len() <= MAX_NAME)
    }

    fn number(&self, id: Option<Id>) -> Option<u32> {
        // Positions are added to each other.
        u32::try_from(self.values.int(id?)?).ok().filter(|it| *it <= u32::MAX / 4)
    }

    fn group(&mut self, group: Option<Id>, number: Option<Id>, backend: &str) -> Option<GroupId> {
        let values = self.values;
        let (name, description) = match group.map(|it| (values.list(it), it)) {
            Some((Some(pair), _)) => (
                self.name_text(*pair.first()?)?.to_owned(),
                pair.get(1).and_then(|it| self.name_text(*it)).unwrap_or(""),
            ),
            Some((None, it)) => (self.name_text(it)?.to_owned(), ""),
            None => (values.int(number?)?.to_string(), ""),
        };
        self.cache.key.clear();
        for part in [name.as_str(), description, backend] {
            self.cache.key.extend_from_slice(part.as_bytes());
            self.cache.key.push(0);
        }
        if let Some(id) = self.cache.groups.get(&self.cache.key) {
            return Some(*id);
        }
        if self.cache.backend.is_empty() {
            backend.clone_into(&mut self.cache.backend);
        }
        let members = self.members.get(name.as_str()).map(|it| it.1.clone()).filter(|it| !it.is_empty());
        self.cache.members += members.as_ref().map_or(0, Vec::len);
        let [name, description, backend] = [&name, description, backend].map(escape_control);
        let group = Group { name, description, backend, members };
        let id = GroupId(self.tables.groups.intern(group));
        self.cache.groups.insert(self.cache.key.clone(), id);
        Some(id)
    }

    /// Returns all groups of the rank: those of its records and those of its configuration.
    /// Those without records have no backend.
    fn groups(&self) -> Vec<GroupId> {
        let mut found: Vec<GroupId> = self.cache.groups.values().copied().collect();
        let used: Vec<&str> = self
            .cache
            .groups
            .keys()
            .filter_map(|it| str::from_utf8(it.split(|it| *it == 0).next()?).ok())
            .collect();
        for (name, (description, members)) in &self.members {
            if name.is_empty() || members.is_empty() || used.contains(name) {
                continue;
            }
            found.push(GroupId(self.tables.groups.intern(Group {
                name: (*name).to_owned(),
                description: (*description).to_owned(),
                backend: String::new(),
                members: Some(members.clone()),
            })));
        }
        found.sort_unstable();
        found
    }

    fn signature(&mut self, name: &str, keys: &Keys) -> SignatureId {
        let by_value = [keys.name, keys.inputs, keys.outputs, keys.input_types, keys.output_types];
        if let Some(id) = self.cache.signatures_by_value.get(&by_value) {
            return *id;
        }
        let id = self.signature_of_lists(name, keys);
        self.cache.signatures_by_value.insert(by_value, id);
        id
    }

    fn signature_of_lists(&mut self, name: &str, keys: &Keys) -> SignatureId {
        let values = self.values;
        self.cache.key.clear();
        self.cache.key.extend_from_slice(name.as_bytes());
        for list in [keys.inputs, keys.outputs] {
            self.cache.key.push(0xff);
            for shape in list.and_then(|it| values.list(it)).unwrap_or_default().iter().take(MAX_SHAPES) {
                self.cache.key.push(0xfe);
                for extent in values.list(*shape).unwrap_or_default().iter().take(MAX_EXTENTS) {
                    let extent = values.int(*extent).unwrap_or(-1);
                    self.cache.key.extend_from_slice(&extent.to_le_bytes());
                }
            }
        }
        for list in [keys.input_types, keys.output_types] {
            self.cache.key.push(0xff);
            for text in list.and_then(|it| values.list(it)).unwrap_or_default().iter().take(MAX_SHAPES) {
                self.cache.key.extend_from_slice(values.text(*text).unwrap_or("").as_bytes());
                self.cache.key.push(0xfe);
            }
        }
        if let Some(id) = self.cache.signatures.get(&self.cache.key) {
            return *id;
        }
        let shapes = |id: Option<Id>| {
            let shapes = id.and_then(|it| values.list(it)).unwrap_or_default();
            let extents = |shape: &Id| values.list(*shape).unwrap_or_default().iter().take(MAX_EXTENTS);
            let shape = |it| extents(it).map(|it| values.int(*it).unwrap_or(-1)).collect();
            shapes.iter().take(MAX_SHAPES).map(shape).collect()
        };
        let texts = |id: Option<Id>| {
            let texts = id.and_then(|it| values.list(it)).unwrap_or_default();
            texts.iter().take(MAX_SHAPES).map(|it| values.text(*it).unwrap_or("").to_owned()).collect()
        };
        let kind = Kind::of(name);
        let signature = Signature {
            name: escape_control(name),
            kind,
            inputs: shapes(keys.inputs),
            outputs: shapes(keys.outputs),
            input_types: texts(keys.input_types),
            output_types: texts(keys.output_types),
            parts: Vec::new(),
        };
        let id = SignatureId(self.tables.signatures.intern(signature));
        self.cache.signatures.insert(self.cache.key.clone(), id);
        self.cache.kinds.insert(id, kind);
        id
    }

    /// Reads `1->2`, `2<-1` or `2<-?`: ranks in the group.
    fn peer(&self, text: &str, keys: &Keys) -> Peer {
        let split = text.split_once("->").or_else(|| text.split_once("<-"));
        let Some(peer) = split.map(|it| it.1.trim()).filter(|it| !it.is_empty()) else {
            return Peer::None;
        };
        let Ok(peer) = peer.parse::<Rank>() else { return Peer::Any };
        let name = keys.process_group.and_then(|it| self.values.list(it)?.first().copied());
        let name = name.and_then(|it| self.values.text(it)).unwrap_or("");
        let members = self.members.get(name).map(|it| &it.1).filter(|it| !it.is_empty());
        match members {
            Some(members) => members.get(peer as usize).map_or(Peer::Any, |it| Peer::Rank(*it)),
            // The members are unknown: right for the world.
            None => Peer::Rank(peer),
        }
    }

    fn stack(&mut self, frames: Option<Id>) -> StackId {
        let values = self.values;
        let list = frames.and_then(|it| values.list(it)).unwrap_or_default();
        let list = &list[..list.len().min(MAX_FRAMES)];
        // Equal frames of a pickle are one node.
        self.cache.key.clear();
        list.iter().for_each(|it| self.cache.key.extend_from_slice(&it.0.to_le_bytes()));
        if let Some(id) = self.cache.stacks.get(&self.cache.key) {
            return *id;
        }
        let key = self.cache.key.clone();
        let mut stack = Stack::default();
        for frame in list {
            let (mut file, mut function, mut line) = ("", "", 0);
            for (key, value) in values.dict(*frame).into_iter().flatten() {
                match key {
                    "filename" => file = values.text(value).unwrap_or(""),
                    "name" => function = values.text(value).unwrap_or(""),
                    "line" => line = values.int(value).and_then(|it| u32::try_from(it).ok()).unwrap_or(0),
                    _ => (),
                }
            }
            let (file, function) = (self.name(file), self.name(function));
            stack.frames.push(Frame { file, function, line });
        }
        self.has_stacks |= !stack.frames.is_empty();
        let id = StackId(self.tables.stacks.intern(stack));
        self.cache.stacks.insert(key, id);
        id
    }

    fn name(&mut self, text: &str) -> NameId {
        if let Some(id) = self.cache.names.get(text) {
            return *id;
        }
        let id = NameId(self.tables.names.intern(escape_control(text)));
        self.cache.names.insert(text.to_owned(), id);
        id
    }
}
