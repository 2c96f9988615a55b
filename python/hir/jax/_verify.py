"""Compares what XLA and hir compute from one module, and finds the first operation whose results differ."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import Any, Callable, Sequence

import numpy as np

from .._diagnostic import HirError
from ._capture import Jitted, Lowered, lowered
from ._module import Module, Operation, element_type
from ._run import Element, Parts, first_difference, in_hir, in_xla

#: The passes after which hir runs the module.
PASSES = "@lower"
#: How many operations may make rounding differences large, before the search ends.
MOST_AMPLIFIED = 16


@dataclass(frozen=True)
class Difference:
    """An operation whose operands agree and whose results do not."""

    #: The line of the module, and its number among the operations of the main function, from 0.
    operation: str
    number: int
    element: Element
    #: The last operation of the smallest part that differs, where the operation alone, its results whole on each device, does not.
    through: str | None = None

    def in_module(self, whole: Sequence[Operation], first: int, part: Sequence[Operation]) -> Difference:
        """The difference in the whole module, of which this one's operations are the last part, from `first` on."""
        number = first + self.number
        last = next((at for at, it in enumerate(part) if it.text == self.through), None)
        through = None if last is None else whole[first + last].text
        return replace(self, operation=whole[number].text, number=number, through=through)

    def __str__(self) -> str:
        if self.through is None:
            return f"operation {self.number} differs, and what it reads does not: {self.operation}\n  {self.element}"
        return (
            f"the operations from number {self.number} on differ together, and none of them alone: {self.operation}\n"
            f"  to {self.through}\n  {self.element}"
        )


@dataclass(frozen=True)
class Verification:
    """The result of `verify`."""

    outputs: int
    elements: int
    #: The first output that differs, with its element.
    output: tuple[int, Element] | None
    difference: Difference | None
    #: Who agrees with XLA on one device, in words.
    agrees: str
    #: Operations whose results differ because their operands are rounded differently; from equal operands, both compute the same.
    amplified: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """The exit code: 0, 3 for a wrong result, 8 where nothing was compared."""
        return 3 if self.output else 0 if self.elements else 8

    def __str__(self) -> str:
        if self.output is None:
            if not self.elements:
                return "[UNDECIDED] the module has no elements to compare"
            lines = [f"rounding of its operands decides, and from the same operands XLA and hir compute the same: {it}" for it in self.amplified]
            found = f"[SUCCESS] XLA and hir compute the same but for rounding: elements: {self.elements}, outputs: {self.outputs}"
            return "\n".join([*lines, found])
        number, element = self.output
        lines = [f"output {number} differs: {element}"]
        lines.extend([str(self.difference)] if self.difference else [])
        return "\n".join([*lines, f"[FAILED] {self.agrees}"])


def verify(function: Jitted | Lowered | str, *args: Any, seed: int = 0, rtol: float | None = None, passes: str = PASSES) -> Verification:
    """Runs a module in XLA, on the devices of this process, and in hir, with the same inputs. Where results differ, it finds the operation.

    ``function`` is what ``jax.jit`` returns, with its arguments, or a text of StableHLO. Without arguments, inputs are random by ``seed``.
    Floats may differ by ``rtol``, relative to the element or the root mean square of its tensor; the default is the square root of the type's
    epsilon. The search makes the results of one operation after the other whole outputs. Where a difference needs the real outputs, because
    others change how XLA partitions, the smallest last part of the module that has it is named. An operation such as a comparison makes
    rounding differences large; where both compute the same from equal operands, the search goes on behind it, with the results of hir.

    Raises ``HirError`` if hir or XLA does not run the module.
    """
    text, inputs = _lowered(function, args)
    module = Module(text)
    if inputs is None:
        inputs = _random(module, seed)
    amplified: list[str] = []
    # The module that is left begins with this operation of the whole one, whose text is named.
    first, operations = 0, module.operations()
    while True:
        own = in_hir(module, inputs, passes)
        found = in_xla(module, inputs)
        elements = sum(it.size for it in own)
        differences = ((number, first_difference(parts, whole, rtol)) for number, (parts, whole) in enumerate(zip(found, own)))
        output = next(((number, element) for number, element in differences if element is not None), None)
        if output is None:
            return Verification(len(own), elements, None, None, "", tuple(amplified))
        number, element = output
        search = _Search(module, inputs, rtol, passes)
        difference = search.find(number, element)
        if difference is None or len(amplified) == MOST_AMPLIFIED or not search.is_rounding(difference):
            named = difference and difference.in_module(operations, first, module.operations())
            agrees = _judge(module, inputs, number, own[number], found[number], rtol)
            return Verification(len(own), elements, output, named, agrees, tuple(amplified))
        amplified.append(operations[first + difference.number].text)
        behind = difference.number + 1
        first += behind
        module, needed = module.behind(behind)
        inputs = [*inputs, *search.values(needed)]


