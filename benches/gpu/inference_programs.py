"""Programs of inference with tensor parallelism, for any number of ranks, in bf16.

A layer is what follows the norm of a transformer block, up to the norm of the next one:
    attention with grouped heads over a cache of keys and values, linear, all-reduce, residual, RMSNorm,
    gated MLP, linear, all-reduce, residual, RMSNorm.
The linear layer of queries, keys and values has, for each head of keys, its queries, its key and its value; that of
the MLP has blocks of 128 gates and the 128 elements that they gate. So a rank has whole heads and whole blocks.

    inference_programs.py epilogue RANKS ROWS H CALLS
        CALLS times: all-reduce of [ROWS, H], residual, RMSNorm
    inference_programs.py allreduce RANKS ROWS H CALLS
        CALLS times: the all-reduce alone
    inference_programs.py layers RANKS ROWS H HEADS KEY_HEADS HIDDEN CACHE LAYERS
        LAYERS layers one after another, with the same weights. Decoding: ROWS sequences of one token, which becomes the
        last of CACHE positions. With CACHE = 0 it is a prefill: one sequence of ROWS tokens, which fills its cache.
"""
import sys

EPSILON = 1e-5
# Elements of a head, and gates of a block of the MLP.
EXTENT = 128


class Text:
    """A program, whose tensors get their names and axes here."""

    def __init__(self, ranks):
        self.ranks, self.declared, self.domains, self.body = ranks, [], [], []
        self.mesh = f"(DeviceMesh{{{' '.join(map(str, range(ranks)))}}})"
        self.axes = self.tensors = 0

    def axis(self, extent, kind="i"):
        self.axes += 1
        return f"{kind}S{self.axes}{{{extent}}}"

    def tensor(self, extents, dtype="__bfloat", shard=None, replicated=False, summed=None):
        """Declares a tensor and returns its name and axes. `shard` is the dimension that is divided over ranks; extents of
        'b' are broadcast."""
        name = f"T{self.tensors}"
        self.tensors += 1
        logical = [self.axis(1, "b") if it == "b" else self.axis(it) for it in extents]
        if summed is not None:
            logical[summed] = "r" + logical[summed][1:]
        leaf = list(logical)
        if shard is not None:
            device, rest = self.axis(self.ranks).replace("iS", "ideviceIdx.x"), self.axis(extents[shard] // self.ranks)
            leaf[shard : shard + 1] = [device, rest]
            split = f"outer_split({logical[shard]}, {self.ranks}) -> ({device}, {rest})"
            self.domains.append(f"  {name}: logical({', '.join(logical)}), {split}")
        mesh = f" {self.mesh}" if replicated or shard is not None else ""
        self.declared.append(f"%tensor {name}_g_{dtype}[{', '.join(leaf)}]{mesh}")
        return name, logical

    def do(self, text, *shape, **more):
        """Adds a statement; its result is a new tensor, `@` in the text."""
        name, _ = self.tensor(*shape, **more)
        self.body.append(text.replace("@", name))
        return name

    def text(self, inputs, outputs):
        lines = [*self.declared, f"%HostIrContainer {{ ({', '.join(inputs)}) -> ({', '.join(outputs)}) :"]
        lines += [f"  {it}" for it in self.body] + ["} // %HostIrContainer"]
        return "\n".join([*lines, "", "Domains:", *self.domains] if self.domains else lines) + "\n"


def residual_and_norm(it, rows, h, parts, residual, factor):
    """Returns the sum with the residual, and its norm."""
    total = it.do(f"@ = {parts} + {residual};", [rows, h], replicated=True)
    wide = it.do(f"@ = __bfloat2float({total});", [rows, h], dtype="float")
    square = it.do(f"@ = {wide} * {wide};", [rows, h], dtype="float")
    sums = it.do(
        f"@ = reduction( {square}, op = add, initial value = float(0), allreduce = false )", [rows, h], dtype="float", summed=1
    )
    column = it.do(f"@ = broadcast( {sums}, flags = {{false, true}} )", [rows, "b"], dtype="float")
    mean = it.do(f"@ = {column} / double({h});", [rows, "b"], dtype="float")
    more = it.do(f"@ = {mean} + double({EPSILON});", [rows, "b"], dtype="float")
    inverse = it.do(f"@ = rsqrtf({more});", [rows, "b"], dtype="float")
    scaled = it.do(f"@ = {wide} * {inverse};", [rows, h], dtype="float")
    narrow = it.do(f"@ = __float2bfloat({scaled});", [rows, h])
    return total, it.do(f"@ = {narrow} * {factor};", [rows, h], replicated=True)


def wide_factor(it, h, factor):
    return it.do(f"@ = broadcast( {factor}, flags = {{true, false}} )", ["b", h])


def allreduce(ranks, rows, h, calls, epilogue):
    """The first input has a part for each rank. With `epilogue`, a call reduces the norm of the call before, and its residual
    is the sum of the call before; else all calls reduce the first input."""
    it = Text(ranks)
    name, logical = it.tensor([ranks, rows, h])
    it.declared[-1] = (
        f"%tensor {name}_g___bfloat[{logical[0].replace('iS', 'ideviceIdx.x')}, {logical[1]}, {logical[2]}] {it.mesh}"
    )
    team, inputs = " ".join(map(str, range(ranks))), [name]
    if epilogue:
        residual, factor = (it.tensor(shape, replicated=True)[0] for shape in ([rows, h], [h]))
        inputs += [residual, factor]
        factor = wide_factor(it, h, factor)
    source = name
    for call in range(calls):
        if epilogue or call == 0:
            parts, _ = it.tensor([rows, h], replicated=True)
            it.body.append(f"{parts} = ALLOCATE(mem_type=global, zero_init=false)")
        it.body += [
            f"Communication {call} (type=Allreduce, team=({team}), red_op=SUM, input={source}, output={parts}, backend=NCCL)",
            f"Wait(Communication {call})",
        ]
        outputs = [parts]
        if epilogue:
            residual, source = outputs = residual_and_norm(it, rows, h, parts, residual, factor)
    return it.text(inputs, outputs)


def layers(ranks, rows, h, heads, key_heads, hidden, cache, count):
    it = Text(ranks)
    group, blocks = heads // key_heads, hidden // EXTENT
    scale, sequences, positions = EXTENT**-0.5, (rows if cache else 1), (cache or rows)
    residual, normed = (it.tensor([rows, h], replicated=True)[0] for _ in range(2))
    factors = [it.tensor([h], replicated=True)[0] for _ in range(2)]
    qkv = it.tensor([key_heads * (group + 2) * EXTENT, h], shard=0)[0]
    out = it.tensor([h, heads * EXTENT], shard=1)[0]
    gates = it.tensor([2 * hidden, h], shard=0)[0]
    down = it.tensor([h, hidden], shard=1)[0]
    caches = [it.tensor([sequences, key_heads, positions, EXTENT], shard=1) for _ in range(2)]
    inputs = [residual, normed, *factors, qkv, out, gates, down, *(name for name, _ in caches)]
    factors = [wide_factor(it, h, factor) for factor in factors]
    for _ in range(count):
        projected = it.do(f"@ = linear({normed}, {qkv})", [rows, key_heads * (group + 2) * EXTENT], shard=1)
        name, axes = it.tensor([rows, key_heads, group + 2, EXTENT], shard=1)
        it.body.append(f"{name} = reshape( {projected} )")
        spans = f"{{0, {rows}, 1}}, {{0, {key_heads}, 1}}, {{0, {group}, 1}}, {{0, {EXTENT}, 1}}"
        queries = it.do(f"@ = slice( {name}, {{ {spans} }} )", [rows, key_heads, group, EXTENT], shard=1)
        for at, (stored, stored_axes) in enumerate(caches):
            new = it.do(f"@ = select( {name}, axis = {axes[2]}, index = {group + at} )", [rows, key_heads, EXTENT], shard=1)
            if cache:
                place = it.do(
                    f"@ = HirAliasSelect( {stored}, axis = {stored_axes[2]}, index = {cache - 1} )", [rows, key_heads, EXTENT], shard=1
                )
                it.body.append(f"{place} = Set( {new} )")
            else:
                place = it.do(
                    f"@ = HirAliasSelect( {stored}, axis = {stored_axes[0]}, index = 0 )", [key_heads, rows, EXTENT], shard=0
                )
                it.body.append(f"{place} = Set.Permute( {new}, dims = {{1, 0, 2}} )")
        keys, values = (name for name, _ in caches)
        options = f"dropout_p=double(0), is_causal={'false' if cache else 'true'}, scale=double({scale})"
        if cache:
            found = it.do(f"@ = sdpa({queries}, {keys}, {values}, {options})", [rows, key_heads, group, EXTENT], shard=1)
        else:
            flat = it.do(f"@ = reshape( {queries} )", [1, rows, heads, EXTENT], shard=2)
            by_head = it.do(f"@ = Set.Permute( {flat}, dims = {{0, 2, 1, 3}} )", [1, heads, rows, EXTENT], shard=1)
            found = it.do(f"@ = sdpa({by_head}, {keys}, {values}, {options})", [1, heads, rows, EXTENT], shard=1)
            found = it.do(f"@ = Set.Permute( {found}, dims = {{0, 2, 1, 3}} )", [1, rows, heads, EXTENT], shard=2)
        attended = it.do(f"@ = reshape( {found} )", [rows, heads * EXTENT], shard=1)
        parts = it.do(f"@ = linear({attended}, {out})", [rows, h], replicated=True)
        residual, normed = residual_and_norm(it, rows, h, parts, residual, factors[0])
        projected = it.do(f"@ = linear({normed}, {gates})", [rows, 2 * hidden], shard=1)
        name, axes = it.tensor([rows, blocks, 2, EXTENT], shard=1)
        it.body.append(f"{name} = reshape( {projected} )")
        shape = [rows, blocks, EXTENT]
        gate, gated = (
            it.do(
                f"@ = __bfloat2float({it.do(f'@ = select( {name}, axis = {axes[2]}, index = {at} )', shape, shard=1)});",
                shape,
                dtype="float",
                shard=1,
            )
            for at in (0, 1)
        )
        product = it.do(f"@ = {it.do(f'@ = silu({gate});', shape, dtype='float', shard=1)} * {gated};", shape, dtype="float", shard=1)
        inner = it.do(f"@ = __float2bfloat({product});", shape, shard=1)
        inner = it.do(f"@ = reshape( {inner} )", [rows, hidden], shard=1)
        parts = it.do(f"@ = linear({inner}, {down})", [rows, h], replicated=True)
        residual, normed = residual_and_norm(it, rows, h, parts, residual, factors[1])
    return it.text(inputs, [residual, normed])


def program(kind, *numbers):
    """Returns the text of a program."""
    if kind == "layers":
        return layers(*numbers)
    return allreduce(*numbers, epilogue=kind == "epilogue")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("epilogue", "allreduce", "layers"):
        sys.exit(__doc__)
    print(program(sys.argv[1], *map(int, sys.argv[2:])), end="")
