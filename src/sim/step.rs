//! Executes the memory effects of one instruction.
//!
//! Invariant: all operands are read before anything is written, so views may overlap.

use std::sync::Arc;

use grammar::{Code, DType};
use rustc_hash::FxHashMap;

use super::{
    InstRef, RunNotes, SimError, attention,
    kernels::{self, KernelError, Operand},
    memory::{self, BufferData, Memory, is_whole},
    outcome::line_and_location,
};
use hir_plan::{Arg, InstKind, Number, Plan, View, ViewKey, ViewOnRank};
use hir_tensor::{
    data::{Data, WrittenMask, bytes::of_little_endian},
    dense::DenseTensor,
};

/// What an instruction computes, or why it cannot.
pub(super) type Result<T, E = StepError> = std::result::Result<T, E>;

/// An error of an instruction, without its location.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    /// A kernel failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The program is invalid.
    #[error("{0}")]
    Program(String),
    /// The plan is inconsistent.
    #[error("{0}")]
    Internal(String),
}

impl StepError {
    /// Adds the location of the instruction.
    pub fn into_sim_error(self, plans: &[Plan], at: InstRef) -> SimError {
        let (line, place) = line_and_location(plans, at);
        let (rank, message) = (at.rank, self.to_string());
        match self {
            Self::Kernel(KernelError::Index { .. } | KernelError::Groups { .. }) => {
                SimError::Program { code: Some(Code::BadIndex), rank, line, place, message }
            }
            Self::Kernel(KernelError::DivisionByZero { .. }) | Self::Program(_) => {
                SimError::Program { code: None, rank, line, place, message }
            }
            Self::Kernel(KernelError::Op(..) | KernelError::ReduceOp(..) | KernelError::Dtype(_)) => {
                SimError::Unsupported { rank, line, place, message }
            }
            Self::Internal(_) => SimError::Internal(format!("rank {rank}: {place}: {message}")),
        }
    }
}

