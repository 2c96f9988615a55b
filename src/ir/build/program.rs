//! Builds a new program, as a front end does: declares tensors by their dimensions, and appends statements to the container.

use std::sync::Arc;

use grammar::{
    Arena, Axis, AxisId, AxisKind, BlockId, DType, DeviceDim, Domains, Expr, ExprId, For, If, Memory, Mesh,
    Op, OpStmt, Operand, ParallelType, Program, Span, Stmt, StmtId, Stream, StreamId, Tensor, TensorId,
    Transform, attr,
};

use super::{allocate, apply, assigned, rank};

/// A dimension of a declared tensor.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Dim {
    /// The number of elements along it.
    pub extent: i64,
    /// The device dimensions over which it is sharded, major first, with their numbers of devices. They divide the extent evenly.
    pub shards: Vec<(DeviceDim, i64)>,
    /// The device dimension that it is as a whole.
    pub device: Option<DeviceDim>,
    /// Whether the tensor is the reduction over it.
    pub is_reduced: bool,
}

impl Dim {
    /// Returns a dimension that every device holds.
    pub fn of(extent: i64) -> Self {
        Self { extent, ..Self::default() }
    }

    /// Returns a device dimension of so many devices.
    pub fn device(device: DeviceDim, extent: i64) -> Self {
        Self { extent, device: Some(device), ..Self::default() }
    }

    /// Returns a dimension over which the tensor is the reduction.
    pub fn reduced(extent: i64) -> Self {
        Self { extent, is_reduced: true, ..Self::default() }
    }

    /// Returns the logical axis of this number.
    fn axis(&self, number: u32, extent: ExprId) -> Axis {
        let kind = if self.is_reduced { AxisKind::Reduction } else { AxisKind::Iteration };
        let parallel = self.device.map_or(ParallelType::Serial, ParallelType::Device);
        Axis::new(kind, parallel, number, extent)
    }
}

/// The dimensions of a tensor.
#[derive(Clone, Debug)]
struct Declaration {
    dims: Vec<Dim>,
    /// For the result of a permutation, the dimension of the operand that each dimension is: it numbers the axes.
    order: Option<Vec<usize>>,
}

/// A program that is being built. Tensors, axes and communications are numbered from 0 in the order in which they are declared.
#[derive(Clone, Debug, Default)]
pub struct ProgramBuilder {
    program: Program,
    /// Axes are numbered, and those of shards made, at the end: until then, a tensor can get another sharding.
    declarations: Arena<TensorId, Declaration>,
    body: Vec<StmtId>,
    /// The blocks of the loops and branches that are open, each with the statements before it in the block around it.
    open: Vec<(BlockId, Vec<StmtId>)>,
    works: u32,
    /// The tensors of statements that have been taken back.
    unused: Vec<TensorId>,
    /// The position in the source of what is added next.
    pub span: Span,
}

impl ProgramBuilder {
    // ---- tensors

    /// Declares a tensor in global memory. An empty mesh leaves the devices open.
    pub fn tensor(&mut self, dims: Vec<Dim>, dtype: DType, mesh: Arc<Mesh>) -> TensorId {
        self.declare(Declaration { dims, order: None }, dtype, mesh)
    }

    /// Declares a tensor with the dimensions of another one in this order, and adds the permutation that computes it.
    pub fn permuted(&mut self, from: TensorId, dims: &[Dim], order: Vec<usize>, mesh: Arc<Mesh>) -> TensorId {
        let dtype = self.program.tensors[from].dtype.unwrap_or(DType::Float);
        let listed = order.iter().map(|at| self.program.intern_int(*at as i64)).collect();
        let dims = order.iter().filter_map(|at| dims.get(*at).cloned()).collect();
        let out = self.declare(Declaration { dims, order: Some(order) }, dtype, mesh);
        self.assign(out, apply(Op::Permute, [from]).with(attr::DIMS, listed));
        out
    }

    fn declare(&mut self, declaration: Declaration, dtype: DType, mesh: Arc<Mesh>) -> TensorId {
        let logical = declaration.dims.iter().map(|it| {
            let extent = self.program.intern_int(it.extent);
            self.program.axes.push(it.axis(0, extent))
        });
        let domains = Domains { logical: logical.collect(), ..Domains::default() };
        let number = (self.declarations.len() - self.unused.len()) as u32;
        self.declarations.push(declaration);
        let tensor = Tensor {
            number,
            memory: Memory::Global,
            dtype: Some(dtype),
            loop_domain: Vec::new(),
            positions: String::new(),
            mesh,
            unit: None,
            domains,
        };
        self.program.declare_tensor(tensor, self.span)
    }

    /// Declares a tensor with axes that have all been made, with their numbers.
    pub fn exact(&mut self, loops: Vec<AxisId>, domains: Domains, dtype: DType, mesh: Arc<Mesh>) -> TensorId {
        let it = self.tensor(Vec::new(), dtype, mesh);
        let tensor = &mut self.program.tensors[it];
        (tensor.loop_domain, tensor.domains) = (loops, domains);
        it
    }

