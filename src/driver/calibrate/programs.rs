//! The programs that `hir calibrate` and `hir tune` measure, but layers. All tensors are of type bf16. Only `call_with_output` has an
//! output, which hir-run copies to the host.

use std::fmt::Write as _;

/// A text that grows.
pub(super) struct Text {
    ranks: usize,
    pub declarations: String,
    domains: String,
}

impl Text {
    pub fn of(ranks: usize) -> Self {
        Self { ranks, declarations: String::new(), domains: String::new() }
    }

    fn mesh(&self) -> String {
        let ranks: Vec<String> = (0..self.ranks).map(|it| it.to_string()).collect();
        format!("(DeviceMesh{{{}}})", ranks.join(" "))
    }

    fn team(&self) -> String {
        let ranks: Vec<String> = (0..self.ranks).map(|it| it.to_string()).collect();
        format!("({})", ranks.join(" "))
    }

    /// Declares a tensor with axes as in a program.
    pub fn tensor(&mut self, name: usize, axes: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.declarations, "%tensor T{name}_g___bfloat[{axes}] {}", self.mesh());
    }

    /// Declares a tensor of these extents, whose axis `sharded` is divided among the ranks. `reduced` is the extent of an
    /// axis that was summed.
    pub fn sharded(&mut self, name: usize, extents: [usize; 2], sharded: Option<usize>) {
        let axis = |at: usize| format!("iS{name}0{at}{{{}}}", extents[at]);
        let Some(at) = sharded else {
            return self.tensor(name, &format!("{}, {}", axis(0), axis(1)));
        };
        let (ranks, part) = (self.ranks, extents[at] / self.ranks);
        let split = format!("ideviceIdx.x{name}08{{{ranks}}}, iS{name}09{{{part}}}");
        let axes = if at == 0 { format!("{split}, {}", axis(1)) } else { format!("{}, {split}", axis(0)) };
        self.tensor(name, &axes);
        let _ = writeln!(
            self.domains,
            "  T{name}: logical({}, {}), outer_split({}, {ranks}) -> ({split})",
            axis(0),
            axis(1),
            axis(at)
        );
    }

    /// Returns the program.
    pub fn program(self, inputs: &str, output: &str, body: &[String]) -> String {
        let Self { declarations, domains, .. } = self;
        let body: String = body.iter().map(|it| format!("  {it}\n")).collect();
        let domains = if domains.is_empty() { domains } else { format!("\nDomains:\n{domains}") };
        format!(
            "{declarations}%HostIrContainer {{ ({inputs}) -> ({output}) :\n{body}}} // %HostIrContainer\n{domains}"
        )
    }
}

/// Returns statements in a loop.
fn repeated(calls: usize, body: &[String]) -> Vec<String> {
    let mut all = vec![format!("FOR i99 from 0 to {calls}:")];
    all.extend(body.iter().map(|it| format!("  {it}")));
    all
}

/// What a program repeats to measure one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Call {
    /// A matrix product: rows, columns, depth.
    Product([usize; 3]),
    /// An attention: heads, rows; heads have 128 elements.
    Attention([usize; 2]),
    /// An elementwise operation that reads and writes this many elements.
    Elementwise(usize),
    /// A sum of rows of 4096 elements: the number of rows.
    Reduction(usize),
    /// A copy within memory: elements.
    Copy(usize),
    /// Every rank copies this many elements from or to its neighbour, by copy engine.
    PeerCopy(usize, PeerProtocol),
    /// A collective with the algorithm: elements of the larger one of input and output of a rank.
    Collective(Collective, &'static str, usize),
}

/// Who copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerProtocol {
    /// The receiver.
    Get,
    /// The sender.
    Put,
}

