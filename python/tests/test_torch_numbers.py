"""Operators on numbers that are easy to get wrong: extremes of each type, zeros of both signs, infinities and NaN. PyTorch is the reference."""

import numpy as np
import pytest

import hir.torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn.functional as F  # noqa: E402

inf, nan = float("inf"), float("nan")
HALVES = (torch.bfloat16, torch.float16)
FLOATS = (torch.float64, torch.float32, *HALVES)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
TYPES = (*FLOATS, *INTEGERS, torch.bool)
each_type = pytest.mark.parametrize("dtype", TYPES, ids=str)


def values(dtype):
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        numbers = [0.0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, 3, -3, 7, -7.5, 0.1, -0.3, 1000.25, inf, -inf, nan]
        return torch.tensor([*numbers, torch.finfo(dtype).max, torch.finfo(dtype).min], dtype=torch.float64).to(dtype)
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return torch.tensor([0, 1, 2, 3, 7, 100, high, high - 1, low, low + 1, *([-1, -2, -3, -100] if low else [])], dtype=dtype)


def pairs(first, second):
    """Each value of one type with each of another one, without those for which division of integers fails."""
    x, y = values(first), values(second)
    x, y = x.repeat_interleave(len(y)), y.repeat(len(x))
    if not first.is_floating_point and not second.is_floating_point:
        low = x == (torch.iinfo(first).min if first != torch.bool else 0)
        counts = (y != 0) & ~((y == -1) & low)
        x, y = x[counts], y[counts]
    return x, y


def as_numpy(tensor):
    return (tensor.double() if tensor.dtype in HALVES else tensor).numpy()


def check(functions, *inputs, ulps=0):
    """Compares those functions for which PyTorch has a result."""
    wanted = {}
    for name, function in functions.items():
        try:
            wanted[name] = function(*inputs)
        except (RuntimeError, TypeError):
            pass
    torch._dynamo.reset()
    program = hir.torch.capture(lambda *args: tuple(functions[name](*args) for name in wanted), inputs)
    assert not program.opaque
    for (name, want), got in zip(wanted.items(), program.run()[0][-len(wanted) :], strict=True):
        got, bound = np.asarray(got), ulps * torch.finfo(want.dtype).eps if want.is_floating_point() else 0
        # Without ml_dtypes, arrays of bfloat16 are of float32.
        assert want.dtype == torch.bfloat16 or str(got.dtype) == str(want.dtype).removeprefix("torch."), name
        expected, got = as_numpy(want), got.astype(np.float64) if want.dtype in HALVES else got
        assert got.shape == expected.shape, name
        with np.errstate(invalid="ignore"):
            same = (got == expected) | (got != got) & (expected != expected)
            same |= np.isfinite(got) & np.isfinite(expected) & (abs(got - expected) <= bound * abs(expected)) if bound else False
        different = [(at, got[at], expected[at]) for at in zip(*np.where(np.atleast_1d(~same)))] if not np.all(same) else []
        assert not different, f"{name}: places, hir, PyTorch: {different[:4]}"


COMPARISONS = {it: getattr(torch, it) for it in ("eq", "ne", "lt", "le", "gt", "ge")}
DIVISIONS = {
    "floor_divide": lambda x, y: x // y,
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "true": lambda x, y: x / y,
}
BINARY = {
    **COMPARISONS,
    **DIVISIONS,
    **{it: getattr(torch, it) for it in ("mul", "maximum", "minimum", "logical_and", "logical_or", "bitwise_and", "bitwise_xor")},
    "clamp": lambda x, y: torch.clamp(x, y, y.flip(0)),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 2),
}


@each_type
def test_one_operand(dtype):
    names = ("abs", "neg", "sign", "sgn", "ceil", "floor", "trunc", "round", "frac", "isnan", "isinf", "bitwise_not", "logical_not")
    functions = {it: getattr(torch, it) for it in names}
    functions |= {f"x ** {it}": lambda x, it=it: x**it for it in (0, 1, 2, 0.5, -0.5)}
    if dtype == torch.float16:
        # On the CPU, this power of -inf is inf; on GPUs it is NaN, as for all other types.
        del functions["x ** 0.5"], functions["x ** -0.5"]
    functions |= {f"to {it}": lambda x, it=it: x.to(it) for it in (*FLOATS, torch.bool)}
    check(functions, values(dtype), ulps=2)


@each_type
def test_two_operands(dtype):
    check(BINARY, *pairs(dtype, dtype))


MIXED = [(a, b) for i, a in enumerate(TYPES) for b in (TYPES[i - 1], TYPES[i - 4])]


@pytest.mark.parametrize("first, second", MIXED, ids=str)
def test_two_types(first, second):
    x, y = pairs(first, second)
    names = ("eq", "lt", "ge", "where", "maximum", "floor_divide")
    check({it: BINARY[it] for it in names}, x, y)
    check(COMPARISONS, x, y[-1])
    check(COMPARISONS, x[1], y[-1])