    /// Makes an axis for `exact`.
    pub fn new_axis(&mut self, kind: AxisKind, parallel: ParallelType, number: u32, extent: i64) -> AxisId {
        let extent = self.int(extent);
        self.program.axes.push(Axis::new(kind, parallel, number, extent))
    }

    /// Returns the axis of a dimension, for statements that name it.
    pub fn axis(&self, tensor: TensorId, dim: usize) -> AxisId {
        self.program.tensors[tensor].domains.logical[dim]
    }

    /// Returns the axes of a tensor in memory.
    pub fn dimensions(&self, tensor: TensorId) -> Vec<AxisId> {
        self.program.dimensions(tensor).collect()
    }

    /// Takes back the statements behind the first `size` ones of the current block, and tensors that they have declared and that no other
    /// statement names.
    pub fn take_back(&mut self, size: usize, tensors: impl IntoIterator<Item = TensorId>) {
        self.body.truncate(size);
        self.unused.extend(tensors);
    }

    /// Returns the number of statements in the current block.
    pub fn block_size(&self) -> usize {
        self.body.len()
    }

    /// Returns the dimensions of a tensor, reduced ones among them.
    pub fn dims(&self, tensor: TensorId) -> &[Dim] {
        &self.declarations[tensor].dims
    }

    /// Returns the devices that hold a tensor.
    pub fn mesh(&self, tensor: TensorId) -> &Arc<Mesh> {
        &self.program.tensors[tensor].mesh
    }

    /// Gives a tensor another sharding. `dims` are the new ones, without those that are reduced.
    pub fn reshard(&mut self, tensor: TensorId, dims: Vec<Dim>, mesh: Arc<Mesh>) {
        let kept = self.declarations[tensor].dims.iter_mut().filter(|it| !it.is_reduced);
        kept.zip(dims).for_each(|(old, new)| *old = new);
        self.program.tensors[tensor].mesh = mesh;
    }

    // ---- statements

    /// Appends a statement, and returns it.
    pub fn add(&mut self, stmt: OpStmt) -> StmtId {
        debug_assert!(stmt.fits_definition(), "{stmt:?}");
        let id = self.program.add_stmt(Stmt::Op(stmt), self.span);
        self.body.push(id);
        id
    }

    /// Appends `out = stmt`.
    pub fn assign(&mut self, out: TensorId, stmt: OpStmt) {
        self.add(assigned(out, stmt));
    }

    /// Returns the ALLOCATE of a tensor.
    pub fn allocation(&self, out: TensorId) -> OpStmt {
        allocate(&self.program, out)
    }

    /// Appends the ALLOCATE of a tensor.
    pub fn allocate(&mut self, out: TensorId) {
        let stmt = self.allocation(out);
        self.add(stmt);
    }

    /// Adds a statement that another one lists, and that is not executed itself.
    pub fn listed(&mut self, stmt: OpStmt) -> StmtId {
        self.program.add_stmt(Stmt::Op(stmt), self.span)
    }

    /// Begins a loop with an index of this name from 0, and returns the index. What is added next is in it, until `end`.
    pub fn begin_for(&mut self, index: &str, stop: i64) -> ExprId {
        let [start, stop] = [0, stop].map(|it| self.program.intern_int(it));
        let index = self.program.intern_symbol(None, index, self.span);
        self.begin(|body| Stmt::For(For { index, axis: None, start, stop, body }));
        self.expr(Expr::Symbol(index))
    }

    /// Begins a loop that a condition ends, with an index of this name from 0. What is added next is in it, until `end`.
    pub fn begin_while(&mut self, index: &str, stop: ExprId, condition: TensorId) {
        let start = self.program.intern_int(0);
        let index = self.program.intern_symbol(None, index, self.span);
        self.begin(|body| Stmt::For(For { index, axis: None, start, stop, body }));
        self.add(apply(Op::While, [condition]));
    }

    /// Begins a branch. What is added next is in it, until `end`.
    pub fn begin_if(&mut self, cond: ExprId) {
        let kind = If::MANUAL.to_owned();
        self.begin(|then_block| Stmt::If(If { kind, cond, then_block, else_block: None }));
    }

    fn begin(&mut self, stmt: impl FnOnce(BlockId) -> Stmt) {
        let block = self.program.blocks.push(Vec::new());
        let id = self.program.add_stmt(stmt(block), self.span);
        self.body.push(id);
        self.open.push((block, std::mem::take(&mut self.body)));
    }

    /// Ends the loop or branch that began last. One without statements is taken back.
    pub fn end(&mut self) {
        if let Some((block, outer)) = self.open.pop() {
            let inner = std::mem::replace(&mut self.body, outer);
            if inner.is_empty() {
                self.body.pop();
            }
            self.program.blocks[block] = inner;
        }
    }

    /// Returns a stream.
    pub fn stream(&mut self, stream: Stream) -> StreamId {
        self.program.streams.push(stream)
    }

    /// Returns the number of a new communication.
    pub fn work(&mut self) -> u32 {
        self.works += 1;
        self.works - 1
    }

    /// Returns the number of statements and definitions so far.
    pub fn size(&self) -> usize {
        self.body.len() + self.program.definitions.len()
    }

