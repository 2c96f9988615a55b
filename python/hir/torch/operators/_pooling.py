"""Windows: pooling, and the gradients of pooling and of convolutions, as sums over the places of a window."""

from __future__ import annotations

import math
from itertools import product
from typing import Any, Iterator, Sequence

from .._builder import Value
from .._numbers import wide_type
from ._elementwise import apply, choose, compare
from ._indexing import scattered
from ._products import check_convolution
from ._reductions import along
from ._registry import Call, operator
from ._shape import padded


def each(values: Any, count: int, default: Any = None) -> tuple[int, ...]:
    """An argument for each dimension of a window: one number may stand for all, and none for the default."""
    given = values if isinstance(values, tuple) else (values,)
    return tuple(given if len(given) == count else given * count if given else default)


def spread(call: Call, x: Value, dim: int, start: int, stride: int, extent: int) -> Value:
    """Puts the elements along an axis at ``start``, ``start + stride`` and so on of an axis of another extent, with zeros between them."""
    if stride > 1:
        rows = padded(call, call.to.insert_axes(x, [dim + 1]), dim + 1, 0, stride - 1)
        x = call.to.reshape(rows, (*x.shape[:dim], x.shape[dim] * stride, *x.shape[dim + 1 :]))
    return padded(call, x, dim, start, extent - start - x.shape[dim])


def dimensions(call: Call, ndim: int) -> int:
    """The number of dimensions of a window."""
    return ndim - 2 if "convolution" in call.node.target else 3 if "3d" in call.node.target else 2


class Windows:
    """The windows of a pooling, over the last dimensions of a tensor."""

    def __init__(
        self, call: Call, shape: Sequence[int], out: Sequence[int], kernel: Any, stride: Any, padding: Any, dilation: Any = 1
    ) -> None:
        #: The number of dimensions of a window.
        self.count = dimensions(call, len(shape))
        self.first, self._call = len(shape) - self.count, call
        self.inner, self.out = tuple(shape[self.first :]), tuple(out[self.first :])
        self.kernel = each(kernel, self.count)
        self.stride = each(stride, self.count, self.kernel)
        self.padding, self.dilation = each(padding, self.count), each(dilation, self.count)

    def padded(self, x: Value, fill: float) -> Value:
        for d, extent in enumerate(self.inner):
            # The last window may end behind the padding.
            end = (self.out[d] - 1) * self.stride[d] + (self.kernel[d] - 1) * self.dilation[d] + 1
            x = padded(self._call, x, self.first + d, self.padding[d], end - self.padding[d] - extent, fill)
        return x

    def places(self) -> Iterator[tuple[int, ...]]:
        """The places of a window: where each first one is in the padded tensor."""
        for place in product(*(range(it) for it in self.kernel)):
            yield tuple(at * self.dilation[d] for d, at in enumerate(place))

    def part(self, x: Value, place: Sequence[int]) -> Value:
        """The elements of all windows at a place."""
        for d, start in enumerate(place):
            x = self._call.to.slice(x, self.first + d, start, start + (self.out[d] - 1) * self.stride[d] + 1, self.stride[d])
        return x

    def spread(self, x: Value, place: Sequence[int]) -> Value:
        """Elements at a place of all windows, in the tensor without padding."""
        for d, start in enumerate(place):
            x = spread(self._call, x, self.first + d, start - self.padding[d], self.stride[d], self.inner[d])
        return x

    def sizes(self, padding_counts: bool, dtype: str) -> Value:
        """The number of elements in each window."""
        total = self._call.to.full((), 1, dtype)
        for d, extent in enumerate(self.inner):
            sizes = []
            for at in range(self.out[d]):
                start = at * self.stride[d] - self.padding[d]
                end = min(start + self.kernel[d], extent + self.padding[d])
                sizes.append(float(end - start if padding_counts else min(end, extent) - max(start, 0)))
            own = self._call.to.constant(tuple(sizes), [self.out[d]], dtype)
            total = apply(self._call, "*", [total, self._call.to.insert_axes(own, range(1, self.count - d))], dtype)
        return total


@operator(
    "aten.max_pool2d_with_indices.default",
    "aten.max_pool3d_with_indices.default",
    counterpart="`where` of the slices of each place",
)
def max_pool(
    call: Call, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Value, Value]:
    to, windows = call.to, Windows(call, x.shape, call.types[0].shape, kernel, stride, padding, dilation)
    whole = windows.padded(x, float("-inf"))
    best: Value | None = None
    index: Value | None = None
    for place in windows.places():
        part, position = windows.part(whole, place), to.full((), 0, "int64")
        for d, start in enumerate(place):
            own = along(call, d, windows.count, windows.out[d], start - windows.padding[d], windows.stride[d])
            # A window without a number has the index of its first element.
            own = apply(call, "max", [own, 0], "int64")
            position = apply(call, "+", [apply(call, "*", [position, windows.inner[d]], "int64"), own], "int64")
        position = to.expand(to.with_ndim(position, x.ndim), part.shape)
        if best is None or index is None:
            best, index = part, position
            continue
        is_nan = to.elementwise("!=", [part, part], "bool")
        better = to.elementwise("||", [compare(call, ">", [part, best], x.dtype), is_nan], "bool")
        best, index = choose(call, better, part, best, x.dtype), choose(call, better, position, index, "int64")
    assert best is not None and index is not None
    return best, index


