//! A graph of operations on tensors, and the plan that cuDNN makes of it.

use std::ffi::c_void;

use cudarc::cudnn::sys;
use grammar::DType;

use super::handle::{Descriptor, Handle};
use crate::{ExecutorError, Result};
use hir_executor::{AttentionTask, DeviceTensor};
use sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type,
    cudnnBackendDescriptorType_t as Kind, cudnnDataType_t as Data, cudnnPointwiseMode_t as Mode,
    cudnnReduceTensorOp_t as Reduction,
};

/// Alignment of the parts of the workspace, in bytes.
const PART_ALIGNMENT: usize = 256;

/// A tensor of a graph: its number.
#[derive(Clone, Copy)]
pub(super) struct Tensor(usize);

/// Extents and strides of a tensor, in elements.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub shape: [i64; 4],
    pub strides: [i64; 4],
}

impl Layout {
    /// Returns the layout whose elements are contiguous.
    pub fn contiguous(shape: [i64; 4]) -> Self {
        let [_, b, c, d] = shape;
        Self { shape, strides: [b * c * d, c * d, d, 1] }
    }

    /// Swaps the last two dimensions.
    pub fn transposed(Self { shape: [a, b, c, d], strides: [i, j, k, l] }: Self) -> Self {
        Self { shape: [a, b, d, c], strides: [i, j, l, k] }
    }
}

/// What a tensor that is in memory is.
enum Memory {
    /// A tensor of the task, by its index.
    Task(usize),
    /// A part of the workspace, by its offset.
    Workspace(usize),
    /// A number on the host.
    Constant(Box<f32>),
}

/// A graph that is being made.
pub(super) struct Graph<'h> {
    handle: &'h Handle,
    tensors: Vec<(Descriptor, Layout)>,
    /// With the numbers of their tensors.
    memory: Vec<(usize, Memory)>,
    operations: Vec<Descriptor>,
    /// Descriptors that operations refer to.
    details: Vec<Descriptor>,
    /// Bytes of the tensors that are in the workspace.
    parts: usize,
}

impl<'h> Graph<'h> {
    /// Begins without tensors and operations.
    pub fn new(handle: &'h Handle) -> Self {
        let (tensors, memory) = (Vec::new(), Vec::new());
        Self { handle, tensors, memory, operations: Vec::new(), details: Vec::new(), parts: 0 }
    }

    /// Adds a tensor of the task; `transform` changes its layout.
    pub fn operand(
        &mut self,
        (at, tensor): (usize, &DeviceTensor),
        transform: impl FnOnce(Layout) -> Layout,
    ) -> Result<Tensor> {
        let extents = |from: &[usize]| {
            // Logarithms of sums have three dimensions, and one element in each row.
            let mut to = [1; 4];
            to.iter_mut().zip(from).for_each(|(to, from)| *to = *from as i64);
            to
        };
        let layout = Layout { shape: extents(&tensor.shape), strides: extents(&tensor.strides) };
        self.add(transform(layout), of_dtype(tensor.dtype)?, Some(Memory::Task(at)))
    }

    /// Adds a tensor of binary32 in the workspace.
    pub fn temporary(&mut self, shape: [i64; 4]) -> Result<Tensor> {
        let offset = self.parts;
        let bytes = shape.iter().product::<i64>() as usize * size_of::<f32>();
        self.parts += bytes.next_multiple_of(PART_ALIGNMENT);
        self.add(Layout::contiguous(shape), Data::CUDNN_DATA_FLOAT, Some(Memory::Workspace(offset)))
    }

    /// Adds a number.
    pub fn constant(&mut self, value: f32) -> Result<Tensor> {
        let memory = Memory::Constant(Box::new(value));
        self.add(Layout::contiguous([1; 4]), Data::CUDNN_DATA_FLOAT, Some(memory))
    }

    /// Adds a tensor that stays inside of the kernel.
    pub fn inner(&mut self, layout: Layout, dtype: Data) -> Result<Tensor> {
        self.add(layout, dtype, None)
    }

    fn add(&mut self, layout: Layout, dtype: Data, memory: Option<Memory>) -> Result<Tensor> {
        let it = self.handle.descriptor(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
        let number = self.tensors.len();
        it.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[dtype])?;
        it.set_numbers(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &layout.shape)?;
        it.set_numbers(Name::CUDNN_ATTR_TENSOR_STRIDES, &layout.strides)?;
        it.set_numbers(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[number as i64])?;
        it.set_numbers(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[AttentionTask::ALIGNMENT as i64])?;
        it.set(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, Type::CUDNN_TYPE_BOOLEAN, &[memory.is_none()])?;
        let is_constant = matches!(memory, Some(Memory::Constant(_)));
        it.set(Name::CUDNN_ATTR_TENSOR_IS_BY_VALUE, Type::CUDNN_TYPE_BOOLEAN, &[is_constant])?;
        it.finalize()?;
        self.tensors.push((it, layout));
        self.memory.extend(memory.map(|it| (number, it)));
        Ok(Tensor(number))
    }

