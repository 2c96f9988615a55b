//! Groups of calls that are issued as one: `batch_isend_irecv` and coalesced collectives of NCCL.
//!
//! NCCL's recorder writes a record for each call of the group, with equal sequence numbers, and then the record `nccl:coalesced`. Only
//! the state of that record is kept up to date; those of the calls stay `scheduled`.

use rustc_hash::FxHashMap;

use crate::record::{Batch, Interners, Kind, Peer, Record, Signature, SignatureId, State};

/// Marks the calls of groups (`is_p2p` says it of each record; `is_cut`, that older ones are lost), and gives the end of a group of collectives the signature of all of its calls.
pub(crate) fn mark_batches(
    records: &mut [Record],
    tables: &Interners,
    kinds: &FxHashMap<SignatureId, Kind>,
    is_p2p: &[bool],
    is_cut: bool,
) {
    for end in 0..records.len() {
        if kinds.get(&records[end].signature) != Some(&Kind::Coalesced) {
            continue;
        }
        let marker = records[end].clone();
        let of_p2p = is_p2p.get(end).copied().unwrap_or(false);
        let done = marker.state == State::Completed;
        let (mut parts, mut first) = (Vec::new(), end);
        for at in (0..end).rev() {
            let record = &mut records[at];
            if record.group != marker.group {
                continue;
            }
            let is_part = record.batch == Batch::Alone
                && (record.peer != Peer::None) == of_p2p
                && if of_p2p { record.p2p_seq == marker.p2p_seq } else { record.seq == marker.seq };
            if !is_part {
                break;
            }
            record.batch = Batch::Member;
            (record.done, record.started, record.retired) = (done, marker.started, marker.retired);
            parts.push(record.signature);
            first = at;
        }
        let is_whole = !is_cut || records[..first].iter().any(|it| it.group == marker.group);
        records[end].batch = match (of_p2p, is_whole) {
            (true, _) => Batch::P2pEnd,
            (false, true) => Batch::CollectiveEnd,
            (false, false) => Batch::CutEnd,
        };
        if !of_p2p {
            parts.reverse();
            let signature = Signature {
                name: "coalesced".to_owned(),
                kind: Kind::Coalesced,
                inputs: Vec::new(),
                outputs: Vec::new(),
                input_types: Vec::new(),
                output_types: Vec::new(),
                parts,
            };
            records[end].signature = SignatureId(tables.signatures.intern(signature));
        }
    }
}
