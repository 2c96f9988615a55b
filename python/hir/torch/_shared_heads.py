"""Heads of keys and values that several heads of a query share: attentions read them as they are, without a copy for each head of the query."""

from __future__ import annotations

from math import prod
from typing import Any, Callable, Sequence

from ._order import is_in_place

#: A part of an axis: the number of an axis of the tensor from which a view is made, None for copies of elements, and the extent.
Part = tuple[int | None, int]
#: The parts of each axis, the slowest first. Those of extent 1 are left out.
Axes = list[list[Part]]


def share_heads(module: Any) -> None:
    """Lets the attentions of a graph of Dynamo share heads (``enable_gqa``) whose keys and values a model repeats, by ``repeat_interleave`` or by
    ``expand`` and ``reshape``."""
    import torch

    found = [it for it in module.graph.nodes if it.target is torch.nn.functional.scaled_dot_product_attention]
    # A copy keeps what its source had before a change.
    if any(_writes(it) for it in module.graph.nodes):
        return
    if any([_shares(module, it) for it in found]):
        module.recompile()


def _writes(node: Any) -> bool:
    """Whether a node changes a tensor."""
    if node.op not in ("call_function", "call_method"):
        return False
    name = _name(node)
    return "out" in node.kwargs or name in _IN_PLACE or is_in_place(name)


def _name(node: Any) -> str:
    return str(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", ""))


def _shares(module: Any, node: Any) -> bool:
    options = dict(zip(("attn_mask", "dropout_p", "is_causal"), node.args[3:])) | node.kwargs
    if len(node.args) < 3 or options.get("attn_mask") is not None or options.get("enable_gqa"):
        return False
    query, *repeated = node.args[:3]
    heads = [found for found in map(_heads, repeated) if found is not None]
    if len(heads) != 2 or heads[0][2] != heads[1][2] or _shape(query) is None:
        return False
    bases = [(base, order, (*shape[:1], shape[1] // count, *shape[2:])) for base, order, count, shape in heads]
    if not _has_kernel(query, [(base, shape) for base, _, shape in bases], options):
        return False
    with module.graph.inserting_before(node):
        for at, (base, order, shape) in enumerate(bases, 1):
            permuted = module.graph.call_method("permute", (base, order))
            node.update_arg(at, module.graph.call_method("reshape", (permuted, shape)))
    node.update_kwarg("enable_gqa", True)
    for it in repeated:
        while not it.users and it.op in ("call_function", "call_method") and _name(it) in _STEPS:
            source = it.args[0]
            module.graph.erase_node(it)
            it = source
    return True


def _has_kernel(query: Any, others: Sequence[tuple[Any, Sequence[int]]], options: dict[str, Any]) -> bool:
    """Whether PyTorch has a kernel for shared heads, and would not compute them by matrix products."""
    import torch

    def like(node: Any, shape: Sequence[int]) -> Any:
        value = node.meta["example_value"]
        # One sequence tells as much as several.
        return torch.empty((1, *shape[1:]), dtype=value.dtype, device=value.device)

    try:
        tensors = [like(query, _shape(query) or ()), *(like(*it) for it in others)]
        named = {name: options[name] for name in ("dropout_p", "is_causal", "scale") if name in options}
        choice = torch._fused_sdp_choice(*tensors, enable_gqa=True, **named)
    except (RuntimeError, TypeError):
        return False
    return bool(choice != torch.nn.attention.SDPBackend.MATH.value)


def _heads(node: Any) -> tuple[Any, list[int], int, tuple[int, ...]] | None:
    """A tensor ``[b, h, l, k]`` as a view of another one, in which each head stands once: that one, the order of its axes, how many heads of the
    query share one of them, and the shape of the tensor. None if it repeats no heads, or other elements."""
    shape = _shape(node)
    if shape is None or len(shape) != 4:
        return None
    base, axes = _axes(node)
    repeats = [[extent for axis, extent in parts if axis is None] for parts in axes]
    heads = axes[1]
    count = prod(repeats[1])
    # Copies of a head follow each other.
    if count < 2 or any(repeats[:1] + repeats[2:]) or any(axis is None for axis, _ in heads[: -len(repeats[1])]):
        return None
    order = [axis for parts in axes for axis, _ in parts if axis is not None]
    rest = [axis for axis in range(len(_shape(base) or ())) if axis not in order]
    return base, order + rest, count, shape


def _shape(node: Any) -> tuple[int, ...] | None:
    shape = getattr(getattr(node, "meta", {}).get("example_value"), "shape", None)
    return tuple(shape) if shape is not None and all(type(it) is int for it in shape) else None


def _axes(node: Any) -> tuple[Any, Axes]:
    """The tensor from which a tensor is made by views and copies, and its axes."""
    step = _STEPS.get(_name(node)) if node.op in ("call_function", "call_method") else None
    source = node.args[0] if node.args else None
    shape = _shape(node)
    if step and shape is not None and _shape(source) is not None:
        base, axes = _axes(source)
        found = step(axes, shape, *node.args[1:], **node.kwargs)
        if found is not None:
            return base, found
    return node, [[(axis, extent)] if extent > 1 else [] for axis, extent in enumerate(shape or ())]


def _regrouped(axes: Axes, shape: Sequence[int], *_: Any, **__: Any) -> Axes | None:
    parts = [it for axis in axes for it in axis]
    found: Axes = []
    for extent in shape:
        taken: list[Part] = []
        while prod(size for _, size in taken) < extent and parts:
            taken.append(parts.pop(0))
        if prod(size for _, size in taken) != extent:
            return None
        found.append(taken)
    return None if parts else found


def _expanded(axes: Axes, shape: Sequence[int], *_: Any, **__: Any) -> Axes | None:
    new = len(shape) - len(axes)
    padded: Axes = [[] for _ in range(new)] + axes
    return [parts if parts or extent == 1 else [(None, extent)] for parts, extent in zip(padded, shape)]


def _repeated(axes: Axes, shape: Sequence[int], repeats: Any = None, dim: int | None = None, **_: Any) -> Axes | None:
    if type(repeats) is not int or dim is None:
        return None
    at = dim % len(shape)
    return [[*parts, (None, repeats)] if number == at and repeats > 1 else parts for number, parts in enumerate(axes)]


def _swapped(axes: Axes, shape: Sequence[int], *dims: Any, **named: Any) -> Axes | None:
    if named or [type(it) for it in dims] != [int, int]:
        return None
    (a, b), found = dims, list(axes)
    found[a], found[b] = axes[b], axes[a]
    return found


def _permuted(axes: Axes, shape: Sequence[int], *dims: Any, **_: Any) -> Axes | None:
    order = dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims
    return [axes[it] for it in order] if len(order) == len(axes) else None


def _with_axes(axes: Axes, shape: Sequence[int], index: Any, **_: Any) -> Axes | None:
    """Whole axes, and new ones of extent 1."""
    items = index if isinstance(index, tuple) else (index,)
    is_whole = all(it is None or it is Ellipsis or it == slice(None) for it in items)
    return _regrouped(axes, shape) if is_whole else None


#: Functions of the module `operator` that change their first operand.
_IN_PLACE = ("setitem", "delitem", "iadd", "isub", "imul", "imatmul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor")

_STEPS: dict[str, Callable[..., Axes | None]] = {
    **dict.fromkeys(("reshape", "view", "flatten", "unflatten", "unsqueeze", "squeeze", "contiguous", "clone"), _regrouped),
    "expand": _expanded,
    "repeat_interleave": _repeated,
    **dict.fromkeys(("transpose", "swapaxes"), _swapped),
    "permute": _permuted,
    "getitem": _with_axes,
}
