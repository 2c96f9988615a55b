"""Writes the tensors of the sample training-step.hir: its inputs, and what PyTorch computes from them.

The sample is one training step of a transformer block: pre-norm RMSNorm, grouped-query attention with RoPE and a causal mask, and SwiGLU; the
loss is the cross entropy over a sharded vocabulary. The program has the forward pass, the backward pass, derived by hand, and Adam. The mesh is
data x tensor: deviceIdx.y splits the sequences of the batch, and the states of Adam besides (ZeRO); deviceIdx.x splits weights, and outside of
the products the rows of each sequence (sequence parallelism). Its first lines give names to inputs and outputs.

`python training-step.py` needs torch and safetensors.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file

BATCH, ROWS, WIDTH, HEADS, SHARED, HEAD, HIDDEN, WORDS = 4, 8, 8, 8, 4, 4, 16, 16
EPS, RATE, BETA1, BETA2, ADAM_EPS, STEP = 1e-5, 0.01, 0.9, 0.95, 1e-8, 3
#: The shapes of the weights.
WEIGHTS = {
    "norm1": [WIDTH],
    "query": [HEADS * HEAD, WIDTH],
    "key": [SHARED * HEAD, WIDTH],
    "value": [SHARED * HEAD, WIDTH],
    "attention_out": [WIDTH, HEADS * HEAD],
    "norm2": [WIDTH],
    "gate": [HIDDEN, WIDTH],
    "up": [HIDDEN, WIDTH],
    "down": [WIDTH, HIDDEN],
    "norm3": [WIDTH],
    "head": [WORDS, WIDTH],
}


def values():
    """Returns the inputs, and what PyTorch computes from them."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)

    def single(it):
        return it.float().double()

    given = {"x": single(torch.randn(BATCH, ROWS, WIDTH)), "labels": torch.randint(WORDS, (BATCH, ROWS))}
    angles = torch.arange(ROWS)[:, None] * 10000.0 ** (-torch.arange(HEAD // 2) / (HEAD // 2))
    angles = torch.cat([angles, angles], -1)
    given["cos"], given["sin"] = single(angles.cos()), single(angles.sin())
    for name, shape in WEIGHTS.items():
        given[name] = single(torch.randn(shape) * 0.5 + (1 if len(shape) == 1 else 0))
        given[f"{name}.m"] = single(torch.randn(shape) * 0.1)
        given[f"{name}.v"] = single(torch.rand(shape) * 0.1)
    w = {name: torch.nn.Parameter(given[name].clone()) for name in WEIGHTS}
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

given, wanted = values()
tensors = {name: it.float() if it.is_floating_point() else it for name, it in (given | wanted).items()}
save_file({name: it.contiguous() for name, it in tensors.items()}, Path(__file__).with_suffix(".safetensors"))
