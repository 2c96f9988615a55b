"""The hook for pre-commit and the action for GitHub, run as their users run them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import hir
from test_hir import RACE

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent


def run(*words, **options):
    environment = {**os.environ, "PATH": f"{SCRIPTS}:{os.environ['PATH']}", **options.pop("env", {})}
    # The time limit also ends what a step has started, such as a build.
    limited = ["timeout", "--signal=KILL", "120", *words]
    return subprocess.run(limited, capture_output=True, text=True, env=environment, **options)


@pytest.fixture
def repository(tmp_path):
    """A repository with a program that has a race, one that has none, and a file that is no program."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    (tmp_path / "race.hir").write_text(RACE)
    (tmp_path / "clean.hir").write_text(hir.EXAMPLE)
    (tmp_path / "notes.txt").write_text("no program")
    assert run(*git, "init", "--quiet").returncode == 0
    assert run(*git, "add", ".").returncode == 0
    return tmp_path


def test_the_hooks(repository):
    # The hooks of the repository, without their build: the package is installed.
    configured = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert all(it.pop("language") == "rust" for it in configured)
    config = {"repos": [{"repo": "local", "hooks": [{**it, "language": "system"} for it in configured]}]}
    (repository / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    home = {"PRE_COMMIT_HOME": str(repository / ".cache")}

    def hooks(*files, of=("hir-check",)):
        return run("pre-commit", "run", *of, "--color=never", "--files", *files, cwd=repository, env=home)

    shutil.copy(ROOT / "docs/examples/jax/shift.mlir", repository)
    failed = hooks("race.hir", "clean.hir", "shift.mlir", "notes.txt")
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert "exit code: 7" in failed.stdout and "3 files: 2 without faults, 1 with faults" in failed.stdout
    assert hooks("clean.hir", "notes.txt").returncode == 0
    assert "Skipped" in hooks("notes.txt").stdout
    shutil.copytree(ROOT / "docs/examples/job-hangs", repository / "dumps")
    hang = hooks(*(f"dumps/rank_{rank}.json" for rank in range(4)), of=("hir-hang", "--hook-stage=manual"))
    assert hang.returncode == 1 and "exit code: 4" in hang.stdout and "rank 2 skips the all_reduce" in hang.stdout


def steps(inputs: dict[str, str], folder: Path, tag: str = "", **environment):
    """Runs the steps of the action as a runner does, which has this tag. Returns the first one that failed, or the last one, and the inputs of
    the actions that the action uses."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    values = {name: inputs.get(name, "" if "${{" in it["default"] else it["default"]) for name, it in action["inputs"].items()}
    temp = folder / ".runner"
    temp.mkdir(exist_ok=True)
    (github_path := temp / "path").touch()
    (summary := temp / "summary.md").write_text("")
    standard = {"GITHUB_ACTION_PATH": str(ROOT), "GITHUB_PATH": str(github_path), "GITHUB_STEP_SUMMARY": str(summary), "RUNNER_TEMP": str(temp)}

    def filled(text):
        text = re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda it: values[it[1]], text)
        for name, value in {"runner.temp": str(temp), "github.action_ref": tag, "github.action_repository": "OWNER/hir"}.items():
            text = text.replace(f"${{{{ {name} }}}}", value)
        return text

    results, used = [], {}
    for step in action["runs"]["steps"]:
        condition = step.get("if", "success()")
        has_failed = any(it.returncode != 0 for it in results)
        assert condition in ("success()", "always()", "always() && inputs.upload-sarif == 'true'")
        if has_failed and condition == "success()" or "inputs" in condition and values["upload-sarif"] != "true":
            continue
        if "uses" in step:
            used[step["uses"]] = {name: filled(text) for name, text in step["with"].items()}
            continue
        assert step["shell"] == "bash" and "${{" not in step["run"]
        own = {name: filled(text) for name, text in step.get("env", {}).items()}
        paths = [*github_path.read_text().split(), environment.get("PATH", f"{SCRIPTS}:{os.environ['PATH']}")]
        env = {**standard, **environment, **own, "PATH": ":".join(paths)}
        # The call of the shell `bash` in a step.
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        results.append(run(*words, cwd=folder, env=env))
    failed = [it for it in results if it.returncode != 0]
    return (failed or results[-1:])[0], summary.read_text(), used


def test_the_action(repository):
    result, summary, used = steps({}, repository)
    assert result.returncode == 7
    assert "::error file=./race.hir,line=" in result.stderr and "`T1` of rank 0" in result.stderr
    assert "2 files: 1 without faults, 1 with faults" in summary and "| ❌ | E0702 | ./race.hir:" in summary and used == {}
    result, summary, _ = steps({"paths": "clean.hir\n", "arguments": "--check=race --assume"}, repository)
    assert result.returncode == 0 and "1 file: 1 without faults" in summary and "|" not in summary
    # The text of an input is an argument, not a command.
    assert steps({"paths": "$(touch stolen)\n; touch stolen"}, repository)[0].returncode == 6
    assert steps({"arguments": "$(touch stolen)"}, repository)[0].returncode == 6
    assert not (repository / "stolen").exists()


def test_the_action_draws_the_programs_that_a_pull_request_changes(repository):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(repository)]
    assert run(*git, "commit", "--quiet", "-m", "base").returncode == 0
    base = run(*git, "rev-parse", "HEAD").stdout.strip()
    (repository / "clean.hir").write_text(hir.EXAMPLE + "\n// changed\n")
    (repository / "notes.txt").write_text("changed")
    result, summary, used = steps({"base": base, "upload-sarif": "true"}, repository)
    assert result.returncode == 7, result.stderr
    assert summary.count("### Timeline of ") == 1 and "### Timeline of clean.hir, 2 ranks\n" in summary
    assert "```mermaid\n" in summary and "\ngantt\n" in summary and "section rank 0 " in summary and "hidden behind computation" in summary
    # What the other action uploads is a log with the race.
    ((name, options),) = used.items()
    assert name.startswith("github/codeql-action/upload-sarif@") and options["category"] == "hir"
    log = json.loads(Path(options["sarif_file"]).read_text())
    (found,) = log["runs"][0]["results"]
    place = found["locations"][0]["physicalLocation"]
    assert found["ruleId"] == "E0702" and place["artifactLocation"]["uri"].endswith("race.hir") and log["version"] == "2.1.0"


def test_the_action_explains_hangs(repository):
    folder = f"{ROOT}/docs/examples/job-hangs"
    result, _, _ = steps({"paths": "clean.hir", "hangs": f"{folder}\n"}, repository)
    assert result.returncode != 0 and "::error file=train.py,line=14," in result.stderr and "title=E0801::rank 2 skips" in result.stderr


def test_the_action_installs_hir(repository):
    """A stand-in for cargo puts the command where the action asks for it."""
    tools = repository / "tools"
    tools.mkdir()
    hir_command = shutil.which("hir", path=str(SCRIPTS))
    (tools / "cargo").write_text(
        '#!/bin/bash\nset -eu\n[ "$1" = install ]\nwhile [ "$1" != --root ]; do shift; done\n'
        f'mkdir -p "$2/bin"\nln -s "{hir_command}" "$2/bin/hir"\n'
    )
    (tools / "cargo").chmod(0o755)
    result, _, _ = steps({"paths": "clean.hir"}, repository, PATH=f"{tools}:/usr/bin:/bin")
    assert result.returncode == 0, result.stderr
    assert (repository / ".runner/hir/bin/hir").exists()
    # And one for Python and pip.
    (tools / "python3").write_text(
        f'#!/bin/bash\nset -eu\n[ "$1 $2" = "-m venv" ]\nmkdir -p "$3/bin"\nln -s "{hir_command}" "$3/bin/hir"\n'
        'printf \'#!/bin/bash\\necho "$@" >"$RUNNER_TEMP/installed"\\n\' >"$3/bin/python"\nchmod +x "$3/bin/python"\n'
    )
    (tools / "python3").chmod(0o755)
    releases = "--no-index --find-links https://github.com/OWNER/hir/releases/expanded_assets/v0.1.0 hir==0.1.0"
    for inputs, tag, installed in [({"wheel": "hir one.whl"}, "v0.1.0", "hir one.whl"), ({}, "v0.1.0", releases)]:
        shutil.rmtree(repository / ".runner")
        result, _, _ = steps({"paths": "clean.hir", **inputs}, repository, tag, PATH=f"{tools}:/usr/bin:/bin")
        assert result.returncode == 0, result.stderr
        assert (repository / ".runner/installed").read_text() == f"-m pip install --quiet --no-deps {installed}\n"
