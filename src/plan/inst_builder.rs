//! Appends instructions and their temporary buffers: for operators that are several instructions.

use grammar::{DType, Op};

use super::{
    Arg, Buffer, BufferNo, Gemm, InstKind, Number, Reduce, ReduceOp, Routine, RoutineKind, View, ViewOnRank,
};

/// The instructions and temporary buffers so far.
pub struct InstBuilder {
    /// The rank of both sides of copies.
    rank: usize,
    first_buffer: BufferNo,
    /// The temporary buffers. Their numbers begin with the first buffer that `new` was given.
    pub buffers: Vec<Buffer>,
    /// The instructions, in order.
    pub code: Vec<InstKind>,
}

impl InstBuilder {
    /// Begins with no instructions. `first_buffer` is the number of the first temporary buffer.
    pub fn new(rank: usize, first_buffer: BufferNo) -> Self {
        Self { rank, first_buffer, buffers: Vec::new(), code: Vec::new() }
    }

    /// Appends a routine.
    pub fn routine(&mut self, kind: RoutineKind, inputs: Vec<View>, outs: Vec<View>) {
        self.code.push(InstKind::Routine(Box::new(Routine { kind, inputs, outs })));
    }

    pub(super) fn buffer(&mut self, name: &str, dtype: DType, len: usize) -> BufferNo {
        self.buffers.push(Buffer::new(name, dtype, len));
        self.first_buffer + self.buffers.len() as BufferNo - 1
    }

    /// Returns a view of a new buffer.
    pub(super) fn temporary(&mut self, name: &str, dtype: DType, shape: Vec<usize>) -> View {
        View::contiguous(self.buffer(name, dtype, shape.iter().product()), shape)
    }

    pub(super) fn map<const N: usize>(&mut self, op: Op, args: [Arg; N], out: &View) {
        self.code.push(InstKind::Map { op, args: args.to_vec(), out: Box::new(out.clone()) });
    }

    /// Copies elements, converted to the type of the result.
    pub(super) fn copy(&mut self, from: &View, to: &View) {
        let place = |it: &View| Box::new(ViewOnRank { rank: self.rank, view: it.clone() });
        self.code.push(InstKind::Copy { from: place(from), to: place(to) });
    }

    pub(super) fn fill(&mut self, to: &View, value: Number) {
        self.code.push(InstKind::Fill { to: Box::new(to.clone()), value });
    }

    pub(super) fn iota(&mut self, to: &View, start: i64, step: i64) {
        self.code.push(InstKind::Iota { to: Box::new(to.clone()), start, step });
    }

    pub(super) fn gemm(&mut self, a: &View, b: &View, out: &View) {
        let it = Gemm { a: a.clone(), b: b.clone(), bias: None, out: out.clone() };
        self.code.push(InstKind::Gemm(Box::new(it)));
    }

    /// Adds a product to the elements of `sum`.
    pub(super) fn add_gemm(&mut self, a: &View, b: &View, sum: &View) {
        let it = Gemm { a: a.clone(), b: b.clone(), bias: Some(sum.clone()), out: sum.clone() };
        self.code.push(InstKind::Gemm(Box::new(it)));
    }

    /// Reduces along axes, ascending.
    pub(super) fn reduce(&mut self, op: ReduceOp, init: Number, input: &View, axes: &[usize], out: &View) {
        let it = Reduce { op, init, input: input.clone(), axes: axes.to_vec(), out: out.clone() };
        self.code.push(InstKind::Reduce(Box::new(it)));
    }

    pub(super) fn reduce_rows(&mut self, op: ReduceOp, init: Number, input: &View, out: &View) {
        self.reduce(op, init, input, &[input.shape.len() - 1], out);
    }
}

/// Returns a view as an operand.
pub(super) fn view(it: &View) -> Arg {
    Arg::View(it.clone())
}

/// Returns a number as an operand.
pub(super) fn float(it: f64) -> Arg {
    Arg::Number(Number::Float(it))
}

/// Returns an integer as an operand.
pub(super) fn int(it: i64) -> Arg {
    Arg::Number(Number::Int(it))
}
