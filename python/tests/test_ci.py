"""The hook for pre-commit and the action for GitHub, run as their users run them."""

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
    return subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment, **options)


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


def test_the_hook(repository):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    # The hook of the repository, without its build: the package is installed.
    assert hook.pop("language") == "rust"
    config = {"repos": [{"repo": "local", "hooks": [{**hook, "language": "system"}]}]}
    (repository / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    home = {"PRE_COMMIT_HOME": str(repository / ".cache")}

    def hooks(*files):
        return run("pre-commit", "run", "hir-check", "--color=never", "--files", *files, cwd=repository, env=home)

    failed = hooks("race.hir", "clean.hir", "notes.txt")
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert "exit code: 7" in failed.stdout and "2 files: 1 without faults, 1 with faults" in failed.stdout
    assert hooks("clean.hir", "notes.txt").returncode == 0
    assert "Skipped" in hooks("notes.txt").stdout


def steps(inputs: dict[str, str], folder: Path, **environment):
    """Runs the steps of the action as a runner does, and returns the last one that ran."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    values = {name: inputs.get(name, it["default"]) for name, it in action["inputs"].items()}
    github_path = folder / "github-path"
    github_path.touch()
    standard = {"GITHUB_ACTION_PATH": str(ROOT), "GITHUB_PATH": str(github_path), "RUNNER_TEMP": str(folder)}
    for step in action["runs"]["steps"]:
        assert step["shell"] == "bash" and "${{" not in step["run"]
        own = {
            name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda it: values[it[1]], text)
            for name, text in step.get("env", {}).items()
        }
        paths = [*github_path.read_text().split(), environment.get("PATH", f"{SCRIPTS}:{os.environ['PATH']}")]
        env = {**standard, **environment, **own, "PATH": ":".join(paths)}
        # The call of the shell `bash` in a step.
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        result = run(*words, cwd=folder, env=env)
        if result.returncode != 0:
            break
    return result


def test_the_action(repository):
    result = steps({}, repository)
    assert result.returncode == 7
    assert "::error file=./race.hir,line=" in result.stderr and "`T1` of rank 0" in result.stderr
    assert steps({"paths": "clean.hir\n", "arguments": "--check=race --assume"}, repository).returncode == 0
    # The text of an input is an argument, not a command.
    assert steps({"paths": "$(touch stolen)\n; touch stolen"}, repository).returncode == 6
    assert steps({"arguments": "$(touch stolen)"}, repository).returncode == 6
    assert not (repository / "stolen").exists()


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
    result = steps({"paths": "clean.hir"}, repository, PATH=f"{tools}:/usr/bin:/bin")
    assert result.returncode == 0, result.stderr
    assert (repository / "hir/bin/hir").exists()
