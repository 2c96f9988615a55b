"""Runs the examples of docs/python.md and of the module's documentation, and the notebook."""

import ast
import contextlib
import doctest
import io
import json
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


def outputs(source: str, names: dict[str, object]) -> list[dict[str, object]]:
    """Executes a cell as Jupyter does. Returns its outputs in the format of notebooks."""
    body = ast.parse(source).body
    last = ast.Expression(body.pop().value) if isinstance(body[-1], ast.Expr) else None
    shown: list[dict[str, object]] = []
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        value = eval(compile(last, "cell", "eval"), names) if last else None
    if printed.getvalue():
        shown.append({"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(True)}
        if hasattr(value, "_repr_html_"):
            data = {"text/html": value._repr_html_().splitlines(True), **data}
        shown.append({"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return shown


def test_notebook(monkeypatch):
    monkeypatch.chdir(ROOT / "docs/examples")
    path = Path("race-and-overlap.ipynb")
    notebook, names = json.loads(path.read_text()), {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            found = outputs("".join(cell["source"]), names)
            if os.environ.get("INSTA_UPDATE") == "always":
                cell["outputs"] = found
            assert found == cell["outputs"]
    if os.environ.get("INSTA_UPDATE") == "always":
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def test_the_table_of_operators_of_pytorch_is_that_of_the_importer():
    page = (ROOT / "python/OPERATORS.md").read_text()
    printed = subprocess.run([sys.executable, "-m", "hir.torch"], capture_output=True, text=True, check=True).stdout
    assert page.split("\n\n", 2)[2] == printed
