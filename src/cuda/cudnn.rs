//! Attentions and their gradients by cuDNN, whose graph interface compiles one kernel for each.
//!
//! A plan is made for each form of a task: extents, strides, types and scale. What cuDNN does not compute, hir's own kernels do. Source of the
//! interface: NVIDIA's cuDNN backend API reference; of the graphs that cuDNN recognises: cuDNN's developer guide and the composite nodes of
//! cudnn-frontend.

use std::{
    ffi::OsString,
    sync::{Arc, Mutex, PoisonError},
};

use hir_executor::{AttentionLibrary, AttentionTask};

use crate::{ExecutorError, Result, library};
use graph::{Graph, Plan};
use handle::Handle;

mod attention;
mod graph;
mod handle;
mod limits;
mod parts;

/// The first version whose gradients need no memory that the caller has cleared.
const FIRST_VERSION: usize = 90600;
/// Versions whose attentions are known to be wrong: the release notes of 9.10.2 list what they mend.
const WRONG_VERSIONS: [usize; 2] = [91000, 91001];

/// The most bytes of workspace; hir's own kernels take at most half of it.
const MOST_WORKSPACE: usize = 2 << 30;
/// The kernels that a plan launches, at most.
const LAUNCHES: usize = 8;

/// Returns the file of cuDNN that the user names, or `none`.
pub(super) fn named() -> Option<OsString> {
    std::env::var_os("HIR_CUDNN")
}

/// cuDNN for attentions on the GPU whose context was current when it was made.
pub(super) struct CudnnAttention {
    /// The version and the path of cuDNN.
    title: String,
    /// Major version times 10000, minor version times 100, and patch level.
    version: usize,
    /// The compute capability of the GPU: 90 for 9.0.
    capability: i32,
    plans: Mutex<Plans>,
}

/// The plans made so far.
struct Plans {
    handle: Handle,
    /// Tasks without their addresses. An error says why cuDNN does not compute such a task.
    known: Vec<(AttentionTask, Result<Arc<Plan>>)>,
}

// SAFETY: the pointers are to objects of cuDNN, which any thread may use, one at a time; the mutex of `CudnnAttention` sees to that. Callers have
// made the GPU's context current on their thread, as for all calls of this package.
unsafe impl Send for Plans {}

impl CudnnAttention {
    /// Opens cuDNN; returns `None` if the user does not want it (`HIR_CUDNN=none`).
    ///
    /// # Errors
    /// cuDNN is missing, or of a version that is too old or known to be wrong.
    pub fn new(capability: i32) -> Result<Option<Self>> {
        let named = named();
        if named.as_deref().is_some_and(|it| it == "none") {
            return Ok(None);
        }
        let missing =
            || ExecutorError::Environment("cuDNN 9 was not found; `HIR_CUDNN` names its file".to_owned());
        let library = library::cudnn().map_err(|it| if named.is_some() { it } else { missing() })?;
        // SAFETY: no arguments.
        let version = unsafe { (library.cudnnGetVersion)() };
        if version < FIRST_VERSION || WRONG_VERSIONS.contains(&version) {
            return Err(ExecutorError::Environment(format!(
                "{} is not used: attention needs version 9.6 or later, but neither 9.10.0 nor 9.10.1; `HIR_CUDNN` names another file",
                title(version, &library.path)
            )));
        }
        let plans = Mutex::new(Plans { handle: Handle::new(library)?, known: Vec::new() });
        Ok(Some(Self { title: title(version, &library.path), version, capability, plans }))
    }

    /// Returns the version and the path of cuDNN.
    pub fn describe(&self) -> String {
        self.title.clone()
    }

    /// Returns the plan of a task, and calls `use_it` with it while no other thread uses cuDNN.
    fn with_plan<R>(
        &self,
        task: &AttentionTask,
        use_it: impl FnOnce(&Handle, &Plan) -> Result<R>,
    ) -> Result<R> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let form = form(task);
        let at = match plans.known.iter().position(|it| it.0 == form) {
            Some(at) => at,
            None => {
                let plan = make_plan(&plans.handle, task).map(Arc::new);
                plans.known.push((form, plan));
                plans.known.len() - 1
            }
        };
        let plan = plans.known[at].1.clone()?;
        use_it(&plans.handle, &plan)
    }
}

impl AttentionLibrary for CudnnAttention {
    fn prepare(&self, task: &AttentionTask) -> Result<usize> {
        limits::check(task, self.version, self.capability)?;
        let first = parts::of(task).next().unwrap_or_else(|| task.clone());
        let bytes = self.with_plan(&first, |_, plan| Ok(plan.workspace()))?;
        if bytes > MOST_WORKSPACE {
            return Err(ExecutorError::Environment(format!(
                "cuDNN would need {bytes} bytes besides its tensors"
            )));
        }
        Ok(bytes)
    }

    fn launches(&self, task: &AttentionTask) -> usize {
        parts::of(task).count() * LAUNCHES
    }

    fn issue(&self, task: &AttentionTask, stream: u64) -> Result<()> {
        parts::of(task)
            .try_for_each(|part| self.with_plan(&part, |handle, plan| plan.issue(handle, &part, stream)))
    }
}

/// Returns a task without what does not matter to its plan.
fn form(task: &AttentionTask) -> AttentionTask {
    let mut it = task.clone();
    it.workspace = (0, 0);
    it.tensors.iter_mut().for_each(|tensor| tensor.address = 0);
    it
}

fn title(version: usize, path: &str) -> String {
    format!("cuDNN {} ({path})", library::version_text(version))
}

fn make_plan(handle: &Handle, task: &AttentionTask) -> Result<Plan> {
    let mut graph = Graph::new(handle);
    if task.is_gradient {
        attention::gradient(&mut graph, task)?;
    } else {
        attention::forward(&mut graph, task)?;
    }
    graph.compile()
}