/// A collective of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// A sum on all ranks.
    Allreduce,
    /// All parts on all ranks.
    Allgather,
    /// A part of the sum on each rank.
    ReduceScatter,
    /// A part of each rank's data for each rank.
    AllToAll,
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
            Self::Attention([heads, rows]) => (heads * rows * rows) as f64 * 1e-6,
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

    /// Declares the operands of the call, and returns the inputs, the statements before all calls, and
    /// those of a call. Tensors are numbered from `first` on.
    fn parts(self, text: &mut Text, first: usize) -> (Vec<usize>, Vec<String>, Vec<String>) {
        let (a, b, out) = (first, first + 1, first + 2);
        let ranks = text.ranks;
        let allocation = || vec![format!("T{out} = ALLOCATE(mem_type=global, zero_init=false)")];
        match self {
            Self::Product([rows, columns, depth]) => {
                text.tensor(a, &format!("iS{a}00{{{rows}}}, iS{a}01{{{depth}}}"));
                text.tensor(b, &format!("iS{b}00{{{columns}}}, iS{b}01{{{depth}}}"));
                text.tensor(
                    out,
                    &format!("iS{out}00{{{rows}}}, iS{out}01{{{columns}}}, rS{out}02{{{depth}}}"),
                );
                (vec![a, b], Vec::new(), vec![format!("T{out} = linear(T{a}, T{b})")])
            }
            Self::Attention([heads, rows]) => {
                for name in [a, b, b + 2, out] {
                    text.tensor(
                        name,
                        &format!(
                            "iS{name}00{{1}}, iS{name}01{{{heads}}}, iS{name}02{{{rows}}}, iS{name}03{{128}}"
                        ),
                    );
                }
                let (value, scale) = (b + 2, 0.088);
                let call = format!(
                    "T{out} = sdpa(T{a}, T{b}, T{value}, dropout_p=double(0), is_causal=false, scale=double({scale}))"
                );
                (vec![a, b, value], Vec::new(), vec![call])
            }
            Self::Elementwise(elements) => {
                text.tensor(a, &format!("iS{a}00{{{elements}}}"));
                text.tensor(out, &format!("iS{out}00{{{elements}}}"));
                (vec![a], Vec::new(), vec![format!("T{out} = relu(T{a});")])
            }
            Self::Reduction(rows) => {
                text.tensor(a, &format!("iS{a}00{{{rows}}}, iS{a}01{{4096}}"));
                text.tensor(out, &format!("iS{out}00{{{rows}}}, rS{out}01{{4096}}"));
                let call = format!(
                    "T{out} = reduction( T{a}, op = add, initial value = float(0), allreduce = false )"
                );
                (vec![a], Vec::new(), vec![call])
            }
            Self::Copy(elements) => {
                text.tensor(a, &format!("iS{a}00{{{elements}}}"));
                text.tensor(out, &format!("iS{out}00{{{elements}}}"));
                (vec![a], allocation(), vec![format!("T{out} = Set( T{a} )")])
            }
            Self::PeerCopy(elements, protocol) => {
                for name in [a, out] {
                    text.tensor(name, &format!("ideviceIdx.x{name}00{{{ranks}}}, iS{name}01{{{elements}}}"));
                }
                let word = match protocol {
                    PeerProtocol::Get => "get",
                    PeerProtocol::Put => "put",
                };
                let message = |number: usize, direction: &str, buffer: usize, offset: usize| {
                    format!(
                        "P2PCommunication {number} (type={direction}, buffer=T{buffer}, peer=( ( rank + {offset} ) % {ranks} ), \
                         backend=CUDA, protocol={word})"
                    )
                };
                let messages = [message(first, "recv", out, ranks - 1), message(b, "send", a, 1)];
                let mut setup = allocation();
                setup.push(format!("ShareMemHandles({})", messages.join(", ")));
                let waits = [b, first].map(|it| format!("Wait(Communication {it})"));
                // The side that copies waits for the other one, which so comes first.
                let [receive, send] = messages;
                let messages = match protocol {
                    PeerProtocol::Get => [send, receive],
                    PeerProtocol::Put => [receive, send],
                };
                (vec![a], setup, messages.into_iter().chain(waits).collect())
            }
            Self::Collective(kind, algorithm, elements) => {
                let part = elements / ranks;
                let device = |name: usize| format!("ideviceIdx.x{name}00{{{ranks}}}");
                let whole = |name: usize| format!("iS{name}01{{{elements}}}");
                let parts = |name: usize| format!("iS{name}02{{{ranks}}}, iS{name}03{{{part}}}");
                let own = |name: usize| format!("iS{name}03{{{part}}}");
                let (word, input, output) = match kind {
                    Collective::Allreduce => {
                        ("type=Allreduce, red_op=SUM", format!("{}, {}", device(a), whole(a)), whole(out))
                    }
                    Collective::Allgather => {
                        ("type=Allgather", format!("{}, {}", device(a), own(a)), parts(out))
                    }
                    Collective::ReduceScatter => (
                        "type=ReduceScatter, red_op=SUM",
                        format!("{}, {}", device(a), parts(a)),
                        format!("{}, {}", device(out), own(out)),
                    ),
                    Collective::AllToAll => (
                        "type=AllToAll",
                        format!("{}, {}", device(a), parts(a)),
                        format!("{}, {}", device(out), parts(out)),
                    ),
                };
                text.tensor(a, &input);
                text.tensor(out, &output);
                let post = format!(
                    "Communication {first} ({word}, team={}, input=T{a}, output=T{out}, backend=NCCL, algo={algorithm})",
                    text.team()
                );
                (vec![a], allocation(), vec![post, format!("Wait(Communication {first})")])
            }
        }
    }
}