    /// Returns the layout of a tensor.
    pub fn layout(&self, of: Tensor) -> Layout {
        self.tensors[of.0].1
    }

    /// Adds `mode` of up to three operands, elementwise. An operand with one element in a dimension has it for all.
    pub fn pointwise(&mut self, mode: Mode, operands: &[Tensor], to: Tensor) -> Result<()> {
        self.pointwise_in(mode, Data::CUDNN_DATA_FLOAT, operands, to)
    }

    /// Adds the elementwise `mode` of operands as a tensor that stays inside of the kernel.
    pub fn with_pointwise(&mut self, mode: Mode, operands: &[Tensor], layout: Layout) -> Result<Tensor> {
        let to = self.inner(layout, Data::CUDNN_DATA_FLOAT)?;
        self.pointwise(mode, operands, to)?;
        Ok(to)
    }

    /// Adds the index along a dimension of a tensor.
    pub fn index(&mut self, of: Tensor, axis: i64) -> Result<Tensor> {
        let to = self.inner(self.layout(of), Data::CUDNN_DATA_INT32)?;
        let detail = self.pointwise_detail(Mode::CUDNN_POINTWISE_GEN_INDEX, Data::CUDNN_DATA_FLOAT)?;
        detail.set_numbers(Name::CUDNN_ATTR_POINTWISE_AXIS, &[axis])?;
        self.add_pointwise(detail, &[of], to)?;
        Ok(to)
    }

    /// Adds the comparison of two tensors of indices.
    pub fn compare(&mut self, mode: Mode, operands: [Tensor; 2]) -> Result<Tensor> {
        let to = self.inner(self.layout(operands[0]), Data::CUDNN_DATA_BOOLEAN)?;
        self.pointwise_in(mode, Data::CUDNN_DATA_BOOLEAN, &operands, to)?;
        Ok(to)
    }

    fn pointwise_in(&mut self, mode: Mode, compute: Data, operands: &[Tensor], to: Tensor) -> Result<()> {
        let detail = self.pointwise_detail(mode, compute)?;
        self.add_pointwise(detail, operands, to)
    }

