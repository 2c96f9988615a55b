//! Staging buffers: contiguous copies of a member's views, for transports that cannot use the views
//! themselves.
//!
//! An input is copied if its elements are not equally spaced (some transports require that they are contiguous), or if it
//! overlaps the output and the transport does not support that overlap. An output is copied if its elements are not equally
//! spaced.

use rustc_hash::FxHashMap;

use super::{MemberViews, Transport};
use crate::{
    Backend, Buffer, BufferNo, Collective, CollectiveKind, Communication, CommunicatorNo, InstKind, Plan,
    StreamNo, SyncEffect, View, ViewOnRank, WorkNo,
};

/// The staging buffers of a member's views.
#[derive(Debug, Default)]
pub(super) struct StagedViews {
    pub input: Option<StagedView>,
    pub output: Option<StagedView>,
}

/// The staging buffer of a view.
#[derive(Debug)]
pub(super) struct StagedView {
    /// The buffer. Collectives share buffers: the first one in the order of the plan allocates it.
    pub buffer: BufferNo,
    /// The copy of an input to the buffer, before the collective, or of an output from it, after the collective.
    pub copy: InstKind,
}

impl StagedViews {
    /// Returns the number of instructions: an allocation and a copy for each view.
    pub(super) fn size(&self) -> usize {
        2 * self.input.iter().chain(&self.output).count()
    }
}

/// The staging buffers of a rank. A collective reuses the buffers of an earlier one if it is posted on the
/// stream that has waited for the earlier one, or follows it on the communicator's queue.
pub(super) struct StagingPool {
    /// By work: the buffer set of the collective.
    sets: Vec<Option<BufferSet>>,
    buffers: FxHashMap<(BufferSet, StagedOperand, BufferNo, usize), BufferNo>,
}

/// A set of buffers that one collective uses at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum BufferSet {
    /// A set of a stream, with its number.
    OfStream(StreamNo, usize),
    /// The set of a communicator's queue.
    OfQueue(CommunicatorNo),
}

/// The operand that a buffer replaces.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum StagedOperand {
    Input,
    Output,
}

impl StagingPool {
    /// Assigns a buffer set to each collective of a rank.
    pub(super) fn of(plan: &Plan) -> Self {
        let mut sets = vec![None; plan.work_count];
        let mut in_use: FxHashMap<StreamNo, Vec<bool>> = FxHashMap::default();
        for inst in &plan.code {
            match inst.kind.effect() {
                SyncEffect::Post(Communication::Collective(it))
                    if plan.communicators[it.communicator as usize].backend == Backend::Cuda =>
                {
                    let all = in_use.entry(inst.stream).or_default();
                    let free = all.iter().position(|it| !it).unwrap_or(all.len());
                    all.resize(all.len().max(free + 1), true);
                    all[free] = true;
                    sets[it.work as usize] = Some(BufferSet::OfStream(inst.stream, free));
                }
                SyncEffect::Post(Communication::Collective(it)) => {
                    sets[it.work as usize] = Some(BufferSet::OfQueue(it.communicator))
                }
                SyncEffect::Wait(work) => {
                    if let Some(BufferSet::OfStream(stream, number)) = sets[work as usize]
                        && stream == inst.stream
                        && let Some(all) = in_use.get_mut(&stream)
                    {
                        all[number] = false;
                    }
                }
                // A P2P group needs no staging buffers.
                SyncEffect::Post(Communication::P2pGroup(_))
                | SyncEffect::Compute
                | SyncEffect::ShareMemHandles(_)
                | SyncEffect::Barrier
                | SyncEffect::HostWait(_)
                | SyncEffect::RecordEvent(_)
                | SyncEffect::WaitEvent(_)
                | SyncEffect::Signal(_)
                | SyncEffect::WaitSignal(_)
                | SyncEffect::Reshard(_)
                | SyncEffect::ReadOutputs => (),
            }
        }
        Self { sets, buffers: FxHashMap::default() }
    }

    /// Returns the views that the transport uses, and their staging buffers, which it adds to the plan. `me` is the
    /// member, `n` the size of the team.
    pub(super) fn stage(
        &mut self,
        plan: &mut Plan,
        transport: &dyn Transport,
        (kind, me, n): (CollectiveKind, usize, usize),
        posted: &Collective,
    ) -> (MemberViews, StagedViews) {
        let (mut member, mut staged_views) = (MemberViews::default(), StagedViews::default());
        let (input, output) = (posted.input.as_ref(), posted.output.as_ref());
        let flat = |view: &View| {
            view.reshape(&[view.len()]).filter(|it| it.is_contiguous() || !transport.needs_dense_views())
        };
        if let Some(input) = input {
            let safe = output.is_none_or(|output| {
                !input.may_alias(output)
                    || transport.supports_in_place(kind) && kind.is_in_place((me, n), input, output)
            });
            member.input = Some(flat(input).filter(|_| safe).unwrap_or_else(|| {
                let staged = self.buffer(plan, (posted.work, StagedOperand::Input), input);
                let copy = copy(plan.rank, input, &shaped(&staged, input));
                staged_views.input = Some(StagedView { buffer: staged.buffer, copy });
                staged
            }));
        }
        if let Some(output) = output {
            member.output = Some(flat(output).unwrap_or_else(|| {
                let staged = self.buffer(plan, (posted.work, StagedOperand::Output), output);
                let copy = copy(plan.rank, &shaped(&staged, output), output);
                staged_views.output = Some(StagedView { buffer: staged.buffer, copy });
                staged
            }));
        }
        (member, staged_views)
    }

    /// Returns a contiguous buffer for the elements of a view.
    fn buffer(&mut self, plan: &mut Plan, (work, role): (WorkNo, StagedOperand), view: &View) -> View {
        let next = plan.buffers.len() as BufferNo;
        let known = self.sets[work as usize]
            .map(|set| *self.buffers.entry((set, role, view.buffer, view.len())).or_insert(next));
        let number = known.unwrap_or(next);
        if number == next {
            let Buffer { name, dtype, .. } = &plan.buffers[view.buffer as usize];
            let it = Buffer::new(format!("{name}.staged"), *dtype, view.len());
            plan.buffers.push(it);
        }
        View::contiguous(number, vec![view.len()])
    }
}

/// Returns a staging buffer in the shape of the view that it replaces.
fn shaped(staged: &View, view: &View) -> View {
    View::contiguous(staged.buffer, view.shape.clone())
}

fn copy(rank: usize, from: &View, to: &View) -> InstKind {
    let place = |view: &View| Box::new(ViewOnRank { rank, view: view.clone() });
    InstKind::Copy { from: place(from), to: place(to) }
}