fn names(tensors: &[usize]) -> String {
    tensors.iter().map(|it| format!("T{it}")).collect::<Vec<_>>().join(", ")
}

/// Returns a program that makes a call several times, one after the other.
pub fn repeated_call(call: Call, calls: usize, ranks: usize) -> String {
    let mut text = Text::of(ranks);
    let (inputs, setup, body) = call.parts(&mut text, 0);
    let body: Vec<String> = setup.into_iter().chain(repeated(calls, &body)).collect();
    text.program(&names(&inputs), "", &body)
}

/// Returns a program of products with the same rows and other weights each, which have at least this many bytes together, and
/// the number of products.
pub fn products_from_memory(
    [rows, columns, depth]: [usize; 3],
    bytes: usize,
    ranks: usize,
) -> (String, usize) {
    let count = bytes.div_ceil(2 * columns * depth).max(1);
    let mut text = Text::of(ranks);
    text.tensor(0, &format!("iS000{{{rows}}}, iS001{{{depth}}}"));
    let mut body = Vec::new();
    for product in 0..count {
        let (weights, out) = (2 * product + 1, 2 * product + 2);
        text.tensor(weights, &format!("iS{weights}00{{{columns}}}, iS{weights}01{{{depth}}}"));
        text.tensor(out, &format!("iS{out}00{{{rows}}}, iS{out}01{{{columns}}}, rS{out}02{{{depth}}}"));
        body.push(format!("T{out} = linear(T0, T{weights})"));
    }
    let inputs: Vec<usize> = [0].into_iter().chain((0..count).map(|it| 2 * it + 1)).collect();
    (text.program(&names(&inputs), "", &body), count)
}

/// Returns a program that makes a call once, whose result is its output.
pub fn call_with_output(call: Call, ranks: usize) -> String {
    let mut text = Text::of(ranks);
    let (inputs, setup, body) = call.parts(&mut text, 0);
    text.program(&names(&inputs), "T2", &setup.into_iter().chain(body).collect::<Vec<_>>())
}

/// Returns a program that makes a call several times, each on the other one of two streams and after the one before.
pub fn alternating_call(call: Call, calls: usize, ranks: usize) -> String {
    let mut text = Text::of(ranks);
    let (inputs, setup, mut body) = call.parts(&mut text, 0);
    let streams = ["SetCurrentStream(Stream ( i99 % 2 ))", "Synchronize(Stream ( ( i99 + 1 ) % 2 ))"];
    body.splice(0..0, streams.map(str::to_owned));
    let mut all = vec!["Stream s0 = GetCurrentStream()".to_owned()];
    all.extend(setup);
    all.extend(["SetCurrentStream(Stream 0)", "Synchronize(Stream s0)"].map(str::to_owned));
    all.extend(repeated(calls, &body));
    all.extend(
        ["SetCurrentStream(Stream s0)", "Synchronize(Stream 0)", "Synchronize(Stream 1)"].map(str::to_owned),
    );
    text.program(&names(&inputs), "", &all)
}

