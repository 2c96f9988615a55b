"""A fixture of pytest: ``assert_race_free`` fails a test if a program has a race, a deadlock or unwritten elements."""

from __future__ import annotations

import os
from typing import Any, Callable

import pytest

from . import HirError, Program, read


@pytest.fixture
def assert_race_free() -> Callable[..., None]:
    """Returns a function that checks a program, a text or a file. Its options are those of ``Program.check``."""

    def check(program: Program | str | os.PathLike[str], **options: Any) -> None:
        __tracebackhide__ = True
        try:
            it = program if isinstance(program, Program) else read(program)
            it.check(**options).raise_if_found()
        except HirError as error:
            pytest.fail(str(error), pytrace=False)

    return check
