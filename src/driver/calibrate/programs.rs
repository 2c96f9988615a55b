//! The programs that `hir calibrate` and `hir tune` measure, but layers. All tensors are of type bf16. Only `call_with_output` has an
//! output, which hir-run copies to the host.

use std::slice;

use grammar::{
    Algorithm, Backend, CommunicationType, Contribution, DType, DeviceDim, Expr, InfixOp, Op, OpStmt,
    P2pProtocol, P2pType, Program, RedOp, ReductionOp, Stream, TensorId, attr,
};
use hir_ir::build::{Dim, ProgramBuilder, apply, assigned, numbered, op, wait};

use super::draft::{Draft, INDEX, dim};

/// The statements of a call.
struct Parts {
    /// Those before all calls.
    setup: Vec<OpStmt>,
    /// Those of each call.
    body: Vec<OpStmt>,
    /// What the call computes.
    result: TensorId,
}

/// What a program repeats to measure one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Call {
    /// A matrix product: rows, columns, depth.
    Product([usize; 3]),
    /// An attention: heads, rows, and whether it has a causal mask; heads have 128 elements.
    Attention([usize; 2], bool),
    /// An elementwise operation that reads and writes this many elements.
    Elementwise(usize),
    /// A sum of rows of 4096 elements: the number of rows.
    Reduction(usize),
    /// A copy within memory: elements.
    Copy(usize),
    /// Every rank copies this many elements from or to its neighbour, by copy engine.
    PeerCopy(usize, P2pProtocol),
    /// A collective with the algorithm: elements of the larger one of input and output of a rank.
    Collective(CommunicationType, Algorithm, usize),
}

impl Call {
    /// Returns the number of times that a program makes the call, so that it takes neither much less than 100 µs nor much more than
    /// a few milliseconds.
    pub fn times(self) -> usize {
        let megabytes = |elements: usize| elements as f64 * 2e-6;
        // On a GPU with 700 TFLOP/s, memory of 1 to 4 TB/s and links of 200 GB/s.
        let microseconds = match self {
            Self::Product([rows, columns, depth]) => {
                let weights = megabytes(columns * depth) / 4.0;
                ((rows * columns * depth) as f64 * 2.0 / 7e8).max(weights)
            }
            Self::Attention([heads, rows], _) => (heads * rows * rows) as f64 * 1e-6,
            Self::Elementwise(elements) => megabytes(elements) / 2.0,
            Self::Reduction(rows) => megabytes(4096 * rows) / 2.0,
            Self::Copy(elements) => megabytes(elements),
            Self::PeerCopy(elements, _) | Self::Collective(_, _, elements) => megabytes(elements) / 0.2,
        };
        match microseconds {
            400.0.. => 3,
            50.0.. => 8,
            _ => 20,
        }
    }

