//! When two calls can be one communication.
//!
//! The rules are those of the collectives themselves: what every member must pass alike. What only the root passes (the outputs of a gather, the inputs
//! of a scatter) and what each member may choose (the parts of an all-to-all) is not compared.

use rustc_hash::FxHashMap;

use crate::record::{Kind, Records, Signature, SignatureId, count, total};

/// The key of a signature: two calls of one group can be one communication only if their keys are equal.
pub(crate) type Key = u32;

#[derive(PartialEq, Eq, Hash)]
struct Facts {
    kind: Kind,
    /// The name of an operation of which hir knows nothing else.
    name: Option<String>,
    elements: i64,
    element_type: Option<String>,
    parts: Vec<Key>,
}

/// Returns the key of each signature. The calls of a coalesced group are numbered before their group.
pub(crate) fn keys(records: &Records) -> Vec<Key> {
    let mut numbers: FxHashMap<Facts, Key> = FxHashMap::default();
    let mut keys: Vec<Key> = vec![0; records.signatures.len()];
    let (groups, calls): (Vec<usize>, Vec<usize>) =
        (0..keys.len()).partition(|at| records.signatures[*at].kind == Kind::Coalesced);
    for at in calls.into_iter().chain(groups) {
        let signature = &records.signatures[at];
        let parts = signature.parts.iter().map(|it: &SignatureId| keys[it.index()]).collect();
        let facts = Facts {
            kind: signature.kind,
            name: (signature.kind == Kind::Other).then(|| signature.name.clone()),
            elements: elements(signature),
            element_type: compared_type(signature),
            parts,
        };
        let next = numbers.len() as Key;
        keys[at] = *numbers.entry(facts).or_insert(next);
    }
    keys
}

/// Returns the number of elements that every member must pass.
pub(crate) fn elements(signature: &Signature) -> i64 {
    match signature.kind {
        Kind::Barrier | Kind::AllToAll | Kind::Coalesced => 0,
        // A list of outputs of several sizes: the inputs may differ.
        Kind::AllGather if is_uneven(&signature.outputs) => total(&signature.outputs),
        Kind::ReduceScatter if is_uneven(&signature.inputs) => total(&signature.inputs),
        Kind::Scatter => total(&signature.outputs),
        Kind::AllReduce
        | Kind::Broadcast
        | Kind::Reduce
        | Kind::AllGather
        | Kind::ReduceScatter
        | Kind::Gather
        | Kind::Send
        | Kind::Recv
        | Kind::Other => signature.elements(),
    }
}

fn is_uneven(shapes: &[Vec<i64>]) -> bool {
    shapes.windows(2).any(|it| count(&it[0]) != count(&it[1]))
}

fn compared_type(signature: &Signature) -> Option<String> {
    match signature.kind {
        Kind::Barrier | Kind::Coalesced => None,
        _ => signature.element_type().map(str::to_owned),
    }
}

/// Returns the name of an element type as PyTorch programs spell it.
pub(crate) fn type_name(name: &str) -> &str {
    match name {
        "Float" => "float32",
        "Double" => "float64",
        "Half" => "float16",
        "BFloat16" => "bfloat16",
        "Byte" => "uint8",
        "Char" => "int8",
        "Short" => "int16",
        "Int" => "int32",
        "Long" => "int64",
        "Bool" => "bool",
        "ComplexFloat" => "complex64",
        "ComplexDouble" => "complex128",
        "Float8_e4m3fn" => "float8_e4m3fn",
        "Float8_e5m2" => "float8_e5m2",
        other => other,
    }
}
