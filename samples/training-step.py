"""Writes the sample training-step.hir: one training step of a transformer block, and what PyTorch computes for it.

The block has pre-norm RMSNorm, grouped-query attention with RoPE and a causal mask, and SwiGLU; the loss is the cross entropy over a sharded
vocabulary. The program has the forward pass, the backward pass, derived by hand, and Adam. The mesh is data x tensor: deviceIdx.y splits
the sequences of the batch, and the states of Adam besides (ZeRO); deviceIdx.x splits weights, and outside of the products the rows of
each sequence (sequence parallelism). Inputs, outputs, and products that could be split in two ways have a mesh.

`python training-step.py` writes the program for 4 ranks, the test case for 8 ranks, and the tensors of both. It needs torch and safetensors.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file

BATCH, ROWS, WIDTH, HEADS, SHARED, HEAD, HIDDEN, WORDS = 4, 8, 8, 8, 4, 4, 16, 16
EPS, RATE, BETA1, BETA2, ADAM_EPS, STEP = 1e-5, 0.01, 0.9, 0.95, 1e-8, 3


class Program:
    """The text of a program. Tensors have short names."""

    def __init__(self, mesh):
        self.mesh, self.axis = mesh, 0
        self.tensors, self.domains, self.body, self.shapes, self.splits = [], [], [], {}, {}
        self.inputs, self.outputs = [], []

    def axes(self, count):
        self.axis += count
        return list(range(self.axis - count, self.axis))

    def declare(self, shape, text, dtype="float", mesh=""):
        name = f"T{len(self.tensors)}"
        self.tensors.append(f"%tensor {name}_g_{dtype}[{', '.join(text)}]{mesh}")
        self.shapes[name] = list(shape)
        return name

    def tensor(self, shape, dtype="float"):
        numbers = self.axes(len(shape))
        kinds = ["b" if it == 1 else "i" for it in shape]
        return self.declare(shape, [f"{k}S{n}{{{e}}}" for k, n, e in zip(kinds, numbers, shape)], dtype)

    def sharded(self, shape, splits, dtype="float"):
        """`splits` has the device axes of each dimension, outermost first: {0: "yx"}."""
        ranks = iter(range(self.mesh["y"] * self.mesh["x"]))
        rows = ["{" + " ".join(str(next(ranks)) for _ in range(self.mesh["x"])) + "}" for _ in range(self.mesh["y"])]
        loop, logical, clauses = [], [], []
        for dim, extent in enumerate(shape):
            (number,) = self.axes(1)
            axis = f"iS{number}{{{extent}}}"
            logical.append(axis)
            for device in splits.get(dim, ""):
                count = self.mesh[device]
                extent //= count
                outer, inner = self.axes(2)
                loop.append(f"ideviceIdx.{device}{outer}{{{count}}}")
                inner = f"iS{inner}{{{extent}}}"
                clauses.append(f"outer_split({axis}, {count}) -> ({loop[-1]}, {inner})")
                axis = inner
            loop.append(axis)
        name = self.declare(shape, loop, dtype, f" (DeviceMesh{{{''.join(rows)}}})")
        self.splits[name] = splits
        if clauses:
            self.domains.append(f"  {name}: logical({', '.join(logical)}), {', '.join(clauses)}")
        return name

    def input(self, *args, **keys):
        self.inputs.append(self.sharded(*args, **keys))
        return self.inputs[-1]

    def output(self, value, splits):
        """Writes the last statement's result to a sharded tensor."""
        out = self.sharded(self.shapes[value], splits)
        self.body[-1] = self.body[-1].replace(f"{value} =", f"{out} =", 1)
        self.outputs.append(out)
        return out

    def set(self, out, text):
        self.body.append(f"  {out} = {text}")
        return out

    def note(self, text):
        self.body.append(f"  // {text}")

    # Operators

    def map(self, text, *args, dtype="float"):
        """`text` is an expression of `{0}`, `{1}` …"""
        shape = [max(sizes) for sizes in zip(*(self.shapes[it] for it in args))]
        return self.set(self.tensor(shape, dtype), text.format(*args) + ";")

    def reduce(self, value, dims, op="add", initial="0"):
        shape = self.shapes[value]
        numbers = self.axes(len(shape))
        kinds = ["r" if dim in dims else "i" for dim in range(len(shape))]
        kept = [it for dim, it in enumerate(shape) if dim not in dims]
        out = self.declare(kept, [f"{k}S{n}{{{e}}}" for k, n, e in zip(kinds, numbers, shape)])
        return self.set(out, f"reduction( {value}, op = {op}, initial value = float({initial}), allreduce = false )")

    def broadcast(self, value, flags, dtype="float"):
        kept = iter(self.shapes[value])
        out = self.tensor([1 if flag else next(kept) for flag in flags], dtype)
        return self.set(out, f"broadcast( {value}, flags = {{{', '.join(str(it).lower() for it in flags)}}} )")

    def permute(self, value, order):
        shape = self.shapes[value]
        numbers = self.axes(len(shape))
        text = [f"iS{numbers[it]}{{{shape[it]}}}" for it in order]
        out = self.declare([shape[it] for it in order], text)
        self.domains.append(f"  {out}: logical({', '.join(text)})")
        return self.set(out, f"Set.Permute( {value} )")

    def reshape(self, value, shape):
        return self.set(self.tensor(shape), f"reshape( {value} )")

    def product(self, left, right, dim):
        """Returns a tensor for a product whose last dimension is dimension `dim` of the right operand. If this is a weight that deviceIdx.x
        splits along it, the result is split like that, too: the weight stays as it is, and the rows of the left operand are gathered."""
        shape = self.shapes[left][:-1] + [self.shapes[right][dim]]
        stays = dim in self.splits.get(right, {})
        return self.sharded(shape, {0: "y", len(shape) - 1: "x"}) if stays else self.tensor(shape)

    def linear(self, value, weight):
        return self.set(self.product(value, weight, 0), f"linear({value}, {weight})")

    def matmul(self, left, right):
        return self.set(self.product(left, right, 1), f"matmul({left}, {right})")

    def halves(self, value):
        *outer, last = self.shapes[value]
        ranges = "".join(f"{{0, {it}, 1}} " for it in outer)
        parts = [(0, last // 2), (last // 2, last)]
        return [self.set(self.tensor(outer + [last // 2]), f"slice( {value}, {{ {ranges}{{{a}, {b}, 1}} }} )") for a, b in parts]

    def text(self):
        head = f"%HostIrContainer {{ ({', '.join(self.inputs)}) -> ({', '.join(self.outputs)}) :"
        lines = self.tensors + [head] + self.body + ["} // %HostIrContainer", "", "Domains:"] + self.domains
        return "\n".join(lines) + "\n"


def training_step(mesh):
    """Returns the program, and the names of its inputs and outputs."""
    p = Program(mesh)
    names = {}
    names["x"] = x = p.input([BATCH, ROWS, WIDTH], {0: "y", 1: "x"})
    names["labels"] = labels = p.input([BATCH, ROWS], {0: "y"}, dtype="int64_t")
    names["cos"] = cos = p.input([ROWS, HEAD], {})
    names["sin"] = sin = p.input([ROWS, HEAD], {})
    # Tensor parallelism splits a weight along one dimension; ZeRO also splits the states of Adam over the other mesh axis.
    weights = {
        "norm1": ([WIDTH], {}, {0: "y"}),
        "query": ([HEADS * HEAD, WIDTH], {0: "x"}, {0: "xy"}),
        "key": ([SHARED * HEAD, WIDTH], {0: "x"}, {0: "xy"}),
        "value": ([SHARED * HEAD, WIDTH], {0: "x"}, {0: "xy"}),
        "attention_out": ([WIDTH, HEADS * HEAD], {1: "x"}, {0: "y", 1: "x"}),
        "norm2": ([WIDTH], {}, {0: "y"}),
        "gate": ([HIDDEN, WIDTH], {0: "x"}, {0: "xy"}),
        "up": ([HIDDEN, WIDTH], {0: "x"}, {0: "xy"}),
        "down": ([WIDTH, HIDDEN], {1: "x"}, {0: "y", 1: "x"}),
        "norm3": ([WIDTH], {}, {0: "y"}),
        "head": ([WORDS, WIDTH], {0: "x"}, {0: "xy"}),
    }
    w, states = {}, {}
    for name, (shape, split, zero) in weights.items():
        names[name] = w[name] = p.input(shape, split)
        states[name] = [p.input(shape, zero), p.input(shape, zero)]
        names[f"{name}.m"], names[f"{name}.v"] = states[name]

    def norm(value, weight):
        squares = p.reduce(p.map("{0} * {0}", value), [2])
        r = p.map("rsqrt({0})", p.map(f"{{0}} + float({EPS})", p.map(f"{{0}} * float({1 / WIDTH})", squares)))
        r = p.broadcast(r, [False, False, True])
        normal = p.map("{0} * {1}", value, r)
        return p.map("{0} * {1}", normal, p.broadcast(weight, [True, True, False])), (normal, r, weight)

    def norm_gradient(dy, saved):
        normal, r, weight = saved
        dweight = p.reduce(p.map("{0} * {1}", dy, normal), [0, 1])
        dnormal = p.map("{0} * {1}", dy, p.broadcast(weight, [True, True, False]))
        mean = p.map(f"{{0}} * float({1 / WIDTH})", p.reduce(p.map("{0} * {1}", dnormal, normal), [2]))
        mean = p.broadcast(mean, [False, False, True])
        inner = p.map("{0} - {1}", dnormal, p.map("{0} * {1}", normal, mean))
        return p.map("{0} * {1}", inner, r), dweight

    def weight_gradient(dy, value):
        """The gradient of the weight of `linear`: a product over all rows of all sequences."""
        dy, value = [p.reshape(it, [BATCH * ROWS, p.shapes[it][-1]]) for it in (dy, value)]
        return p.matmul(p.permute(dy, [1, 0]), value)

    def heads(value, count):
        return p.permute(p.reshape(value, [BATCH, ROWS, count, HEAD]), [0, 2, 1, 3])

    def joined(value):
        count = p.shapes[value][1]
        return p.reshape(p.permute(value, [0, 2, 1, 3]), [BATCH, ROWS, count * HEAD])

    p.note("The tables of RoPE, for all heads.")
    tables = [p.broadcast(it, [True, True, False, False]) for it in (cos, sin)]

    def rotate(value, back=False):
        """RoPE, or its transpose."""
        turned = p.map("{0} * {1}", value, tables[1]) if back else value
        first, second = p.halves(turned)
        order = [second, p.map("-{0}", first)] if back else [p.map("-{0}", second), first]
        turned = p.set(p.tensor(p.shapes[value]), f"cat( {order[0]}, {order[1]}, 3 )")
        straight = p.map("{0} * {1}", value, tables[0])
        return p.map("{0} + {1}", straight, turned if back else p.map("{0} * {1}", turned, tables[1]))

    p.note("Forward: attention.")
    h1, saved1 = norm(x, w["norm1"])
    q, k = [rotate(heads(p.linear(h1, w[it]), count)) for it, count in (("query", HEADS), ("key", SHARED))]
    v = heads(p.linear(h1, w["value"]), SHARED)
    o, logsumexp = p.tensor([BATCH, HEADS, ROWS, HEAD]), p.tensor([BATCH, HEADS, ROWS])
    seed, offset = p.tensor([2], "uint64_t"), p.tensor([], "uint64_t")
    p.body.append(
        f"  {o}, {logsumexp}, {seed}, {offset} = sdpa({q}, {k}, {v}, dropout_p=double(0), is_causal=true, scale=double({HEAD**-0.5}))"
    )
    attended = joined(o)
    x1 = p.map("{0} + {1}", x, p.linear(attended, w["attention_out"]))
    p.note("Forward: SwiGLU.")
    h2, saved2 = norm(x1, w["norm2"])
    gate, up = p.linear(h2, w["gate"]), p.linear(h2, w["up"])
    sigmoid = p.map("sigmoid({0})", gate)
    silu = p.map("{0} * {1}", gate, sigmoid)
    act = p.map("{0} * {1}", silu, up)
    x2 = p.map("{0} + {1}", x1, p.linear(act, w["down"]))
    p.note("Forward: logits, and the cross entropy.")
    h3, saved3 = norm(x2, w["norm3"])
    logits = p.linear(h3, w["head"])

    def per_row(it):
        return p.broadcast(it, [False, False, True])

    largest = per_row(p.reduce(logits, [2], "max", "-inf"))
    powers = p.map("exp({0})", p.map("{0} - {1}", logits, largest))
    sums = p.reduce(powers, [2])
    words = p.set(p.tensor([WORDS], "int64_t"), f"iota({WORDS}, 0, 1, int64_t);")
    is_label = p.map(
        "{0} == {1}",
        p.broadcast(labels, [False, False, True], "int64_t"),
        p.broadcast(words, [True, True, False], "int64_t"),
        dtype="bool",
    )
    picked = p.reduce(p.map("where({1}, {0}, float(0))", p.map("{0} - {1}", logits, largest), is_label), [2])
    each = p.map("{0} - {1}", p.map("log({0})", sums), picked)
    total = p.reduce(each, [0, 1])
    names["loss"] = p.output(scaled(p, total), {})

    p.note("Backward: cross entropy and logits.")
    one_hot = p.map("where({0}, float(1), float(0))", is_label)
    shares = p.map("{0} / {1}", powers, per_row(sums))
    dlogits = p.map(f"{{0}} * float({1 / (BATCH * ROWS)})", p.map("{0} - {1}", shares, one_hot))
    gradients = {}
    gradients["head"] = weight_gradient(dlogits, h3)
    dx2, gradients["norm3"] = norm_gradient(p.matmul(dlogits, w["head"]), saved3)
    p.note("Backward: SwiGLU.")
    dact = p.matmul(dx2, w["down"])
    gradients["down"] = weight_gradient(dx2, act)
    dup = p.map("{0} * {1}", dact, silu)
    dsilu = p.map("{0} * {1}", dact, up)
    # silu' = sigmoid · (1 + gate · (1 - sigmoid))
    rest = p.map("{0} * {1}", gate, p.map("float(1) - {0}", sigmoid))
    dgate = p.map("{0} * {1}", dsilu, p.map("{0} * {1}", sigmoid, p.map("{0} + float(1)", rest)))
    gradients["gate"], gradients["up"] = weight_gradient(dgate, h2), weight_gradient(dup, h2)
    dh2 = p.map("{0} + {1}", p.matmul(dgate, w["gate"]), p.matmul(dup, w["up"]))
    dx1, gradients["norm2"] = norm_gradient(dh2, saved2)
    dx1 = p.map("{0} + {1}", dx1, dx2)
    p.note("Backward: attention.")
    dattended = p.matmul(dx1, w["attention_out"])
    gradients["attention_out"] = weight_gradient(dx1, attended)
    do = heads(dattended, HEADS)
    dq, dk, dv = p.tensor(p.shapes[q]), p.tensor(p.shapes[k]), p.tensor(p.shapes[v])
    p.body.append(
        f"  {dq}, {dk}, {dv} = sdpa_bwd({do}, {q}, {k}, {v}, {o}, logsum_exp={logsumexp}, dropout_p=double(0), is_causal=true, "
        f"philox_seed={seed}, philox_offset={offset}, scale=double({HEAD**-0.5}))"
    )
    dq, dk, dv = joined(rotate(dq, back=True)), joined(rotate(dk, back=True)), joined(dv)
    gradients["query"], gradients["key"], gradients["value"] = [weight_gradient(it, h1) for it in (dq, dk, dv)]
    dh1 = p.map("{0} + {1}", p.matmul(dq, w["query"]), p.matmul(dk, w["key"]))
    dh1 = p.map("{0} + {1}", dh1, p.matmul(dv, w["value"]))
    dx, gradients["norm1"] = norm_gradient(dh1, saved1)
    names["x.gradient"] = p.output(p.map("{0} + {1}", dx, dx1), {0: "y", 1: "x"})

    for name, (shape, split, zero) in weights.items():
        p.note(f"Adam: {name}.")
        g, (m, v) = gradients[name], states[name]
        m = p.output(p.map("{0} + {1}", p.map(f"{{0}} * float({BETA1})", m), p.map(f"{{0}} * float({1 - BETA1:.17g})", g)), zero)
        squares = p.map("{0} * {0}", g)
        v = p.output(p.map("{0} + {1}", p.map(f"{{0}} * float({BETA2})", v), p.map(f"{{0}} * float({1 - BETA2:.17g})", squares)), zero)
        root = p.map("sqrt({0})", p.map(f"{{0}} * float({1 / (1 - BETA2**STEP):.17g})", v))
        step = p.map("{0} / {1}", m, p.map(f"{{0}} + float({ADAM_EPS})", root))
        step = p.map(f"{{0}} * float({RATE / (1 - BETA1**STEP):.17g})", step)
        new = p.output(p.map("{0} - {1}", w[name], step), split)
        names[f"{name}.new"], names[f"{name}.new_m"], names[f"{name}.new_v"] = new, m, v
    return p, names, weights


def scaled(p, total):
    return p.set(p.tensor([]), f"{total} * float({1 / (BATCH * ROWS)});")


def values(weights):
    """Returns the inputs, and what PyTorch computes from them."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)

    def single(it):
        return it.float().double()

    given = {"x": single(torch.randn(BATCH, ROWS, WIDTH)), "labels": torch.randint(WORDS, (BATCH, ROWS))}
    angles = torch.arange(ROWS)[:, None] * 10000.0 ** (-torch.arange(HEAD // 2) / (HEAD // 2))
    angles = torch.cat([angles, angles], -1)
    given["cos"], given["sin"] = single(angles.cos()), single(angles.sin())
    for name, (shape, *_) in weights.items():
        given[name] = single(torch.randn(shape) * 0.5 + (1 if len(shape) == 1 else 0))
        given[f"{name}.m"] = single(torch.randn(shape) * 0.1)
        given[f"{name}.v"] = single(torch.rand(shape) * 0.1)
    w = {name: torch.nn.Parameter(given[name].clone()) for name in weights}
    adam = torch.optim.Adam(w.values(), lr=RATE, betas=(BETA1, BETA2), eps=ADAM_EPS)
    for name, it in w.items():
        state = {"exp_avg": given[f"{name}.m"].clone(), "exp_avg_sq": given[f"{name}.v"].clone()}
        adam.state[it] = {"step": torch.tensor(float(STEP - 1)), **state}

    F = torch.nn.functional
    x = given["x"].clone().requires_grad_()

    def norm(it, name):
        return F.rms_norm(it, (WIDTH,), w[name], EPS)

    def heads(it):
        return it.unflatten(-1, (-1, HEAD)).transpose(1, 2)

    def rotate(it):
        first, second = it.chunk(2, -1)
        return it * given["cos"] + torch.cat([-second, first], -1) * given["sin"]

    h = norm(x, "norm1")
    q, k, v = [heads(F.linear(h, w[name])) for name in ("query", "key", "value")]
    o = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
    h = x + F.linear(o.transpose(1, 2).flatten(2), w["attention_out"])
    z = norm(h, "norm2")
    h = h + F.linear(F.silu(F.linear(z, w["gate"])) * F.linear(z, w["up"]), w["down"])
    loss = F.cross_entropy(F.linear(norm(h, "norm3"), w["head"]).flatten(0, 1), given["labels"].flatten())
    loss.backward()
    adam.step()
    wanted = {"loss": loss.detach(), "x.gradient": x.grad}
    for name, it in w.items():
        state = adam.state[it]
        wanted |= {f"{name}.new": it.detach(), f"{name}.new_m": state["exp_avg"], f"{name}.new_v": state["exp_avg_sq"]}
    return given, wanted


def write(path, mesh, folder, about):
    """Writes the program for a mesh. `folder` is that of the tensors, as seen from the program."""
    program, names, weights = training_step(mesh)
    given, wanted = values(weights)
    file = f"@%S/{folder}training-step.safetensors"
    inputs = " ".join(f"--input {names[it]}={file}#{it}" for it in given)
    expected = " ".join(f"--expect {names[it]}={file}#{it}" for it in wanted)
    runs = [
        f"hir-run %s --passes @lower {inputs} {expected}",
        f"hir-run %s --passes @overlap {inputs} {expected} --schedule=seed:0..3",
        "hir-opt %s --passes @overlap --communication",
    ]
    if mesh["x"] * mesh["y"] > 4:
        # Runs with files are not repeated on emulated GPUs, where eight ranks take most of a minute.
        runs = [f"hir-run %s --passes @overlap {inputs} {expected} --timeline %t/timeline.json"]
    head = [f"// RUN: {it}" for it in runs] + [f"// {it}" for it in about]
    path.write_text("\n".join(head) + "\n" + program.text())
    tensors = given | wanted
    return {it: value.float() if value.is_floating_point() else value for it, value in tensors.items()}


here = Path(__file__).parent
tensors = write(
    here / "training-step.hir",
    {"y": 2, "x": 2},
    "",
    [
        "A training step of a transformer block on 2 x 2 devices, data x tensor: forward, backward, and Adam with states sharded over both.",
        "training-step.py wrote this program. Inputs, outputs, and products that could be split in two ways have a mesh; `@overlap`",
        "determines the others. The expected values are those of PyTorch.",
    ],
)
write(
    here / "../tests/cases/lower/training-step-8-ranks.hir",
    {"y": 2, "x": 4},
    "../../../samples/",
    ["The sample training-step.hir on 2 x 4 devices. samples/training-step.py wrote it."],
)
save_file({it: value.contiguous() for it, value in tensors.items()}, here / "training-step.safetensors")