/// Returns a program that makes two calls in turns, several times each.
pub fn calls_in_turns(calls: [Call; 2], times: usize, ranks: usize) -> String {
    let mut text = Text::of(ranks);
    let (mut inputs, mut all, mut body) = calls[0].parts(&mut text, 0);
    let (more, setup, second) = calls[1].parts(&mut text, 50);
    inputs.extend(more);
    all.extend(setup);
    body.extend(second);
    all.extend(repeated(times, &body));
    text.program(&names(&inputs), "", &all)
}

/// Returns a program that makes two calls in turns, several times each, the second one on another stream, as rings do.
pub fn calls_on_streams(calls: [Call; 2], times: usize, ranks: usize) -> String {
    let mut text = Text::of(ranks);
    let (mut inputs, setup, first) = calls[0].parts(&mut text, 0);
    let (more, second_setup, second) = calls[1].parts(&mut text, 50);
    inputs.extend(more);
    let mut all = vec!["Stream s0 = GetCurrentStream()".to_owned()];
    all.extend(setup.into_iter().chain(second_setup));
    let on = |stream: &str, other: &str, body: Vec<String>| {
        let begin = [format!("SetCurrentStream({stream})"), format!("Synchronize({other})")];
        begin.into_iter().chain(body).collect::<Vec<_>>()
    };
    let body = [on("Stream s0", "Stream 0", first), on("Stream 0", "Stream s0", second)].concat();
    all.extend(repeated(times, &body));
    all.extend(["SetCurrentStream(Stream s0)", "Synchronize(Stream 0)"].map(str::to_owned));
    text.program(&names(&inputs), "", &all)
}

/// Returns a program of chunks on two streams, as `overlap` makes them of a layer: each computes the same product and communicates as
/// many bytes as others, so that a communication is beside the product of the next chunk.
pub fn chunks([rows, columns, depth]: [usize; 3], communication: Call, count: usize, ranks: usize) -> String {
    let mut text = Text::of(ranks);
    text.tensor(0, &format!("iS000{{{rows}}}, iS001{{{depth}}}"));
    text.tensor(1, &format!("iS100{{{columns}}}, iS101{{{depth}}}"));
    let (mut inputs, mut body) = (vec![0, 1], Vec::new());
    let mut all = vec!["Stream s0 = GetCurrentStream()".to_owned()];
    for chunk in 0..count {
        let out = 100 * chunk + 2;
        text.tensor(out, &format!("iS{out}00{{{rows}}}, iS{out}01{{{columns}}}, rS{out}02{{{depth}}}"));
        let (more, setup, statements) = communication.parts(&mut text, 100 * chunk + 50);
        inputs.extend(more);
        all.extend(setup);
        body.push(format!("SetCurrentStream(Stream {})", chunk % 2));
        if chunk < 2 {
            body.push("Synchronize(Stream s0)".to_owned());
        }
        body.push(format!("T{out} = linear(T0, T1)"));
        body.extend(statements);
    }
    all.extend(body);
    all.extend(
        ["SetCurrentStream(Stream s0)", "Synchronize(Stream 0)", "Synchronize(Stream 1)"].map(str::to_owned),
    );
    text.program(&names(&inputs), "", &all)
}

/// Returns a program that makes two calls several times each, on two streams at the same time.
pub fn concurrent_calls(first: (Call, usize), second: (Call, usize), ranks: usize) -> String {
    let mut text = Text::of(ranks);
    let (mut inputs, setup, body) = first.0.parts(&mut text, 0);
    let (more, second_setup, second_body) = second.0.parts(&mut text, 50);
    inputs.extend(more);
    let mut all = vec!["Stream s0 = GetCurrentStream()".to_owned()];
    all.extend(setup.into_iter().chain(second_setup));
    for (stream, calls, body) in [(0, first.1, body), (1, second.1, second_body)] {
        all.push(format!("SetCurrentStream(Stream {stream})"));
        all.push("Synchronize(Stream s0)".to_owned());
        all.extend(repeated(calls, &body));
    }
    all.extend(
        ["SetCurrentStream(Stream s0)", "Synchronize(Stream 0)", "Synchronize(Stream 1)"].map(str::to_owned),
    );
    text.program(&names(&inputs), "", &all)
}
