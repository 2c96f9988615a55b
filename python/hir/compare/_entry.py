"""What a process has recorded: tensors with their names, places and layouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Layout:
    """Where the local tensor of a DTensor is in the whole."""

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    #: The placements, as PyTorch prints them.
    text: str
    #: The reduction and the ranks whose local tensors it joins, if a placement is partial.
    partial: tuple[str, tuple[int, ...]] | None = None
    #: Why it cannot be compared.
    unknown: str | None = None


@dataclass(frozen=True)
class Key:
    """Names a tensor: the one that both programs have under this key is compared."""

    #: One of ``KINDS``.
    kind: str
    #: The name of the module or the parameter, or the key of an output.
    name: str
    #: The number of the call, of the optimizer's step, or 0.
    number: int = 0
    #: Which tensor of a call.
    index: int = 0

    def __str__(self) -> str:
        call = f", call {self.number + 1}" if self.number and self.kind == "forward" else f", step {self.number + 1}" if self.number else ""
        part = f", tensor {self.index}" if self.index else ""
        name = f"`{self.name}`" if self.name else "the model"
        return f"{KINDS[self.kind]} {name}{part}{call}"


KINDS = {
    "parameter": "the initial value of",
    "input": "an input of",
    "forward": "the result of",
    "output": "the output",
    "gradient": "the gradient of",
    "update": "the update of",
}


@dataclass
class Entry:
    """A tensor of one process. Its value is None if there is none, as for a gradient."""

    key: Key
    #: The line of the program.
    place: str
    value: Any
    layout: Layout | None = None
    #: How many steps of optimizers are before it.
    step: int = 0
    #: Whether it is made of several calls, of microbatches.
    is_joined: bool = False


@dataclass
class Record:
    """All that a process has recorded, in its order."""

    entries: list[Entry] = field(default_factory=list)
    #: The names of all modules.
    modules: set[str] = field(default_factory=set)
    #: Gradients before they are reduced, by parameter and step: what this rank's own data contribute.
    own: dict[tuple[str, int], Any] = field(default_factory=dict)
    #: The state of the generator of random numbers behind the step, and whether the step has drawn any.
    random: bytes = b""
    is_random: bool = False
    #: Whether a dropout was turned off.
    has_dropout: bool = False
    #: The element types of all floating tensors.
    types: set[str] = field(default_factory=set)
