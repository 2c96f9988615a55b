//! Memory that two programs of a process share: inputs and outputs of one name, and tensors in symmetric memory.

use std::collections::BTreeSet;

use grammar::DType;

use super::not_compared::NotCompared;
use hir_plan::{BufferNo, IoBinding, Plan};

/// Adds the buffers of `second` to `first`, and returns their numbers there. Inputs and outputs of one name are one buffer, and so are
/// tensors with one of the names `shared`.
///
/// # Errors
/// A buffer has another element type in `second`, or two of its names are different buffers of `first`.
pub(super) fn join_buffers(
    first: &mut Plan,
    second: &Plan,
    shared: &BTreeSet<String>,
) -> Result<Vec<BufferNo>, NotCompared> {
    let ports = |plan: &Plan| -> Vec<(String, BufferNo)> {
        let port = |it: &IoBinding| Some((it.name.clone(), it.shard.view.as_ref()?.buffer));
        let local = (0..).zip(&plan.buffers).filter(|it| shared.contains(&*it.1.name));
        let local = local.map(|(number, it)| (it.name.to_string(), number));
        plan.inputs.iter().chain(&plan.outputs).filter_map(port).chain(local).collect()
    };
    let (mine, theirs) = (ports(first), ports(second));
    let dtypes: Vec<DType> = first.buffers.iter().map(|it| it.dtype).collect();
    let known_as = |buffer: BufferNo| -> Result<Option<BufferNo>, NotCompared> {
        let names = theirs.iter().filter(|it| it.1 == buffer).map(|it| &it.0);
        let mut known: Option<&(String, BufferNo)> = None;
        for it in names.flat_map(|name| mine.iter().filter(move |it| it.0 == *name)) {
            let dtypes = [dtypes[it.1 as usize], second.buffers[buffer as usize].dtype];
            if dtypes[0] != dtypes[1] {
                return Err(NotCompared::DifferentTypes { name: it.0.clone(), dtypes });
            }
            if let Some(before) = known.replace(it).filter(|before| before.1 != it.1) {
                return Err(NotCompared::DifferentMemory(before.0.clone(), it.0.clone()));
            }
        }
        Ok(known.map(|it| it.1))
    };
    let known: Vec<Option<BufferNo>> =
        (0..).zip(&second.buffers).map(|(number, _)| known_as(number)).collect::<Result<_, _>>()?;
    let buffers = known.into_iter().zip(&second.buffers).map(|(known, it)| match known {
        Some(known) => {
            let buffer = &mut first.buffers[known as usize];
            buffer.len = buffer.len.max(it.len);
            known
        }
        None => {
            first.buffers.push(it.clone());
            first.buffers.len() as BufferNo - 1
        }
    });
    Ok(buffers.collect())
}
