//! The keys of a record of the flight recorder, under the names that versions of its format give them.

use crate::value::{Id, Values};

/// The keys of a record that hir reads.
#[derive(Default)]
pub(super) struct Keys {
    pub record_id: Option<Id>,
    pub process_group: Option<Id>,
    pub pg_id: Option<Id>,
    pub seq: Option<Id>,
    pub p2p_seq: Option<Id>,
    pub op: Option<Id>,
    pub name: Option<Id>,
    pub inputs: Option<Id>,
    pub input_types: Option<Id>,
    pub outputs: Option<Id>,
    pub output_types: Option<Id>,
    pub state: Option<Id>,
    pub created: Option<Id>,
    pub started: Option<Id>,
    pub completed: Option<Id>,
    pub timeout: Option<Id>,
    pub retired: Option<Id>,
    pub frames: Option<Id>,
    pub is_p2p: Option<Id>,
}

impl Keys {
    /// Finds the keys of a record; `None` if it is no dictionary.
    pub fn of(values: &Values, entry: Id) -> Option<Self> {
        let mut keys = Self::default();
        for (key, id) in values.dict(entry)? {
            let place = match key {
                "record_id" | "id" => &mut keys.record_id,
                "process_group" => &mut keys.process_group,
                "pg_id" => &mut keys.pg_id,
                "collective_seq_id" | "seq_id" => &mut keys.seq,
                "p2p_seq_id" => &mut keys.p2p_seq,
                "op_id" => &mut keys.op,
                "profiling_name" => &mut keys.name,
                "input_sizes" => &mut keys.inputs,
                "input_dtypes" => &mut keys.input_types,
                "output_sizes" => &mut keys.outputs,
                "output_dtypes" => &mut keys.output_types,
                "state" => &mut keys.state,
                "time_created_ns" => &mut keys.created,
                "time_discovered_started_ns" => &mut keys.started,
                "time_discovered_completed_ns" => &mut keys.completed,
                "timeout_ms" => &mut keys.timeout,
                "retired" => &mut keys.retired,
                "frames" => &mut keys.frames,
                "is_p2p" => &mut keys.is_p2p,
                _ => continue,
            };
            *place = Some(id);
        }
        Some(keys)
    }
}