    /// Declares the operands of the call, and returns its statements.
    fn parts(self, draft: &mut Draft) -> Parts {
        let ranks = draft.ranks;
        match self {
            Self::Product(extents @ [rows, columns, depth]) => {
                let [input, weights] = [rows, columns].map(|it| draft.input([dim(it), dim(depth)]));
                let (result, call) = draft.product(extents, input, weights);
                Parts { setup: Vec::new(), body: vec![call], result }
            }
            Self::Attention([heads, rows], is_causal) => {
                let dims = || [dim(1), dim(heads), dim(rows), dim(128)];
                let operands = [(); 3].map(|()| draft.input(dims()));
                let result = draft.tensor(dims());
                let call = attention(&mut draft.out, operands, "0.088", is_causal);
                Parts { setup: Vec::new(), body: vec![assigned(result, call)], result }
            }
            Self::Elementwise(elements) => {
                let input = draft.input([dim(elements)]);
                let result = draft.tensor([dim(elements)]);
                Parts { setup: Vec::new(), body: vec![assigned(result, apply(Op::Relu, [input]))], result }
            }
            Self::Reduction(rows) => {
                let input = draft.input([dim(rows), dim(4096)]);
                let result = draft.tensor([dim(rows), Dim::reduced(4096)]);
                let zero = draft.out.expr(Expr::Float(DType::Float, "0".to_owned()));
                let call = apply(Op::Reduction, [input])
                    .with(attr::OP, ReductionOp::Add)
                    .with(attr::INITIAL_VALUE, zero)
                    .with(attr::ALLREDUCE, false);
                Parts { setup: Vec::new(), body: vec![assigned(result, call)], result }
            }
            Self::Copy(elements) => {
                let input = draft.input([dim(elements)]);
                let result = draft.tensor([dim(elements)]);
                let call = assigned(result, apply(Op::Set, [input]));
                Parts { setup: vec![draft.out.allocation(result)], body: vec![call], result }
            }
            Self::PeerCopy(elements, protocol) => {
                let dims = || [Dim::device(DeviceDim::X, ranks as i64), dim(elements)];
                let input = draft.input(dims());
                let result = draft.tensor(dims());
                let mut message = |kind, buffer: TensorId, offset| {
                    let number = draft.out.work();
                    let rank = draft.out.rank();
                    let peer = draft.infix(InfixOp::Add, rank, offset);
                    let peer = draft.infix(InfixOp::Rem, peer, ranks);
                    let message = op(Op::P2PCommunication)
                        .with(attr::P2P_TYPE, kind)
                        .with(attr::BUFFER, buffer)
                        .with(attr::PEER, peer)
                        .with(attr::BACKEND, Backend::Cuda)
                        .with(attr::PROTOCOL, protocol);
                    (number, numbered(number, message))
                };
                let (received, receive) = message(P2pType::Recv, result, ranks - 1);
                let (sent, send) = message(P2pType::Send, input, 1);
                let transfers = [&receive, &send].map(|it| draft.out.listed(it.clone())).to_vec();
                let handles = op(Op::ShareMemHandles).with(attr::TRANSFERS, transfers);
                // The side that copies waits for the other one, which so comes first.
                let messages = match protocol {
                    P2pProtocol::Get => [send, receive],
                    P2pProtocol::Put => [receive, send],
                };
                let body = messages.into_iter().chain([sent, received].map(wait)).collect();
                Parts { setup: vec![draft.out.allocation(result), handles], body, result }
            }
            Self::Collective(kind, algorithm, elements) => {
                let part = elements / ranks;
                let device = || Dim::device(DeviceDim::X, ranks as i64);
                let parts = || [dim(ranks), dim(part)];
                let on_each = || [device(), dim(ranks), dim(part)];
                let facts = kind.facts();
                let input = match facts.contribution {
                    _ if facts.is_split => draft.input(on_each()),
                    Contribution::Each => draft.input([device(), dim(part)]),
                    Contribution::One | Contribution::Reduction => draft.input([device(), dim(elements)]),
                };
                let result = match (facts.contribution, facts.is_split) {
                    (Contribution::Each, true) => draft.tensor(on_each()),
                    (Contribution::Each, false) => draft.tensor(parts()),
                    (Contribution::One | Contribution::Reduction, true) => {
                        draft.tensor([device(), dim(part)])
                    }
                    (Contribution::One | Contribution::Reduction, false) => draft.tensor([dim(elements)]),
                };
                let post = op(Op::Communication)
                    .with(attr::TYPE, kind)
                    .with(attr::TEAM, (0..ranks).collect::<Vec<_>>());
                let post = if kind.is_reduction() { post.with(attr::RED_OP, RedOp::Sum) } else { post };
                let post = post
                    .with(attr::INPUT, input)
                    .with(attr::OUTPUT, result)
                    .with(attr::BACKEND, Backend::Nccl)
                    .with(attr::ALGO, algorithm);
                let number = draft.out.work();
                let body = vec![numbered(number, post), wait(number)];
                Parts { setup: vec![draft.out.allocation(result)], body, result }
            }
        }
    }
}

/// Returns an attention with this factor of the scores.
pub(super) fn attention(
    out: &mut ProgramBuilder,
    operands: [TensorId; 3],
    scale: &str,
    is_causal: bool,
) -> OpStmt {
    let [dropout, scale] = ["0", scale].map(|it| out.expr(Expr::Float(DType::Double, it.to_owned())));
    let is_causal = out.expr(Expr::Bool(is_causal));
    apply(Op::Sdpa, operands)
        .with(attr::DROPOUT_P, dropout)
        .with(attr::IS_CAUSAL, is_causal)
        .with(attr::SCALE, scale)
}

/// Returns a program that makes a call several times, one after the other.
pub fn repeated_call(call: Call, calls: usize, ranks: usize) -> Program {
    let mut draft = Draft::of(ranks);
    let parts = call.parts(&mut draft);
    draft.add(parts.setup);
    draft.repeated(calls, parts.body);
    draft.finish(&[])
}

/// Returns a program of products with the same rows and other weights each, which have at least this many bytes together, and
/// the number of products.
pub fn products_from_memory(extents: [usize; 3], bytes: usize, ranks: usize) -> (Program, usize) {
    let [rows, columns, depth] = extents;
    let count = bytes.div_ceil(2 * columns * depth).max(1);
    let mut draft = Draft::of(ranks);
    let input = draft.input([dim(rows), dim(depth)]);
    for _ in 0..count {
        let weights = draft.input([dim(columns), dim(depth)]);
        let (_, call) = draft.product(extents, input, weights);
        draft.out.add(call);
    }
    (draft.finish(&[]), count)
}