@operator(
    "aten.max_pool2d_with_indices_backward.default",
    "aten.max_pool3d_with_indices_backward.default",
    counterpart="`scatter` with `accumulate=add`",
)
def max_pool_backward(
    call: Call, grad: Value, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, index: Value
) -> Value:
    first = x.ndim - dimensions(call, x.ndim)
    rows = math.prod(x.shape[:first])
    grad, index = (call.to.reshape(it, (rows, math.prod(it.shape[first:]))) for it in (grad, index))
    zeros = call.to.full((rows, math.prod(x.shape[first:])), 0, x.dtype)
    return call.to.reshape(scattered(call, zeros, 1, index, grad, True), x.shape)


@operator("aten.avg_pool2d.default", "aten.avg_pool3d.default", counterpart="the sum of the slices of each place, and `/`")
def avg_pool(
    call: Call,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    padding_counts: bool = True,
    divisor: int | None = None,
) -> Value:
    wide = wide_type(x.dtype)
    windows = Windows(call, x.shape, call.shape, kernel, stride, padding)
    whole = windows.padded(call.to.convert(x, wide), 0)
    total = call.to.full((), 0, wide)
    for place in windows.places():
        total = apply(call, "+", [total, windows.part(whole, place)], wide)
    return call.to.convert(apply(call, "/", [total, divisor or windows.sizes(padding_counts, wide)], wide), x.dtype)


@operator(
    "aten.avg_pool2d_backward.default",
    "aten.avg_pool3d_backward.default",
    counterpart="`/`, then the sum of the places, with `cat`",
)
def avg_pool_backward(
    call: Call,
    grad: Value,
    x: Value,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    padding_counts: bool,
    divisor: int | None,
) -> Value:
    wide = wide_type(x.dtype)
    windows = Windows(call, x.shape, grad.shape, kernel, stride, padding)
    share = apply(call, "/", [grad, divisor or windows.sizes(padding_counts, wide)], wide)
    total = call.to.full((), 0, wide)
    for place in windows.places():
        total = apply(call, "+", [total, windows.spread(share, place)], wide)
    return call.to.convert(total, x.dtype)


def adaptive(extent: int, count: int) -> list[tuple[int, int]]:
    """The windows of an adaptive pooling along an axis."""
    return [(at * extent // count, -(-(at + 1) * extent // count)) for at in range(count)]


@operator("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default", counterpart="means of slices, and `cat`")
def adaptive_avg_pool(call: Call, x: Value, sizes: tuple[int, ...]) -> Value:
    wide = wide_type(x.dtype)
    result = call.to.convert(x, wide)
    for dim, size in enumerate(sizes, x.ndim - len(sizes)):
        means = []
        for start, end in adaptive(x.shape[dim], size):
            total = call.to.sum(call.to.slice(result, dim, start, end), [dim], True)
            means.append(apply(call, "/", [total, float(end - start)], wide))
        result = call.to.cat(means, dim)
    return call.to.convert(result, x.dtype)


@operator(
    "aten._adaptive_avg_pool2d_backward.default",
    "aten._adaptive_avg_pool3d_backward.default",
    counterpart="`expand`, and `cat` with `full`",
)
def adaptive_avg_pool_backward(call: Call, grad: Value, x: Value) -> Value:
    wide = wide_type(x.dtype)
    result = call.to.convert(grad, wide)
    for dim in range(x.ndim - dimensions(call, x.ndim), x.ndim):
        total = call.to.full((), 0, wide)
        for at, (start, end) in enumerate(adaptive(x.shape[dim], grad.shape[dim])):
            share = apply(call, "/", [call.to.slice(result, dim, at, at + 1), float(end - start)], wide)
            shape = (*share.shape[:dim], end - start, *share.shape[dim + 1 :])
            part = padded(call, call.to.expand(share, shape), dim, start, x.shape[dim] - end)
            total = apply(call, "+", [total, part], wide)
        result = total
    return call.to.convert(result, x.dtype)


@operator("aten.convolution_backward.default", counterpart="`matmul` for each place of the kernel, and `reduction`")
def convolution_backward(
    call: Call,
    grad: Value,
    x: Value,
    weight: Value,
    bias_sizes: Any,
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
    wanted: tuple[bool, bool, bool],
) -> tuple[Value | None, Value | None, Value | None]:
    check_convolution(call, x, weight, transposed)
    to, extents = call.to, weight.shape[2:]
    windows = Windows(call, x.shape, grad.shape, extents, strides, padding, dilation)
    batch, channels, results = x.shape[0], x.shape[1] // groups, weight.shape[0] // groups
    size = math.prod(grad.shape[2:])
    rows = to.reshape(grad, (batch, groups, results, size))
    whole = windows.padded(x, 0)
    of_x = to.full(x.shape, 0, x.dtype)
    of_weight = []
    for at, place in zip(product(*(range(it) for it in extents)), windows.places()):
        if wanted[0]:
            factors = weight
            for index in at:
                factors = to.select(factors, 2, index)
            factors = to.permute(to.reshape(factors, (1, groups, results, channels)), [0, 1, 3, 2])
            part = to.reshape(to.matmul(factors, rows), (batch, groups * channels, *grad.shape[2:]))
            of_x = apply(call, "+", [of_x, windows.spread(part, place)], x.dtype)
        if wanted[1]:
            columns = to.permute(to.reshape(windows.part(whole, place), (batch, groups, channels, size)), [0, 1, 3, 2])
            summed = to.sum(to.matmul(rows, columns), [0])
            of_weight.append(to.reshape(summed, (groups * results, channels, 1)))
    return (
        of_x if wanted[0] else None,
        to.reshape(to.cat(of_weight, 2), weight.shape) if wanted[1] else None,
        to.sum(grad, [0, *range(2, grad.ndim)]) if wanted[2] else None,
    )