/// The memory that instructions access.
pub(super) enum Memories<'a> {
    /// The memory of all ranks.
    World(&'a mut [Memory]),
    /// The private buffers of a resharding operator's body. The rank of an operand is ignored.
    Private(&'a mut Memory),
}

/// The outputs of buffers that ranks share: the contents, and the output, by the address of the contents and the view.
#[derive(Default)]
pub(super) struct SharedOutputs(FxHashMap<(usize, ViewKey), (Arc<BufferData>, Arc<DenseTensor>)>);

impl SharedOutputs {
    /// Returns the elements of a view.
    pub fn read(&mut self, space: &Memories<'_>, rank: usize, view: &View) -> Result<Arc<DenseTensor>> {
        let contents = space.buffer(rank, view)?;
        let output = || Arc::new(memory::gather(contents, view));
        if Arc::strong_count(contents) == 1 {
            return Ok(output());
        }
        // The entry keeps the contents, so that no others get their address.
        let key = (Arc::as_ptr(contents).addr(), view.key());
        let (_, output) = self.0.entry(key).or_insert_with(|| (Arc::clone(contents), output()));
        Ok(Arc::clone(output))
    }
}

impl Memories<'_> {
    fn buffer(&self, rank: usize, view: &View) -> Result<&Arc<BufferData>> {
        let memory = match self {
            Self::World(memories) => memories.get(rank),
            Self::Private(memory) => Some(&**memory),
        };
        let cell = memory.filter(|it| (view.buffer as usize) < it.len()).map(|it| it.buffer(view.buffer));
        cell.filter(|it| view.bounds().is_none_or(|(_, last)| last < it.data.len()))
            .ok_or_else(|| StepError::Internal(format!("{view:?} is outside the memory of rank {rank}")))
    }

    /// As `buffer`, for writing.
    fn buffer_mut(&mut self, rank: usize, view: &View) -> Result<&mut Arc<BufferData>> {
        self.buffer(rank, view)?;
        Ok(match self {
            Self::World(memories) => memories[rank].buffer_mut(view.buffer),
            Self::Private(memory) => memory.buffer_mut(view.buffer),
        })
    }

    /// Returns the element type of a view.
    pub fn dtype(&self, rank: usize, view: &View) -> Result<DType> {
        Ok(self.buffer(rank, view)?.data.dtype())
    }

    /// Returns the elements of a view.
    pub fn load(&self, rank: usize, view: &View) -> Result<DenseTensor> {
        Ok(memory::gather(self.buffer(rank, view)?, view))
    }

    /// Returns the elements of a view, and records a read of unwritten elements.
    pub fn read(&self, rank: usize, view: &View, notes: &mut RunNotes) -> Result<DenseTensor> {
        let block = self.load(rank, view)?;
        self.note_read(rank, view, &block.written, notes);
        Ok(block)
    }

    /// As `read`, but returns only which elements are written.
    pub fn read_written(&self, rank: usize, view: &View, notes: &mut RunNotes) -> Result<WrittenMask> {
        let written = self.buffer(rank, view)?.written.gather(view);
        self.note_read(rank, view, &written, notes);
        Ok(written)
    }

    fn note_read(&self, rank: usize, view: &View, written: &WrittenMask, notes: &mut RunNotes) {
        if let (Self::World(_), false) = (self, written.is_full()) {
            notes.read_unwritten(rank, view.buffer, written);
        }
    }

    /// Marks the elements of a view as unwritten.
    pub fn mark_unwritten(&mut self, rank: usize, view: &View) -> Result<()> {
        let cell = self.buffer_mut(rank, view)?;
        let BufferData { data, written, shadow } =
            BufferData::unwritten(cell.data.dtype(), view.len()).map_err(KernelError::from)?;
        let block = DenseTensor { shape: view.shape.clone(), data, written, shadow };
        memory::scatter(Arc::make_mut(cell), view, &block);
        Ok(())
    }

    /// Marks the elements of a view of private memory as unwritten that `written` lacks.
    pub fn clear_unwritten(&mut self, view: &View, written: &WrittenMask) -> Result<()> {
        let cell = Arc::make_mut(self.buffer_mut(0, view)?);
        let known = cell.written.gather(view);
        let both = (0..written.len()).map(|it| known.get(it) && written.get(it)).collect();
        cell.written.scatter(view, &WrittenMask::from_flags(both));
        Ok(())
    }

    /// Writes elements to a view, converted to its element type.
    pub fn store(
        &mut self,
        rank: usize,
        view: &View,
        block: DenseTensor,
        notes: &mut RunNotes,
    ) -> Result<()> {
        if block.data.len() != view.len() {
            let (given, room) = (block.data.len(), view.len());
            return Err(StepError::Internal(format!("{given} elements for a view of {room}")));
        }
        let cell = self.buffer_mut(rank, view)?;
        let dtype = cell.data.dtype();
        let block = if block.data.dtype() == dtype {
            block
        } else {
            kernels::convert(&block, dtype, &mut notes.exactness)?
        };
        let is_written = block.written.is_full();
        if is_whole(view, cell.data.len()) {
            *cell = Arc::new(block.into());
        } else {
            memory::scatter(Arc::make_mut(cell), view, &block);
        }
        self.note_write(rank, view, is_written, notes);
        Ok(())
    }

    /// As `store`, for a block that several ranks may share.
    pub fn store_shared(
        &mut self,
        rank: usize,
        view: &View,
        block: &Arc<BufferData>,
        notes: &mut RunNotes,
    ) -> Result<()> {
        let cell = self.buffer_mut(rank, view)?;
        let lengths = [view.len(), cell.data.len()];
        if !is_whole(view, cell.data.len())
            || lengths != [block.data.len(); 2]
            || cell.data.dtype() != block.data.dtype()
        {
            let all = View::contiguous(0, vec![block.data.len()]);
            return self.store(rank, view, memory::gather(block, &all), notes);
        }
        *cell = Arc::clone(block);
        self.note_write(rank, view, block.written.is_full(), notes);
        Ok(())
    }

    fn note_write(&self, rank: usize, view: &View, is_written: bool, notes: &mut RunNotes) {
        if let (Self::World(_), false) = (self, is_written) {
            notes.tainted.insert((rank, view.buffer));
        }
    }

    /// Runs an instruction whose only effect is on memory.
    pub fn run(&mut self, rank: usize, kind: &InstKind, notes: &mut RunNotes) -> Result<()> {
        let (out, block) = match kind {
            // The host allocates, and no stream does anything. Every buffer is unwritten at first.
            InstKind::Alloc { zeroed: None, .. } => return Ok(()),
            InstKind::Alloc { buffer, zeroed: Some(whole) } => {
                let cell = self.buffer_mut(rank, whole)?;
                let (dtype, len) = (cell.data.dtype(), cell.data.len());
                *cell = Arc::new(BufferData::zeroed(dtype, len).map_err(KernelError::from)?);
                notes.tainted.remove(&(rank, *buffer));
                return Ok(());
            }
            InstKind::Copy { from, to } => {
                let block = self.read(from.rank, &from.view, notes)?;
                return self.store(to.rank, &to.view, block, notes);
            }
            InstKind::Fill { to, value } => {
                let mut data = self.zeros_for(rank, to)?;
                if (0..data.len()).filter(|&it| data.set(it, *value)).count() > 0 {
                    notes.exactness.count(data.len());
                }
                (&**to, DenseTensor::full(to.shape.clone(), data))
            }
            InstKind::Iota { to, start, step } => {
                let mut data = self.zeros_for(rank, to)?;
                let value = |it: usize| Number::Int(start.wrapping_add(step.wrapping_mul(it as i64)));
                notes.exactness.count((0..data.len()).filter(|&it| data.set(it, value(it))).count());
                (&**to, DenseTensor::full(to.shape.clone(), data))
            }
            InstKind::Constant { to, bytes } => {
                let data = of_little_endian(self.dtype(rank, to)?, bytes).map_err(KernelError::from)?;
                (&**to, DenseTensor::full(to.shape.clone(), data))
            }
            InstKind::Gemm(it) => {
                let (a, b) = (self.read(rank, &it.a, notes)?, self.read(rank, &it.b, notes)?);
                let bias = it.bias.as_ref().map(|it| self.read(rank, it, notes)).transpose()?;
                let dtype = self.dtype(rank, &it.out)?;
                (&it.out, kernels::gemm(&a, &b, bias.as_ref(), dtype, &mut notes.exactness)?)
            }
            InstKind::Attention(it) => return attention::run(rank, it, self, notes),
            InstKind::AttentionGradient(it) => return attention::run_gradient(rank, it, self, notes),
            InstKind::Routine(it) => {
                let read = |view: &View| self.read(rank, view, notes);
                let inputs = it.inputs.iter().map(read).collect::<Result<Vec<_>, _>>()?;
                let mut targets = Vec::with_capacity(it.outs.len());
                for out in &it.outs {
                    targets.push((self.dtype(rank, out)?, out.shape.as_slice()));
                }
                let blocks = kernels::routine(it.kind, &inputs, &targets, &mut notes.exactness)?;
                return it.outs.iter().zip(blocks).try_for_each(|(out, it)| self.store(rank, out, it, notes));
            }
            InstKind::Map { op, args, out } => {
                let mut blocks = Vec::new();
                for it in args {
                    if let Arg::View(view) = it {
                        blocks.push(self.read(rank, view, notes)?);
                    }
                }
                let mut next = blocks.iter();
                let operand = |it: &Arg| match it {
                    Arg::View(_) => next.next().map(Operand::Tensor),
                    Arg::Number(number) => Some(Operand::Number(*number)),
                };
                let args: Vec<Operand<'_>> = args.iter().filter_map(operand).collect();
                let dtype = self.dtype(rank, out)?;
                (&**out, kernels::map(*op, &args, dtype, &out.shape, &mut notes.exactness)?)
            }
            InstKind::Reduce(it) => {
                let input = self.read(rank, &it.input, notes)?;
                let dtype = self.dtype(rank, &it.out)?;
                (&it.out, kernels::reduce(it.op, it.init, &input, &it.axes, dtype, &mut notes.exactness)?)
            }
            InstKind::PeerReduce { op, parts, out } => {
                let read = |it: &ViewOnRank| self.read(it.rank, &it.view, notes);
                let parts = parts.iter().map(read).collect::<Result<Vec<_>, _>>()?;
                let dtype = self.dtype(rank, out)?;
                (&**out, kernels::peer_reduce(*op, &parts, dtype, &mut notes.exactness)?)
            }
            InstKind::Collective(_)
            | InstKind::P2pGroup(_)
            | InstKind::Reshard(_)
            | InstKind::OpaqueCall(_)
            | hir_plan::ordering_insts!() => {
                return Err(StepError::Internal(
                    "an instruction that does not compute was run on memory".to_owned(),
                ));
            }
        };
        self.store(rank, out, block, notes)
    }

    /// Returns zeros of a view's type and size.
    fn zeros_for(&self, rank: usize, view: &View) -> Result<Data> {
        let dtype = self.dtype(rank, view)?;
        Ok(Data::zeros(dtype, view.len()).map_err(KernelError::from)?)
    }
}
