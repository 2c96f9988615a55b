"""Where a call comes from: the frames of a stack that say it, as numbers."""

from __future__ import annotations

import os
from types import CodeType, FrameType

#: The largest number of frames of a stack.
MAX_FRAMES = 100

#: The modules of hir: their frames are none of the script.
OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Stacks:
    """The frames of a process."""

    def __init__(self) -> None:
        #: All that were met: file, line and function.
        self.frames: list[tuple[str, int, str]] = []
        self._told = 0
        #: By the identity of the code, which is kept: its hash takes long.
        self._numbers: dict[tuple[int, int], int] = {}
        self._kinds: dict[int, tuple[str, CodeType]] = {}

    def new(self) -> list[tuple[str, int, str]]:
        """Returns the frames that were met since the last time."""
        new = self.frames[self._told :]
        self._told += len(new)
        return new

    def of(self, frame: FrameType | None) -> tuple[tuple[int, ...], str]:
        """Returns the frames that say where a call comes from, and the line of the script."""
        found: list[int] = []
        place, at = "", frame
        while at is not None and len(found) < MAX_FRAMES:
            code = at.f_code
            kind, _ = self._kinds.get(id(code)) or self._kinds.setdefault(id(code), (kind_of(code), code))
            if kind == "run":
                break
            if kind:
                key = (id(code), at.f_lineno)
                number = self._numbers.get(key)
                if number is None:
                    number = self._numbers[key] = len(self._numbers)
                    self.frames.append((code.co_filename, at.f_lineno, code.co_name))
                found.append(number)
                if not place and kind == "script":
                    place = f"{code.co_filename}:{at.f_lineno}"
            at = at.f_back
        return tuple(found), place


def is_of_script(file: str) -> bool:
    """Whether a file is neither of PyTorch nor of Python."""
    return "/torch/" not in file and not file.startswith("<") and ("/lib/python3." not in file or "-packages/" in file)


def kind_of(code: CodeType) -> str:
    """Returns what a frame tells: ``script`` is a line of it, ``torch`` the function that it calls, ``run`` the end of the stack."""
    file = code.co_filename
    if file.startswith(OWN):
        return "run" if code.co_name == "run_script" else ""
    if is_of_script(file):
        return "script"
    return "torch" if file.endswith("torch/distributed/distributed_c10d.py") or "torch/autograd/" in file else ""
