//! The programs that `hir calibrate` measures. All tensors are of type bf16. Only layers have outputs, which hir-run would copy to
//! the host.

use std::fmt::Write as _;

/// A layer of a transformer on several ranks, not lowered: a program that no table of a machine contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The kind of layer.
    pub kind: LayerKind,
    /// The number of tokens.
    pub rows: usize,
    /// The number of features of a token; the MLP has four times as many in between.
    pub width: usize,
}

/// A kind of layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// An all-gather of the rows, then a linear layer with sharded columns.
    ColumnParallel,
    /// A linear layer with a sharded sum, then an all-reduce.
    RowParallel,
    /// All-gather, linear, relu, linear, reduce-scatter.
    Mlp,
    /// Attention and an MLP with residual sums, without norms. Heads have 128 elements, sequences at most 1024 rows.
    Block,
}

impl LayerKind {
    /// All kinds, with their names.
    pub const ALL: [(Self, &str); 4] = [
        (Self::ColumnParallel, "column-parallel"),
        (Self::RowParallel, "row-parallel"),
        (Self::Mlp, "mlp"),
        (Self::Block, "block"),
    ];
}

impl std::fmt::Display for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = LayerKind::ALL.iter().find(|it| it.0 == self.kind).map_or("", |it| it.1);
        write!(f, "{name} rows={} width={}", self.rows, self.width)
    }
}

impl std::str::FromStr for Layer {
    type Err = grammar::InvalidOption;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |word: Option<&str>, key: &str| word?.strip_prefix(key)?.parse().ok();
        let mut words = text.split(' ');
        let kind = words.next().and_then(|name| LayerKind::ALL.iter().find(|it| it.1 == name)).map(|it| it.0);
        let (rows, width) = (number(words.next(), "rows="), number(words.next(), "width="));
        match (kind, rows, width) {
            (Some(kind), Some(rows), Some(width)) => Ok(Self { kind, rows, width }),
            _ => Err(format!("`{text}` is not a layer such as `mlp rows=512 width=4096`").into()),
        }
    }
}

/// A text that grows.
struct Text {
    ranks: usize,
    declarations: String,
    domains: String,
}

impl Text {
    fn of(ranks: usize) -> Self {
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
    fn tensor(&mut self, name: usize, axes: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.declarations, "%tensor T{name}_g___bfloat[{axes}] {}", self.mesh());
    }

    /// Declares a tensor of these extents, whose axis `sharded` is divided among the ranks. `reduced` is the extent of an
    /// axis that was summed.
    fn sharded(&mut self, name: usize, extents: [usize; 2], sharded: Option<usize>) {
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
    fn program(self, inputs: &str, output: &str, body: &[String]) -> String {
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

impl Layer {
    /// Returns the program for a number of ranks.
    pub fn text(&self, ranks: usize) -> String {
        let Self { kind, rows, width } = *self;
        let inner = 4 * width;
        let mut text = Text::of(ranks);
        let lines = |all: &[&str]| all.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        match kind {
            LayerKind::ColumnParallel => {
                text.sharded(0, [rows, width], Some(0));
                text.sharded(1, [inner, width], Some(0));
                text.sharded(2, [rows, inner], Some(1));
                text.program("T0, T1", "T2", &lines(&["T2 = linear(T0, T1)"]))
            }
            LayerKind::RowParallel => {
                text.sharded(0, [rows, inner], Some(1));
                text.sharded(1, [width, inner], Some(1));
                text.sharded(2, [rows, width], None);
                text.program("T0, T1", "T2", &lines(&["T2 = linear(T0, T1)"]))
            }
            LayerKind::Mlp => {
                text.sharded(0, [rows, width], Some(0));
                text.sharded(1, [inner, width], Some(0));
                text.sharded(2, [width, inner], Some(1));
                text.sharded(3, [rows, inner], Some(1));
                text.sharded(4, [rows, inner], Some(1));
                text.sharded(5, [rows, width], Some(0));
                let body = ["T3 = linear(T0, T1)", "T4 = relu(T3);", "T5 = linear(T4, T2)"];
                text.program("T0, T1, T2", "T5", &lines(&body))
            }
            LayerKind::Block => {
                let (heads, length) = (width / 128, rows.min(1024));
                let sequences = rows / length;
                text.sharded(0, [rows, width], Some(0));
                text.sharded(1, [3 * width, width], Some(0));
                text.sharded(2, [width, width], Some(1));
                text.sharded(3, [inner, width], Some(0));
                text.sharded(4, [width, inner], Some(1));
                text.sharded(5, [rows, 3 * width], Some(1));
                // `Set.Permute` takes the axes of its operand in the order of the numbers of those of its result.
                let axes = |name: usize, extents: &[usize]| {
                    let numbers =
                        if matches!(name, 10..=12 | 23) { [0, 2, 1, 3, 4] } else { [0, 1, 2, 3, 4] };
                    let axes = numbers.iter().zip(extents).map(|(at, it)| format!("iS{name}0{at}{{{it}}}"));
                    axes.collect::<Vec<_>>().join(", ")
                };
                for (name, extents) in [
                    (6, vec![sequences, length, heads, 3, 128]),
                    (7, vec![sequences, length, heads, 128]),
                    (8, vec![sequences, length, heads, 128]),
                    (9, vec![sequences, length, heads, 128]),
                    (10, vec![sequences, heads, length, 128]),
                    (11, vec![sequences, heads, length, 128]),
                    (12, vec![sequences, heads, length, 128]),
                    (22, vec![sequences, heads, length, 128]),
                    (23, vec![sequences, length, heads, 128]),
                    (24, vec![rows, width]),
                ] {
                    // Passes propagate the mesh.
                    let _ =
                        writeln!(text.declarations, "%tensor T{name}_g___bfloat[{}]", axes(name, &extents));
                }
                for name in [25, 26, 29, 30] {
                    text.sharded(name, [rows, width], Some(0));
                }
                for name in [27, 28] {
                    text.sharded(name, [rows, inner], Some(1));
                }
                // For inputs between -1 and 1, the deviation of the scores is 1.
                let scale = 9.0 / (width as f64 * 128_f64.sqrt());
                let attention = format!(
                    "T22 = sdpa(T10, T11, T12, dropout_p=double(0), is_causal=false, scale=double({scale:.7}))"
                );
                let body = [
                    "T5 = linear(T0, T1)",
                    "T6 = reshape( T5 )",
                    "T7 = select( T6, axis = iS603{3}, index = 0 )",
                    "T8 = select( T6, axis = iS603{3}, index = 1 )",
                    "T9 = select( T6, axis = iS603{3}, index = 2 )",
                    "T10 = Set.Permute( T7 )",
                    "T11 = Set.Permute( T8 )",
                    "T12 = Set.Permute( T9 )",
                    &attention,
                    "T23 = Set.Permute( T22 )",
                    "T24 = reshape( T23 )",
                    "T25 = linear(T24, T2)",
                    "T26 = T0 + T25;",
                    "T27 = linear(T26, T3)",
                    "T28 = relu(T27);",
                    "T29 = linear(T28, T4)",
                    "T30 = T26 + T29;",
                ];
                text.program("T0, T1, T2, T3, T4", "T30", &lines(&body))
            }
        }
    }
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