/// Returns a program that makes a call once, whose result is its output.
pub fn call_with_output(call: Call, ranks: usize) -> Program {
    let mut draft = Draft::of(ranks);
    let parts = call.parts(&mut draft);
    draft.add(parts.setup);
    draft.add(parts.body);
    draft.finish(&[parts.result])
}

/// Returns a program that makes a call several times, each on the other one of two streams and after the one before.
pub fn alternating_call(call: Call, calls: usize, ranks: usize) -> Program {
    let mut draft = Draft::of(ranks);
    let Parts { setup, body, .. } = call.parts(&mut draft);
    let own = draft.capture();
    draft.add(setup);
    let streams = [0, 1].map(|it| draft.stream(it));
    draft.switch(streams[0], &[own]);
    let index = draft.out.begin_for(INDEX, calls as i64);
    let next = draft.infix(InfixOp::Add, index, 1);
    let [current, other] = [index, next].map(|it| {
        let it = draft.infix(InfixOp::Rem, it, 2);
        draft.out.stream(Stream::Index(it))
    });
    draft.switch(current, &[other]);
    draft.add(body);
    draft.out.end();
    draft.switch(own, &streams);
    draft.finish(&[])
}

/// Returns a program that makes two calls in turns, several times each.
pub fn calls_in_turns(calls: [Call; 2], times: usize, ranks: usize) -> Program {
    let mut draft = Draft::of(ranks);
    let [first, second] = calls.map(|it| it.parts(&mut draft));
    draft.add(first.setup.into_iter().chain(second.setup));
    draft.repeated(times, first.body.into_iter().chain(second.body));
    draft.finish(&[])
}

/// Returns a program that makes two calls in turns, several times each, the second one on another stream, as rings do.
pub fn calls_on_streams(calls: [Call; 2], times: usize, ranks: usize) -> Program {
    let mut draft = Draft::of(ranks);
    let [first, second] = calls.map(|it| it.parts(&mut draft));
    let own = draft.capture();
    draft.add(first.setup.into_iter().chain(second.setup));
    let other = draft.stream(0);
    draft.out.begin_for(INDEX, times as i64);
    draft.switch(own, &[other]);
    draft.add(first.body);
    draft.switch(other, &[own]);
    draft.add(second.body);
    draft.out.end();
    draft.switch(own, &[other]);
    draft.finish(&[])
}

/// Returns a program of two products with the same weights, several times each: in turns on one stream, or on two streams that do not
/// wait for each other, as chunks of a layer are.
pub fn products_with_weights(extents: [usize; 3], times: usize, is_crowded: bool, ranks: usize) -> Program {
    let [rows, columns, depth] = extents;
    let mut draft = Draft::of(ranks);
    let weights = draft.input([dim(columns), dim(depth)]);
    let products = [(); 2].map(|()| {
        let input = draft.input([dim(rows), dim(depth)]);
        draft.product(extents, input, weights).1
    });
    if is_crowded {
        let own = draft.capture();
        draft.on_two_streams(own, products.map(|it| (times, vec![it])));
    } else {
        draft.repeated(times, products);
    }
    draft.finish(&[])
}

/// Returns a program of chunks on two streams, as `overlap` makes them of a layer: each computes the same product and communicates as
/// many bytes as others, so that a communication is beside the product of the next chunk.
pub fn chunks(extents: [usize; 3], communication: Call, count: usize, ranks: usize) -> Program {
    let [rows, columns, depth] = extents;
    let mut draft = Draft::of(ranks);
    let [input, weights] = [rows, columns].map(|it| draft.input([dim(it), dim(depth)]));
    let own = draft.capture();
    let streams = [0, 1].map(|it| draft.stream(it));
    let mut bodies = Vec::new();
    for _ in 0..count {
        let (_, call) = draft.product(extents, input, weights);
        let parts = communication.parts(&mut draft);
        draft.add(parts.setup);
        bodies.push((call, parts.body));
    }
    for (chunk, (call, body)) in bodies.into_iter().enumerate() {
        draft.switch(streams[chunk % 2], if chunk < 2 { slice::from_ref(&own) } else { &[] });
        draft.out.add(call);
        draft.add(body);
    }
    draft.switch(own, &streams);
    draft.finish(&[])
}

/// Returns a program that makes two calls several times each, on two streams at the same time.
pub fn concurrent_calls(calls: [(Call, usize); 2], ranks: usize) -> Program {
    let mut draft = Draft::of(ranks);
    let parts = calls.map(|(call, times)| (call.parts(&mut draft), times));
    let own = draft.capture();
    draft.add(parts.iter().flat_map(|it| it.0.setup.iter().cloned()));
    draft.on_two_streams(own, parts.map(|(parts, times)| (times, parts.body)));
    draft.finish(&[])
}
