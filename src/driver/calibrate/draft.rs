//! What the programs of `hir calibrate` have in common: the ranks, the element type, loops and streams.

use std::sync::Arc;

use grammar::{
    DType, DeviceDim, Expr, ExprId, InfixOp, Mesh, Op, OpStmt, Program, Stream, StreamId, TensorId,
};
use hir_ir::build::{
    Dim, ProgramBuilder, apply, assigned, get_current_stream, set_current_stream, synchronize,
};

/// A program of some ranks that is being built.
pub struct Draft {
    pub ranks: usize,
    mesh: Arc<Mesh>,
    pub out: ProgramBuilder,
    inputs: Vec<TensorId>,
}

impl Draft {
    pub fn of(ranks: usize) -> Self {
        let mesh = Arc::new(Mesh::new(vec![ranks], (0..ranks).collect()));
        Self { ranks, mesh, out: ProgramBuilder::default(), inputs: Vec::new() }
    }

    /// Declares a tensor of all ranks.
    pub fn tensor<const N: usize>(&mut self, dims: [Dim; N]) -> TensorId {
        self.out.tensor(dims.into(), DType::BFloat, Arc::clone(&self.mesh))
    }

    pub fn input<const N: usize>(&mut self, dims: [Dim; N]) -> TensorId {
        let it = self.tensor(dims);
        self.inputs.push(it);
        it
    }

    /// Declares a tensor of these extents, whose dimension `sharded` is divided among the ranks.
    pub fn sharded(&mut self, extents: [usize; 2], sharded: Option<usize>) -> TensorId {
        let shards =
            |at| if sharded == Some(at) { vec![(DeviceDim::X, self.ranks as i64)] } else { Vec::new() };
        let dims = [0, 1].map(|at| Dim { shards: shards(at), ..dim(extents[at]) });
        self.tensor(dims)
    }

    /// Declares an input as `sharded` declares a tensor.
    pub fn sharded_input(&mut self, extents: [usize; 2], sharded: usize) -> TensorId {
        let it = self.sharded(extents, Some(sharded));
        self.inputs.push(it);
        it
    }

    /// Returns the result of a product, which is not divided among the ranks, and the statement.
    pub fn product(
        &mut self,
        [rows, columns, depth]: [usize; 3],
        input: TensorId,
        weights: TensorId,
    ) -> (TensorId, OpStmt) {
        let result = self.tensor([dim(rows), dim(columns), Dim::reduced(depth as i64)]);
        (result, assigned(result, apply(Op::Linear, [input, weights])))
    }

    pub fn add(&mut self, stmts: impl IntoIterator<Item = OpStmt>) {
        for it in stmts {
            self.out.add(it);
        }
    }

    /// Adds statements in a loop.
    pub fn repeated(&mut self, calls: usize, body: impl IntoIterator<Item = OpStmt>) {
        self.out.begin_for(INDEX, calls as i64);
        self.add(body);
        self.out.end();
    }

    /// Adds two loops with their numbers of iterations, each on a stream that begins after `own`, which waits for both.
    pub fn on_two_streams(&mut self, own: StreamId, loops: [(usize, Vec<OpStmt>); 2]) {
        let streams = [0, 1].map(|it| self.stream(it));
        for (stream, (calls, body)) in streams.into_iter().zip(loops) {
            self.switch(stream, &[own]);
            self.repeated(calls, body);
        }
        self.switch(own, &streams);
    }

    pub fn int(&mut self, value: usize) -> ExprId {
        self.out.int(value as i64)
    }

    /// Returns `value operator other`.
    pub fn infix(&mut self, operator: InfixOp, value: ExprId, other: usize) -> ExprId {
        let other = self.int(other);
        self.out.expr(Expr::Infix(operator, value, other))
    }

    /// Adds the statement that captures the current stream, and returns the stream.
    pub fn capture(&mut self) -> StreamId {
        let it = self.out.stream(Stream::Named(0));
        self.out.add(get_current_stream(it));
        it
    }

    pub fn stream(&mut self, index: usize) -> StreamId {
        let index = self.int(index);
        self.out.stream(Stream::Index(index))
    }

    /// Makes the first stream current, which waits for the others.
    pub fn switch(&mut self, to: StreamId, others: &[StreamId]) {
        self.out.add(set_current_stream(to));
        self.add(others.iter().map(|it| synchronize(*it)));
    }

    pub fn finish(self, outputs: &[TensorId]) -> Program {
        self.out.finish(&self.inputs, outputs)
    }
}

/// The name of the index of loops.
pub const INDEX: &str = "i99";

pub fn dim(extent: usize) -> Dim {
    Dim::of(extent as i64)
}
