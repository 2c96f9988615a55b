"""Converts the parts of a tensor instead of the whole one: before ``cat``, and after ``slice`` and ``split``.

The kernel that computes a part, or computes with one, then converts it, and nothing writes the whole tensor in the wider type.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Iterator, Sequence

from ._graph import Node, Ref, TensorType, readers_of

CAT, ITEM = "aten.cat.default", "_operator.getitem"
CONVERSIONS = ("aten._to_copy.default", "prims.convert_element_type.default")
PARTS = ("aten.slice.Tensor", "aten.split.Tensor", "aten.split_with_sizes.default")


def parts_converted(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Replaces conversions of tensors that are concatenated before, or of which only parts are read."""
    by_name = {node.name: node for node in nodes}
    readers = readers_of(nodes)
    return tuple(it for node in nodes for it in _replaced(node, by_name, readers))


def _replaced(node: Node, by_name: dict[str, Node], readers: dict[str, list[Node]]) -> Iterator[Node]:
    """The nodes that stand for a node."""
    if _is_conversion(node):
        cat = by_name[node.args[0].name]
        if _is_whole_in(cat, node, readers):
            parts = tuple(Ref(f"{node.name}.{number}") for number in range(len(cat.args[0])))
            for part, it in zip(parts, cat.args[0]):
                result = TensorType(by_name[it.name].result.shape, node.result.dtype)
                yield replace(node, name=part.name, args=(it,), result=result)
            yield replace(cat, name=node.name, args=(parts, *cat.args[1:]), result=node.result)
            return
        if _has_parts_only(node, readers):
            return
    if node.target == CAT and any(_is_conversion(it) and _is_whole_in(node, it, readers) for it in readers[node.name]):
        return
    source = _converted_source(node, by_name, readers)
    if source is None:
        yield node
    elif node.target == ITEM:
        # The part of a split.
        yield replace(node, name=f"{node.name}.part", result=TensorType(node.result.shape, _source_dtype(source, by_name)))
        yield replace(source, name=node.name, args=(Ref(f"{node.name}.part"),), result=node.result)
    elif isinstance(node.result, tuple):
        narrow = _source_dtype(source, by_name)
        results = tuple(TensorType(it.shape, narrow) for it in node.result)
        yield replace(node, args=(source.args[0], *node.args[1:]), result=results)
    else:
        result = TensorType(node.result.shape, _source_dtype(source, by_name))
        yield replace(node, name=f"{node.name}.part", args=(source.args[0], *node.args[1:]), result=result)
        yield replace(source, name=node.name, args=(Ref(f"{node.name}.part"),), result=node.result)


def _is_conversion(node: Node) -> bool:
    """Whether a node converts a tensor to another type. Other arguments have no effect on what it computes."""
    return node.target in CONVERSIONS and isinstance(node.args[0], Ref)


def _is_whole_in(cat: Node, conversion: Node, readers: dict[str, list[Node]]) -> bool:
    """Whether a conversion is all that reads a concatenation."""
    is_of_tensors = cat.target == CAT and all(isinstance(it, Ref) for it in cat.args[0])
    return is_of_tensors and readers[cat.name] == [conversion]


def _has_parts_only(node: Node, readers: dict[str, list[Node]]) -> bool:
    """Whether all that reads a conversion takes parts of it."""
    return bool(readers[node.name]) and all(it.target in PARTS and it.args[0] == Ref(node.name) for it in readers[node.name])


def _converted_source(node: Node, by_name: dict[str, Node], readers: dict[str, list[Node]]) -> Node | None:
    """The conversion of which a node is a part, if all that reads it takes parts."""
    if node.target != ITEM and node.target not in PARTS or not isinstance(node.args[0], Ref):
        return None
    source = by_name[node.args[0].name]
    if node.target == ITEM:
        return _converted_source(source, by_name, readers) if source.target in PARTS else None
    if not _is_conversion(source) or not _has_parts_only(source, readers):
        return None
    # What it converts is not a concatenation that takes its place.
    return None if _is_whole_in(by_name[source.args[0].name], source, readers) else source


def _source_dtype(conversion: Node, by_name: dict[str, Node]) -> Any:
    return by_name[conversion.args[0].name].result.dtype
