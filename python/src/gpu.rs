//! A GPU that this process uses for PyTorch as well, and programs that run there.

use std::sync::Arc;

use hir_executor::{
    AttentionLibrary, AttentionTask, CallerPort, DeviceTensor, ExecutorError, InProcessDevice,
    InProcessProgram, LoadOptions, PortBuffer, ProcessGroup, backend,
};
use pyo3::{prelude::*, types::PyBytes};

use crate::{error, world::World};

/// The GPU of a rank.
#[pyclass(frozen)]
pub(crate) struct Gpu {
    gpu: Arc<dyn InProcessDevice>,
    group: Arc<Group>,
}

/// A program that is ready to run on the GPU of a rank.
#[pyclass(frozen)]
pub(crate) struct GpuProgram {
    program: Box<dyn InProcessProgram>,
    group: Arc<Group>,
}

/// The ranks of the job, which exchange messages by a function of Python: it takes the bytes of this rank and returns those of
/// all ranks.
struct Group {
    rank: usize,
    world: usize,
    exchange: Py<PyAny>,
}

impl ProcessGroup for Group {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn local_rank(&self) -> Option<usize> {
        None
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, ExecutorError> {
        let exchanged = Python::attach(|py| -> PyResult<Vec<Vec<u8>>> {
            self.exchange.call1(py, (PyBytes::new(py, mine),))?.extract(py)
        });
        let all = exchanged.map_err(|fault| ExecutorError::Environment(fault.to_string()))?;
        if all.len() == self.world {
            Ok(all)
        } else {
            Err(ExecutorError::Internal(format!("messages of {} ranks, of {}", all.len(), self.world)))
        }
    }

    fn barrier(&self) -> Result<(), ExecutorError> {
        self.all_gather(&[]).map(drop)
    }

    fn report_phase(&self, _: &str) {}
}

/// Kernels for attentions of an object of Python, with the methods `computes(task)`, `workspace(task)` and `issue(task, stream)`.
struct Attentions(Py<PyAny>);

/// Address, short name of the type, shape, strides.
type TensorRow = (u64, &'static str, Vec<usize>, Vec<usize>);

/// The tensors, whether gradients are computed, whether it is causal, the factor of the scores, address and bytes of the workspace.
fn task_row(it: &AttentionTask) -> (Vec<TensorRow>, bool, bool, f64, (u64, usize)) {
    let row = |it: &DeviceTensor| (it.address, it.dtype.short_name(), it.shape.clone(), it.strides.clone());
    (it.tensors.iter().map(row).collect(), it.is_gradient, it.is_causal, it.scale, it.workspace)
}

/// Returns an answer. An error is shown, and no answer.
fn answered<T: Default>(py: Python<'_>, answer: PyResult<T>) -> T {
    answer.unwrap_or_else(|error| {
        error.write_unraisable(py, None);
        T::default()
    })
}

impl AttentionLibrary for Attentions {
    fn prepare(&self, task: &AttentionTask) -> Result<usize, ExecutorError> {
        Python::attach(|py| {
            // What it cannot answer, hir's kernels compute. Without memory of the program, its kernels allocate their own.
            let ask = |what| self.0.call_method1(py, what, (task_row(task),));
            if answered(py, ask("computes").and_then(|it| it.extract(py))) {
                Ok(answered(py, ask("workspace").and_then(|it| it.extract(py))))
            } else {
                Err(ExecutorError::Environment("PyTorch would not choose cuDNN or FlashAttention".to_owned()))
            }
        })
    }

    fn launches(&self, _: &AttentionTask) -> usize {
        // The kernels of PyTorch, and copies of the results.
        16
    }

    fn issue(&self, task: &AttentionTask, stream: u64) -> Result<(), ExecutorError> {
        Python::attach(|py| self.0.call_method1(py, "issue", (task_row(task), stream)).map(drop))
            .map_err(|fault| ExecutorError::Environment(fault.to_string()))
    }
}

/// Name, number of elements, bytes of an element, whether it is an input, whether it is copied.
type BufferRow = (String, usize, usize, bool, bool);
/// Name, index of the buffer, offset, shape, strides.
type PortRow = (String, usize, usize, Vec<usize>, Vec<usize>);

#[pymethods]
impl Gpu {
    /// `attention` has kernels for attentions (`Attentions`), unless it is None.
    #[new]
    #[pyo3(signature = (ordinal, rank, world, exchange, attention = None))]
    fn new(
        py: Python<'_>,
        ordinal: usize,
        rank: usize,
        world: usize,
        exchange: Py<PyAny>,
        attention: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let group = Arc::new(Group { rank, world, exchange });
        let attention = attention.map(|it| Arc::new(Attentions(it)) as Arc<dyn AttentionLibrary>);
        let gpu = py
            .detach(|| backend()?.open_in_process(ordinal, &*group, attention))
            .map_err(|it| error::failed(py, it))?;
        Ok(Self { gpu, group })
    }

    /// Prepares a program; with `captures`, runs whose addresses repeat become CUDA graphs. A run may write to the `donated` inputs, by name. All
    /// ranks have to call this.
    #[pyo3(signature = (world, captures, donated = Vec::new()))]
    fn load(
        &self,
        py: Python<'_>,
        world: &World,
        captures: bool,
        donated: Vec<String>,
    ) -> PyResult<GpuProgram> {
        let options = LoadOptions { captures, donated: &donated };
        let program = py.detach(|| Arc::clone(&self.gpu).load(&world.world, &*self.group, options));
        let program = program.map_err(|it| error::failed(py, it))?;
        Ok(GpuProgram { program, group: Arc::clone(&self.group) })
    }
}

#[pymethods]
impl GpuProgram {
    /// The memory that a run needs.
    fn buffers(&self) -> Vec<BufferRow> {
        let row = |it: &PortBuffer| (it.name.clone(), it.len, it.dtype.size(), it.is_input, it.is_copied);
        self.program.ports().buffers.iter().map(row).collect()
    }

    /// The inputs: contiguous tensors, each a buffer of its own; None where this rank holds no part.
    fn inputs(&self) -> Vec<Option<PortRow>> {
        rows(&self.program.ports().inputs)
    }

    /// The outputs: views of buffers; None where this rank holds no part.
    fn outputs(&self) -> Vec<Option<PortRow>> {
        rows(&self.program.ports().outputs)
    }

    /// What the executor had to do that the program does not ask for.
    fn notes(&self) -> Vec<String> {
        self.program.notes().to_vec()
    }

    /// The numbers of runs that were issued and that are complete.
    fn progress(&self) -> (u32, u32) {
        self.program.progress()
    }

    /// Issues a run behind the work on a stream, with the address of each buffer.
    fn run(&self, py: Python<'_>, addresses: Vec<u64>, stream: u64) -> PyResult<()> {
        let done = py.detach(|| self.program.run(&addresses, stream, &*self.group));
        done.map_err(|it| error::failed(py, it))
    }
}

fn rows(ports: &[Option<CallerPort>]) -> Vec<Option<PortRow>> {
    let row = |it: &CallerPort| (it.name.clone(), it.buffer, it.offset, it.shape.clone(), it.strides.clone());
    ports.iter().map(|it| it.as_ref().map(row)).collect()
}