class _Search:
    """The search for the operation that differs."""

    def __init__(self, module: Module, inputs: Sequence[np.ndarray], rtol: float | None, passes: str) -> None:
        self._module, self._inputs, self._rtol, self._passes = module, inputs, rtol, passes
        self._operations = module.operations()
        self._known: dict[int, Element | None] = {}

    def find(self, output: int, element: Element) -> Difference | None:
        number, _ = self._module.returned()[output]
        if number < 0:
            return None
        if self._own(number) is None:
            return self._part(output, number, element)
        while True:
            earlier = next((it for it in reversed(self._operations[number].reads) if self._own(it) is not None), None)
            if earlier is None:
                break
            number = earlier
        differs = self._own(number)
        return Difference(self._operations[number].text, number, differs) if differs else None

    def is_rounding(self, difference: Difference) -> bool:
        """Whether both compute the same in an operation, and only in it, where its operands are those of hir and differ in bits from XLA's."""
        number = difference.number
        if difference.through is not None or not any(self._rounds(it) for it in self._operations[number].reads):
            return False
        alone, needed = self._module.before(number).behind(number)
        return self._compare(alone, [*self._inputs, *self.values(needed)], None) is None

    def _rounds(self, number: int) -> bool:
        module = self._module.before(number)
        own, found = in_hir(module, self._inputs, self._passes), in_xla(module, self._inputs)
        return any((part != whole[place]).any() for parts, whole in zip(found, own) for _, place, part in parts)

    def _own(self, number: int) -> Element | None:
        """How the results of an operation differ, whole on each device."""
        if number not in self._known:
            self._known[number] = _try(lambda: self._compare(self._module.before(number), self._inputs, None))
        return self._known[number]

    def _compare(self, module: Module, inputs: Sequence[np.ndarray], output: int | None) -> Element | None:
        own, found = in_hir(module, inputs, self._passes), in_xla(module, inputs)
        for number, (parts, whole) in enumerate(zip(found, own)):
            element = first_difference(parts, whole, self._rtol) if output in (None, number) else None
            if element is not None:
                return element
        return None

    def _part(self, output: int, last: int, element: Element) -> Difference:
        """The smallest last part of the module whose output differs, with the values of hir before it."""
        first, end, at = 0, last, element
        while first < end:
            middle = (first + end + 1) // 2
            part, needed = self._module.behind(middle)
            found = _try(lambda: self._compare(part, [*self._inputs, *self.values(needed)], output))
            if found is None:
                end = middle - 1
            else:
                first, at = middle, found
        through = None if first == last else self._operations[last].text
        return Difference(self._operations[first].text, first, at, through)

    def values(self, needed: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """These results of operations, as hir computes them."""
        return in_hir(self._module.returning(needed), self._inputs, self._passes) if needed else []


def _try(compare: Callable[[], Element | None]) -> Element | None:
    """A part that one side does not run shows no difference."""
    try:
        return compare()
    except (HirError, ValueError):
        return None


def _judge(module: Module, inputs: Sequence[np.ndarray], output: int, own: np.ndarray, found: Parts, rtol: float | None) -> str:
    """Who agrees with the result of XLA on one device."""
    try:
        alone = module.unsharded() if module.devices > 1 else None
        if alone is None:
            return "XLA and hir differ; the module has no form for one device that would judge them"
        parts = in_xla(alone, inputs)[output]
    except (HirError, ValueError) as error:
        return f"XLA and hir differ; there is no result on one device that would judge them: {error}"
    if first_difference(parts, own, rtol) is None:
        return "XLA on one device agrees with hir: XLA's partitioner is wrong"
    if first_difference(found, parts[0][2], rtol) is None:
        return "XLA on one device agrees with XLA on all: hir is wrong, or XLA is in both"
    return "XLA on one device agrees with neither"


def _lowered(function: object, args: Sequence[Any]) -> tuple[str, list[np.ndarray] | None]:
    if isinstance(function, str):
        return function, [np.asarray(it) for it in args] or None
    jax = importlib.import_module("jax")
    found = lowered(function, *args)
    text = found.as_text()
    if not args:
        return text, None
    # JAX leaves out the arguments that the function does not use.
    compiled: Any = getattr(found, "compile")()
    kept = jax.tree.leaves(compiled.input_shardings, is_leaf=lambda it: it is None)
    return text, [np.asarray(it) for it, sharding in zip(jax.tree.leaves(args), kept) if sharding is not None]


def _random(module: Module, seed: int) -> list[np.ndarray]:
    chance = np.random.default_rng(seed)

    def make(shape: tuple[int, ...], name: str) -> np.ndarray:
        type = element_type(name)
        if type.kind in "iu":
            return chance.integers(0, 4, shape).astype(type)
        if type.kind == "b":
            return chance.integers(0, 2, shape).astype(type)
        if type.kind == "c":
            return (chance.standard_normal(shape) + 1j * chance.standard_normal(shape)).astype(type)
        return chance.standard_normal(shape).astype(type)

    return [make(*it) for it in module.types()]
