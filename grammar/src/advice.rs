//! Advice for what other languages have: functions of tensor libraries that are not operators, and lines of Python.

const SLICE: &str =
    "write `slice( x, { {0, 4, 1} {0, 8, 1} } )` for each part: start, end and step of each axis";

const LOGIC: &str = "write `a && b`, `a || b` or `!a`";

/// The names of functions, in lower case and without `_`, and what to write. In the formulas, `x` is the operand.
const ADVICE: &[(&[&str], &str)] = &[
    (
        &["gelu"],
        "write it with `erf` or `tanh`: gelu(x) = 0.5 * x * (1 + erf(0.7071067811865476 * x)), one statement for each operation",
    ),
    (
        &["gelutanh", "tanhgelu", "newgelu", "fastgelu"],
        "write it with `tanh`: 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))), one statement for each operation",
    ),
    (&["quickgelu"], "write it with `sigmoid`: x * sigmoid(1.702 * x), one statement for each operation"),
    (
        &["softmax"],
        "write it with `reduction`, `broadcast` and `exp`: e = exp(x - max(x)), then e / sum(e); the reductions go along the axis of the softmax, and `broadcast` restores that axis",
    ),
    (
        &["logsoftmax"],
        "write it with `reduction`, `broadcast`, `exp` and `log`: z = x - max(x), then z - log(sum(exp(z))); the reductions go along the axis of the softmax, and `broadcast` restores that axis",
    ),
    (
        &["logsumexp"],
        "write it with `reduction`, `broadcast`, `exp` and `log`: m = max(x), then m + log(sum(exp(x - m)))",
    ),
    (
        &["layernorm", "batchnorm", "groupnorm", "instancenorm"],
        "write it with `reduction`, `broadcast` and `rsqrt`: d = x - mean(x), then d * rsqrt(mean(d * d) + eps) * weight + bias; mean is a `reduction` with `op = add` times 1/n",
    ),
    (
        &["rmsnorm"],
        "write it with `reduction`, `broadcast` and `rsqrt`: x * rsqrt(mean(x * x) + eps) * weight; mean is a `reduction` with `op = add` times 1/n",
    ),
    (
        &["dropout"],
        "write it with `rng_uniform` and `where`: where(rng_uniform < 1 - p, x, 0) * (1 / (1 - p)), one statement for each operation; `sdpa` has its own `dropout_p`",
    ),
    (&["and", "or", "not", "logicaland", "logicalor", "logicalnot"], LOGIC),
    (&["swish"], "write `silu`, which is the same function"),
    (&["swiglu"], "write it with `silu` and `*`: silu(gate) * up, one statement for each operation"),
    (
        &["geglu"],
        "write it with `erf`: gelu(gate) * up, with gelu(x) = 0.5 * x * (1 + erf(0.7071067811865476 * x)), one statement for each operation",
    ),
    (
        &["mish"],
        "write it with `exp`, `log1p` and `tanh`: x * tanh(log1p(exp(x))), one statement for each operation",
    ),
    (&["softplus"], "write it with `exp` and `log1p`: log1p(exp(x)), one statement for each operation"),
    (
        &["leakyrelu", "prelu"],
        "write it with `where`: where(x > 0, x, slope * x), one statement for each operation",
    ),
    (
        &["elu"],
        "write it with `expm1` and `where`: where(x > 0, x, alpha * expm1(x)), one statement for each operation",
    ),
    (&["relu6"], "write it with `clamp`: `clamp(x, double(0), double(6))`"),
    (&["**"], "write `pow( x, y )`"),
    (&["square"], "write it with `*`: x * x"),
    (
        &["mean"],
        "write it with `reduction`: `reduction( x, op = add, initial value = float(0), allreduce = false )`, then `*` with 1/n",
    ),
    (
        &["sum", "max", "min", "amax", "amin", "prod", "any", "all"],
        "write it with `reduction`, and reduction axes, `rS4{8}`, in the result: `reduction( x, op = add, initial value = float(0), allreduce = false )`; `op` is `add`, `max`, `min` or `mul`",
    ),
    (
        &["transpose", "permute", "t", "swapaxes", "movedim"],
        "write it with `Set.Permute`, and the axes of `x` in their new order: `Set.Permute( x, cache_op=Streaming )`",
    ),
    (
        &["mm", "bmm", "dot", "einsum", "tensordot"],
        "write `matmul(a, b)`, or `linear(x, weight)` for a transposed weight",
    ),
    (&["view", "reshape", "flatten", "unflatten"], "write `reshape( x )`, with the axes of the result"),
    (
        &["item", "tolist", "numpy", "cpu", "print"],
        "make it an output, which `hir run --output T1=T1.npy` writes",
    ),
    (&["cat", "concat", "concatenate", "stack"], "write `cat( { a, b }, 0 )`: the tensors and the axis"),
    (&["chunk", "split", "narrow"], SLICE),
    (
        &["len", "shape", "size", "numel", "ndim", "dim"],
        "the axes state the extents: `iS0{8}` has 8, and `iS0{i1}` has the scalar `i1`",
    ),
    (
        &["zeros", "ones", "empty", "zeroslike", "oneslike"],
        "write `full( {4, 8}, double(0) )`: the extents and the value",
    ),
    (
        &["to", "float", "half", "bfloat16", "astype", "type"],
        "write `__to_bfloat(x)`, `__to_half(x)` or `__to_float(x)`, with this type in the result",
    ),
    (
        &["add", "sub", "subtract", "mul", "multiply", "div", "divide"],
        "write `a + b`, `a - b`, `a * b` or `a / b`",
    ),
    (
        &["addmm", "baddbmm"],
        "write `matmul(a, b)`, then `+` as a statement of its own; or `linear(x, weight, bias)`",
    ),
    (
        &["barrier"],
        "remove it: communications wait for each other, and `Synchronize(Stream 0)` orders streams",
    ),
    (&["unsqueeze"], "write `broadcast( x, flags = {true, false} )`: true for each new axis"),
    (&["detach", "clone", "contiguous", "copy", "identity"], "write `Set( x, cache_op=Streaming )`"),
    (
        &[
            "allreduce",
            "allgather",
            "allgatherintotensor",
            "reducescatter",
            "reducescattertensor",
            "alltoall",
            "alltoallsingle",
            "send",
            "recv",
            "isend",
            "irecv",
            "psum",
            "ppermute",
        ],
        "write `Set` or `reduction` with a sharded mesh on one side, which `--passes @lower` makes a communication; or `Communication 0 (type=Allreduce, team=(0 1), red_op=SUM, input=x, output=y, backend=NCCL)` and `Wait(Communication 0)`",
    ),
    (
        &["scaleddotproductattention", "attention", "flashattention", "multiheadattention"],
        "write `sdpa` with the queries, keys and values of all heads",
    ),
];

