"""Runs the examples of docs/python.md and of the module's documentation."""

import doctest
import os
import subprocess
import sys
from pathlib import Path

import hir

ROOT = Path(__file__).parents[2]


def run(text: str, name: str) -> None:
    test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_ONLY_FIRST_FAILURE)
    assert test.examples
    runner.run(test)
    assert runner.failures == 0


def test_module():
    run(hir.__doc__, "hir")


def test_page(monkeypatch):
    # The page names files of the repository.
    monkeypatch.chdir(ROOT)
    os.makedirs("target", exist_ok=True)
    run((ROOT / "docs/python.md").read_text(), "docs/python.md")


def test_the_table_of_operators_of_pytorch_is_that_of_the_importer():
    page = (ROOT / "python/OPERATORS.md").read_text()
    printed = subprocess.run([sys.executable, "-m", "hir.torch"], capture_output=True, text=True, check=True).stdout
    assert page.split("\n\n", 2)[2] == printed
