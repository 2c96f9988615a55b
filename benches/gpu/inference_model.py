"""What the programs of inference_programs.py compute, in PyTorch, and their inputs."""
import json
import os

from inference_programs import EPSILON, EXTENT

# (h, heads, heads of keys, hidden elements of the MLP): those of Llama 3 8B and 70B.
MODELS = {4096: (32, 8, 14336), 8192: (64, 8, 28672)}


class Case:
    """A measurement: `epilogue:ROWS:H:CALLS` or `layers:ROWS:H:CACHE:LAYERS`."""

    def __init__(self, text, models=None):
        self.text = text
        self.kind, *numbers = text.split(":")
        self.rows, self.h, *rest = map(int, numbers)
        if self.kind == "epilogue":
            (self.calls,) = rest
        else:
            self.cache, self.calls = rest
            self.heads, self.key_heads, self.hidden = (models or MODELS)[self.h]
            self.group = self.heads // self.key_heads

    def arguments(self, ranks, alone=False):
        """Returns the arguments of inference_programs.program."""
        if self.kind == "epilogue":
            return ["allreduce" if alone else "epilogue", ranks, self.rows, self.h, self.calls]
        return ["layers", ranks, self.rows, self.h, self.heads, self.key_heads, self.hidden, self.cache, self.calls]

    def outputs(self, alone=False):
        return ["sum"] if alone else ["residual", "normed"]

    def shapes(self, ranks):
        """Returns the inputs in the order of the program: name, whole shape, dimension that is divided over ranks, standard
        deviation. Keys and values of the cache are larger than new ones, so that attention selects a few of them."""
        if self.kind == "epilogue":
            shape = [self.rows, self.h]
            return [("parts", [ranks, *shape], 0, 1.0), ("residual", shape, None, 1.0), ("factor", [self.h], None, 1.0)]
        sequences, positions = (self.rows, self.cache) if self.cache else (1, self.rows)
        stored = [sequences, self.key_heads, positions, EXTENT]
        projected, inner = self.key_heads * (self.group + 2) * EXTENT, self.heads * EXTENT
        return [
            ("residual", [self.rows, self.h], None, 1.0),
            ("normed", [self.rows, self.h], None, 1.0),
            ("factor1", [self.h], None, 1.0),
            ("factor2", [self.h], None, 1.0),
            ("qkv", [projected, self.h], 0, self.h**-0.5),
            ("out", [self.h, inner], 1, inner**-0.5),
            ("gates", [2 * self.hidden, self.h], 0, self.h**-0.5),
            ("down", [self.h, self.hidden], 1, self.hidden**-0.5),
            ("keys", stored, 1, 3.0),
            ("values", stored, 1, 3.0),
        ]


def part(tensor, dim, rank, ranks):
    """Returns the part of a rank of a whole tensor."""
    return tensor if dim is None else tensor.chunk(ranks, dim)[rank]


def residual_and_norm(torch, parts, residual, factor):
    """Returns the sum with the residual, and its norm, as the programs compute them."""
    total = parts + residual
    wide = total.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)
    return total, scaled.to(total.dtype) * factor


def attention(torch, case, queries, keys, values, grouped=True):
    """Returns the attention of [rows, key heads, group, extent] over a cache, as [rows, heads · extent]. A decoded token has one
    row for each head; `grouped`: the heads that share keys are the rows of one."""
    attend = torch.nn.functional.scaled_dot_product_attention
    rows, key_heads, group, extent = queries.shape
    if case.cache and grouped:
        return attend(queries, keys, values).reshape(rows, -1)
    if case.cache:
        found = attend(queries.reshape(rows, key_heads * group, 1, extent), keys, values, enable_gqa=True)
        return found.reshape(rows, -1)
    by_head = queries.reshape(1, rows, key_heads * group, extent).transpose(1, 2)
    found = attend(by_head, keys, values, is_causal=True, enable_gqa=True)
    return found.transpose(1, 2).reshape(rows, -1)


def store(case, new, keys, values):
    """Writes the new keys and values, [rows, key heads, 2, extent], to the cache."""
    for at, stored in ((0, keys), (1, values)):
        if case.cache:
            stored[:, :, case.cache - 1] = new[:, :, at]
        else:
            stored[0] = new[:, :, at].transpose(0, 1)


def reference(torch, case, inputs, ranks):
    """Returns the results in float32, from whole inputs by name."""
    wide = {name: it.float() for name, it in inputs.items()}
    residual = wide["residual"]
    if case.kind == "epilogue":
        parts = wide["parts"]
        for _ in range(case.calls):
            residual, normed = residual_and_norm(torch, parts.sum(0), residual, wide["factor"])
            parts = normed.expand(ranks, *normed.shape)
        return residual, normed
    normed = wide["normed"]
    for _ in range(case.calls):
        projected = (normed @ wide["qkv"].t()).view(case.rows, case.key_heads, case.group + 2, EXTENT)
        store(case, projected[:, :, case.group :], wide["keys"], wide["values"])
        found = attention(torch, case, projected[:, :, : case.group], wide["keys"], wide["values"])
        parts = found @ wide["out"].t()
        residual, normed = residual_and_norm(torch, parts, residual, wide["factor1"])
        gates = (normed @ wide["gates"].t()).view(case.rows, -1, 2, EXTENT)
        inner = torch.nn.functional.silu(gates[:, :, 0]) * gates[:, :, 1]
        parts = inner.reshape(case.rows, -1) @ wide["down"].t()
        residual, normed = residual_and_norm(torch, parts, residual, wide["factor2"])
    return residual, normed


def write(torch, path, name, tensor):
    """Writes a bf16 tensor to a .safetensors file."""
    data = tensor.contiguous().cpu().view(torch.uint8).flatten()
    entry = {name: {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [0, data.numel()]}}
    header = json.dumps(entry).encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        begin = file.tell()
        file.truncate(begin + data.numel())
    torch.from_file(path, shared=True, size=begin + data.numel(), dtype=torch.uint8)[begin:] = data


def make_inputs(torch, places, case, ranks, device):
    """Writes the parts of all ranks to NAME.RANK.safetensors in the folder of weights or in the other one, if they are not there."""
    for it in places:
        os.makedirs(it, exist_ok=True)
    for name, shape, dim, deviation in case.shapes(ranks):
        folder = places[not is_weight(case, name)]
        if os.path.exists(os.path.join(folder, f"{name}.{ranks - 1}.safetensors")):
            continue
        whole = (torch.randn(shape, device=device) * deviation).bfloat16()
        for rank in range(ranks):
            write(torch, os.path.join(folder, f"{name}.{rank}.safetensors"), name, part(whole, dim, rank, ranks))


def folders(work, case):
    """Returns the folder of the weights of a case, and that of its other inputs."""
    return os.path.join(work, f"weights-{case.h}"), os.path.join(work, "inputs-" + case.text.replace(":", "-"))


def is_weight(case, name):
    return case.kind == "layers" and name not in ("residual", "normed", "keys", "values")