/// The words of lines that are not Host IR, and what to write: those with which a line begins, and those in a value.
const WORDS: &[(&[&str], bool, &str)] = &[
    (
        &["for"],
        true,
        "write `FOR i0 from 0 to 4:`, which counts; an operator computes all elements, without a loop",
    ),
    (
        &["while"],
        true,
        "write `FOR i0 from 0 to 4:`, the only loop; `WHILE(T0)` as the first statement of its body ends it where `T0` is false",
    ),
    (&["if"], true, "write `IF Manual ( rank == 0 ):` for statements, `where(condition, a, b)` for elements"),
    (&["if"], false, "write `where(condition, a, b)`, which selects elements"),
    (&["return"], true, "remove it: the header names the results, as in `(T0) -> (T1)`"),
    (&["def", "import", "from", "with"], true, "remove it: a `%HostIrContainer` has only statements"),
    (&["lambda"], false, "write one statement for each operation"),
    (&["and", "or", "not"], false, LOGIC),
];

/// Returns what to write instead of a line with a syntax error, if it is Python.
pub(crate) fn of_line(line: &str) -> Option<&'static str> {
    let line = line.split("//").next().unwrap_or(line).trim();
    let is_letter = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | '.');
    let mut words = line.split(|it| !is_letter(it));
    let first = words.next()?;
    let is_statement = first.starts_with('T') && first[1..].starts_with(|it: char| it.is_ascii_digit());
    if is_statement && ["+=", "-=", "*=", "/="].iter().any(|it| line.contains(it)) {
        return Some("write a statement with another result, as `T2 = T1 + T0`");
    }
    let row = WORDS.iter().find(|(names, begins, _)| match begins {
        true => names.contains(&first),
        false => is_statement && words.clone().any(|it| names.contains(&it)),
    });
    if let Some((.., advice)) = row {
        return Some(advice);
    }
    let has_text = ['"', '\''].iter().any(|it| line.matches(*it).count() > 1);
    if has_text || line.contains("([") {
        let called = line.match_indices('(').filter_map(|it| line[..it.0].rsplit(|it| !is_letter(it)).next());
        let advice = called.filter(|it| !it.is_empty()).find_map(of_function);
        return advice.or_else(|| {
            has_text.then_some("remove it: statements contain no texts, and `//` begins a comment")
        });
    }
    // Axes have braces: `T0[0:4]`.
    let (_, value) = line.split_once('=')?;
    let (inside, _) = value.split_once('[')?.1.split_once(']')?;
    (is_statement && !inside.contains('{')).then_some(SLICE)
}

/// Returns how to write a function that is not an operator, if its name is well known.
pub(crate) fn of_function(name: &str) -> Option<&'static str> {
    // `T0.t()`, `torch.sum(T0)`.
    let name = name.rsplit('.').next().unwrap_or(name).replace('_', "").to_ascii_lowercase();
    ADVICE.iter().find(|(names, _)| names.contains(&name.as_str())).map(|(_, text)| *text)
}