@each_type
def test_numbers_beside_a_tensor(dtype):
    functions = {}
    for number in (0.1, 0, 3, -3, 2.5, 300, -129, 1e-8, 70000.0, inf, nan, True, 2**31):
        functions |= {f"{name} {number}": lambda x, it=it, number=number: it(x, number) for name, it in (COMPARISONS | DIVISIONS).items()}
        functions |= {
            f"low {number}": lambda x, number=number: x.clamp(number, 2),
            f"high {number}": lambda x, number=number: x.clamp(max=number),
            f"{number} //": lambda x, number=number: number // x,
            f"fill {number}": lambda x, number=number: x.masked_fill(x > 0, number),
            f"full {number}": lambda x, number=number: torch.full_like(x, number),
            f"new_full {number}": lambda x, number=number: x.new_full((2,), number),
            f"threshold {number}": lambda x, number=number: F.threshold(x, number, 1),
        }
    x = values(dtype)
    # Division of integers by 0, and what overflows in 64 bits.
    check(functions, x[x != 0] if dtype in INTEGERS else x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_numbers_that_are_rounded_to_the_type(dtype):
    functions = {f"x ** {it}": lambda x, it=it: x**it for it in (0.1, -1.7, 3.3)} | {"0.1 ** x": lambda x: 0.1**x}
    check(functions, torch.linspace(-5, 20, 60).to(dtype), ulps=4 if dtype in (torch.float32, torch.float64) else 0)
    check({"%": lambda x: x % 0.1, "fmod": lambda x: torch.fmod(x, -0.3)}, torch.linspace(-5, 20, 60).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_places_of_extremes(dtype):
    x = torch.tensor([[1, nan, 3], [inf, -inf, nan], [2, 2, 1], [-inf, -inf, -inf]], dtype=dtype)
    functions = {
        f"{name} {dim}": lambda x, it=it, dim=dim: it(x, dim)
        for dim in (0, 1)
        for name, it in {
            "argmax": torch.argmax,
            "argmin": torch.argmin,
            "max": lambda x, dim: torch.max(x, dim)[1],
            "min": lambda x, dim: torch.min(x, dim, keepdim=True)[1],
        }.items()
    }
    check(functions | {"argmax": torch.argmax, "argmin": torch.argmin}, x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_tensors_without_dimensions(dtype):
    functions = {it: lambda x, it=it: getattr(x, it)(0) for it in ("argmax", "argmin", "cumsum", "softmax", "log_softmax")}
    functions |= {f"{it} {i}": lambda x, it=it, i=i: getattr(x, it)(0)[i] for it in ("max", "min", "sort") for i in (0, 1)}
    functions |= {f"topk {i}": lambda x, i=i: x.topk(1)[i] for i in (0, 1)}
    check(functions, torch.tensor(2.5, dtype=dtype))


def test_a_row_of_attention_without_keys():
    q, k, v = (torch.randn(1, 2, n, 4, generator=torch.Generator().manual_seed(n)) for n in (3, 5, 5))
    mask = torch.tensor([[True] * 5, [False] * 5, [True, False] * 2 + [False]])
    attention = F.scaled_dot_product_attention
    for name, it in {"mask": mask, "bias": torch.zeros(3, 5).masked_fill(~mask, -inf)}.items():
        check({name: attention}, q, k, v, it, ulps=16)
        gradients = lambda q, k, v, m: torch.autograd.grad(attention(q, k, v, m).cos().sum(), (q, k, v))  # noqa: E731
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        expected = gradients(*leaves, it)
        backward = hir.torch.capture(lambda *args: attention(*args).cos().sum(), (*leaves, it), direction="backward")
        for got, want in zip(backward.run()[0], expected):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-6)


def test_what_is_multiplied_with_0_is_not_read():
    bias, x = torch.tensor([nan, inf]), torch.ones(2, 2)
    check({"addmm": lambda b, x: torch.addmm(b, x, x, beta=0)}, bias, x)
    check({"baddbmm": lambda b, x: torch.baddbmm(b, x[None], x[None], beta=0)}, bias, x)


def test_an_index_that_is_a_tensor_without_dimensions():
    x = torch.arange(6.0).reshape(2, 3)
    check({"row": lambda x, i: x[i] * 2, "column": lambda x, i: x[:, i] * 2}, x, torch.tensor(-1))


@each_type
def test_results_of_a_type(dtype):
    functions = {
        "arange": lambda x: torch.arange(0, 3, 0.5, dtype=x.dtype),
        "any": lambda x: x.any(0),
        "all": lambda x: x.all(),
        "index_fill": lambda x: x.index_fill(0, torch.tensor([0]), 3.9),
        "scatter": lambda x: x.scatter(0, torch.tensor([1]), 7.9),
    }
    check(functions, values(dtype))


def test_empty_vectors_are_concatenated():
    check({"cat": lambda x: torch.cat([x, x])}, torch.zeros(0))
    check({"cat": lambda x: torch.cat([torch.zeros(0), x], 1)}, torch.ones(2, 3))