    // ---- scalars

    /// Returns a scalar expression.
    pub fn expr(&mut self, expr: Expr) -> ExprId {
        self.program.intern_expr(expr)
    }

    /// Returns an integer.
    pub fn int(&mut self, value: i64) -> ExprId {
        self.program.intern_int(value)
    }

    /// Returns the scalar `rank`.
    pub fn rank(&mut self) -> ExprId {
        rank(&mut self.program)
    }

    /// Defines a scalar, which is a boolean or an integer, and returns it: `i5`.
    pub fn define(&mut self, is_bool: bool, value: ExprId) -> ExprId {
        let letter = if is_bool { 'b' } else { 'i' };
        let name = format!("{letter}{}", self.program.definitions.len());
        let symbol = self.program.intern_symbol(None, &name, self.span);
        self.program.definitions.insert(symbol, value);
        self.expr(Expr::Symbol(symbol))
    }

    // ---- the program

    /// Returns the program with these inputs and outputs.
    pub fn finish(mut self, inputs: &[TensorId], outputs: &[TensorId]) -> Program {
        debug_assert!(self.open.is_empty(), "a loop or branch has no end");
        let mut next_axis = 0;
        let used = (self.declarations.len() - self.unused.len()) as u32;
        for (tensor, number) in self.unused.iter().zip(used..) {
            self.program.tensors[*tensor].number = number;
        }
        for (tensor, declaration) in self.declarations.iter().filter(|it| !it.1.dims.is_empty()) {
            finish_axes(&mut self.program, tensor, declaration, &mut next_axis);
        }
        let operands = |list: &[TensorId]| list.iter().map(|it| Operand::Tensor(*it)).collect();
        self.program.set_header(operands(inputs), operands(outputs), self.span);
        self.program.body = Some(self.program.blocks.push(self.body));
        self.program
    }
}

/// Numbers the logical axes of a tensor, and makes for each shard the two results of a split.
fn finish_axes(program: &mut Program, tensor: TensorId, declaration: &Declaration, next: &mut u32) {
    let Declaration { dims, order } = declaration;
    let first = *next;
    *next += dims.len() as u32;
    let logical = program.tensors[tensor].domains.logical.clone();
    let (mut loops, mut transforms) = (Vec::with_capacity(dims.len()), Vec::new());
    for (at, (dim, axis)) in dims.iter().zip(logical).enumerate() {
        let place = order.as_ref().and_then(|it| it.get(at)).copied().unwrap_or(at);
        let extent = program.intern_int(dim.extent);
        program.axes[axis] = dim.axis(first + place as u32, extent);
        let (mut rest, mut left) = (axis, dim.extent);
        for (device, parts) in &dim.shards {
            left /= parts;
            let mut new = |parallel, number, extent| {
                let extent = program.intern_int(extent);
                (program.axes.push(Axis::new(AxisKind::Iteration, parallel, number, extent)), extent)
            };
            let (outer, factor) = new(ParallelType::Device(*device), *next, *parts);
            let (inner, _) = new(ParallelType::Serial, *next + 1, left);
            *next += 2;
            transforms.push(Transform::Split { input: rest, factor, outer_split: true, outer, inner });
            loops.push(outer);
            rest = inner;
        }
        loops.push(rest);
    }
    let it = &mut program.tensors[tensor];
    (it.loop_domain, it.domains.transforms) = (loops, transforms);
}

#[cfg(test)]
mod tests {
    use grammar::{InfixOp, Op};

    use super::*;
    use crate::build::apply;

    #[test]
    fn what_is_taken_back_leaves_no_trace() {
        let mut it = ProgramBuilder::default();
        let mesh = Arc::new(Mesh::new(vec![2], vec![0, 1]));
        let input = it.tensor(vec![Dim::of(4)], DType::Float, Arc::clone(&mesh));
        let (rank, zero) = (it.rank(), it.int(0));
        let is_first = it.expr(Expr::Infix(InfixOp::Eq, rank, zero));
        it.begin_if(is_first);
        let before = it.block_size();
        let wrong = it.tensor(vec![Dim::of(4)], DType::Float, Arc::clone(&mesh));
        it.assign(wrong, apply(Op::Relu, [input]));
        it.take_back(before, [wrong]);
        it.end();
        let axis = it.new_axis(AxisKind::Broadcast, ParallelType::Serial, 7, 1);
        let domains = Domains { logical: vec![axis], ..Domains::default() };
        let exact = it.exact(vec![axis], domains, DType::Int32, mesh);
        it.begin_for("i5", 3);
        it.allocate(exact);
        it.end();
        let program = it.finish(&[input], &[]);
        assert!(grammar::verify(&program).is_empty());
        let text = "%HostIrContainer { (T0_g_float[iS0{4}] (DeviceMesh{0 1})) -> () :
  FOR i5 from 0 to 3:
    T1_g_int[bS7{1}] (DeviceMesh{0 1}) = ALLOCATE(mem_type=global, zero_init=false)
} // %HostIrContainer
";
        assert_eq!(grammar::print(&program), text);
    }
}