    fn pointwise_detail(&self, mode: Mode, compute: Data) -> Result<Descriptor> {
        let detail = self.handle.descriptor(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
        detail.set(Name::CUDNN_ATTR_POINTWISE_MODE, Type::CUDNN_TYPE_POINTWISE_MODE, &[mode])?;
        detail.set(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, Type::CUDNN_TYPE_DATA_TYPE, &[compute])?;
        Ok(detail)
    }

    fn add_pointwise(&mut self, detail: Descriptor, operands: &[Tensor], to: Tensor) -> Result<()> {
        use Name::{
            CUDNN_ATTR_OPERATION_POINTWISE_BDESC as SECOND, CUDNN_ATTR_OPERATION_POINTWISE_TDESC as THIRD,
            CUDNN_ATTR_OPERATION_POINTWISE_XDESC as FIRST,
        };
        let operands = [FIRST, SECOND, THIRD].into_iter().zip(operands.iter().copied());
        let tensors: Vec<_> = operands.chain([(Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to)]).collect();
        let kind = Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
        self.operation(kind, Some((Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, detail)), &tensors)
    }

    /// Adds a reduction to the dimensions in which `to` has one element, or fewer.
    pub fn reduce(&mut self, with: Reduction, from: Tensor, to: Tensor) -> Result<()> {
        let detail = self.handle.descriptor(Kind::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?;
        let kind = Type::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
        detail.set(Name::CUDNN_ATTR_REDUCTION_OPERATOR, kind, &[with])?;
        let compute = [Data::CUDNN_DATA_FLOAT];
        detail.set(Name::CUDNN_ATTR_REDUCTION_COMP_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &compute)?;
        let tensors = [
            (Name::CUDNN_ATTR_OPERATION_REDUCTION_XDESC, from),
            (Name::CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to),
        ];
        let kind = Kind::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR;
        self.operation(kind, Some((Name::CUDNN_ATTR_OPERATION_REDUCTION_DESC, detail)), &tensors)
    }

    /// Adds the product of the matrices of two tensors; the second one may have fewer heads.
    pub fn matmul(&mut self, first: Tensor, second: Tensor, to: Tensor) -> Result<()> {
        let detail = self.handle.descriptor(Kind::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?;
        let compute = [Data::CUDNN_DATA_FLOAT];
        detail.set(Name::CUDNN_ATTR_MATMUL_COMP_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &compute)?;
        let tensors = [
            (Name::CUDNN_ATTR_OPERATION_MATMUL_ADESC, first),
            (Name::CUDNN_ATTR_OPERATION_MATMUL_BDESC, second),
            (Name::CUDNN_ATTR_OPERATION_MATMUL_CDESC, to),
        ];
        let kind = Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
        self.operation(kind, Some((Name::CUDNN_ATTR_OPERATION_MATMUL_DESC, detail)), &tensors)
    }

    /// Adds a tensor inside of the kernel with the matrices of another one transposed.
    pub fn transpose(&mut self, from: Tensor, dtype: Data) -> Result<Tensor> {
        let to = self.inner(Layout::transposed(self.layout(from)), dtype)?;
        let tensors = [
            (Name::CUDNN_ATTR_OPERATION_RESHAPE_XDESC, from),
            (Name::CUDNN_ATTR_OPERATION_RESHAPE_YDESC, to),
        ];
        self.operation(Kind::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, None, &tensors)?;
        Ok(to)
    }

    fn operation(
        &mut self,
        kind: Kind,
        detail: Option<(Name, Descriptor)>,
        tensors: &[(Name, Tensor)],
    ) -> Result<()> {
        let it = self.handle.descriptor(kind)?;
        if let Some((name, detail)) = detail {
            detail.finalize()?;
            it.set_descriptors(name, &[&detail])?;
            self.details.push(detail);
        }
        for (name, tensor) in tensors {
            it.set_descriptors(*name, &[&self.tensors[tensor.0].0])?;
        }
        it.finalize()?;
        self.operations.push(it);
        Ok(())
    }

    /// Makes the plan of the first kernel that cuDNN proposes and can compile.
    pub fn compile(self) -> Result<Plan> {
        let handle = self.handle;
        let graph = handle.descriptor(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        handle.set_in(&graph, Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE)?;
        let operations: Vec<&Descriptor> = self.operations.iter().collect();
        graph.set_descriptors(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &operations)?;
        graph.finalize()?;
        let heuristic = handle.descriptor(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
        heuristic.set_descriptors(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[&graph])?;
        let mode = [sys::cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_A];
        heuristic.set(Name::CUDNN_ATTR_ENGINEHEUR_MODE, Type::CUDNN_TYPE_HEUR_MODE, &mode)?;
        heuristic.finalize()?;
        let count = heuristic.fill(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, &[])?;
        let new = |_| handle.descriptor(Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        let configurations = (0..count).map(new).collect::<Result<Vec<_>>>()?;
        let count = heuristic.fill(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, &configurations)?;
        let mut found = Err(ExecutorError::Environment("cuDNN has no kernel for it".to_owned()));
        for configuration in configurations.into_iter().take(count) {
            found = plan_of(handle, &configuration).map(|plan| (plan, configuration));
            if found.is_ok() {
                break;
            }
        }
        let (plan, configuration) = found?;
        let needed = plan.number(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?.max(0) as usize;
        Ok(Plan { plan, _configuration: configuration, memory: self.memory, parts: self.parts, needed })
    }
}

fn plan_of(handle: &Handle, configuration: &Descriptor) -> Result<Descriptor> {
    let plan = handle.descriptor(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
    handle.set_in(&plan, Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE)?;
    plan.set_descriptors(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[configuration])?;
    plan.finalize()?;
    Ok(plan)
}

/// Returns cuDNN's type of elements.
pub(super) fn of_dtype(dtype: DType) -> Result<Data> {
    match dtype {
        DType::BFloat => Ok(Data::CUDNN_DATA_BFLOAT16),
        DType::Half => Ok(Data::CUDNN_DATA_HALF),
        DType::Float => Ok(Data::CUDNN_DATA_FLOAT),
        other => Err(ExecutorError::Internal(format!("an attention of {other:?} was given to cuDNN"))),
    }
}

/// A compiled graph.
pub(super) struct Plan {
    plan: Descriptor,
    /// The plan may refer to it.
    _configuration: Descriptor,
    /// The tensors in memory, with their numbers.
    memory: Vec<(usize, Memory)>,
    /// Bytes of the tensors in the workspace, which come first.
    parts: usize,
    /// Bytes that the kernels need behind them.
    needed: usize,
}

impl Plan {
    /// Returns the bytes of workspace that a run needs.
    pub fn workspace(&self) -> usize {
        self.parts + self.needed
    }

    /// Issues the plan on a stream.
    pub fn issue(&self, handle: &Handle, task: &AttentionTask, stream: u64) -> Result<()> {
        let (workspace, bytes) = task.workspace;
        if bytes < self.workspace() {
            let needed = self.workspace();
            return Err(ExecutorError::Internal(format!("cuDNN got {bytes} of {needed} bytes of workspace")));
        }
        let pointer = |it: &Memory| -> *const c_void {
            match it {
                Memory::Task(at) => task.tensors[*at].address as *const c_void,
                Memory::Workspace(offset) => (workspace + *offset as u64) as *const c_void,
                Memory::Constant(value) => std::ptr::from_ref::<f32>(value).cast(),
            }
        };
        let numbers: Vec<i64> = self.memory.iter().map(|it| it.0 as i64).collect();
        let pointers: Vec<_> = self.memory.iter().map(|it| pointer(&it.1)).collect();
        let variant = handle.descriptor(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        variant.set_numbers(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &numbers)?;
        variant.set(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Type::CUDNN_TYPE_VOID_PTR, &pointers)?;
        let own = [(workspace + self.parts as u64) as *const c_void];
        variant.set(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, Type::CUDNN_TYPE_VOID_PTR, &own)?;
        variant.finalize()?;
        handle.execute(&self.plan, &variant, stream)
    }
}
