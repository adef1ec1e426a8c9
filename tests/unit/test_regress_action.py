"""The GitHub action and the snippets of the page are YAML, and every command in them is one that the CLI takes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from xbench.commands.regress import regress

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "regress.md").read_text(encoding="utf-8")
SNIPPETS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)]
CHECK = regress.commands["check"]


def options_of(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def scripts(node: Any) -> list[str]:
    """Every shell line of a workflow, whatever it is nested in."""
    if isinstance(node, dict):
        own = [node["run"]] if isinstance(node.get("run"), str) else []
        own += [line for line in node.get("script", []) if isinstance(line, str)]
        return own + [line for key, value in node.items() if key not in ("run", "script") for line in scripts(value)]
    return [line for part in node for line in scripts(part)] if isinstance(node, list) else []


def test_the_action_s_inputs_are_the_ones_that_it_uses_and_the_page_names() -> None:
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    used = set(re.findall(r"\$\{\{ inputs\.([\w-]+)", text)) | set(re.findall(r"inputs\.([\w-]+) !=", text))
    assert used == set(ACTION["inputs"])
    for name, facts in ACTION["inputs"].items():
        assert facts["description"], name
        assert f"`{name}`" in PAGE
    assert ACTION["runs"]["using"] == "composite"


def test_no_input_stands_in_a_shell_line_where_it_could_be_code() -> None:
    for line in scripts(ACTION):
        assert "${{" not in line


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A shallow clone of a repository of two commits, whose `main` is checked out."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    upstream = tmp_path / "upstream"
    subprocess.run([*git, "init", "-q", "-b", "main", str(upstream)], check=True)
    for message in ("one", "two"):
        subprocess.run([*git, "-C", str(upstream), "commit", "-q", "--allow-empty", "-m", message], check=True)
    subprocess.run([*git, "clone", "-q", "--depth=1", upstream.as_uri(), str(tmp_path / "clone")], check=True)
    return tmp_path / "clone"


def step(name: str, where: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run one step of the action as GitHub does, with its inputs in the environment."""
    (script,) = [one["run"] for one in ACTION["runs"]["steps"] if one.get("name") == name]
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(words, cwd=where, env={**os.environ, **inputs}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "base", ["--upload-pack=touch {ran};git-upload-pack", "--output={ran}", "$(touch {ran})", "-h", "ext::touch {ran}"]
)
def test_a_base_is_never_an_option_of_git(clone: Path, tmp_path: Path, base: str) -> None:
    ran = tmp_path / "ran"
    assert step("Fetch the base", clone, BASE=base.format(ran=ran)).returncode != 0
    assert not ran.exists()


def test_a_base_that_the_clone_lacks_is_fetched(clone: Path) -> None:
    base = subprocess.run(
        ["git", "-C", str(clone.parent / "upstream"), "rev-parse", "main~1"], capture_output=True, text=True, check=True
    ).stdout.strip()
    subprocess.run(["git", "-C", str(clone.parent / "upstream"), "branch", "release", base], check=True)
    for name in ("main", "release", base):
        done = step("Fetch the base", clone, BASE=name)
        assert done.returncode == 0, done.stderr
    subprocess.run(["git", "-C", str(clone), "cat-file", "-e", base], check=True)


def test_no_input_becomes_an_option_of_xbench(tmp_path: Path) -> None:
    stand_in = tmp_path / "xbench"
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    odd = "--slow-step=9"
    inputs = {"BASE": odd, "CONFIG": odd, "LAYER": odd, "STRICT": odd, "BUDGET": odd, "JUNIT": odd}
    path = f"{tmp_path}:{os.environ['PATH']}"
    told = step("Measure both sides", tmp_path, PATH=path, **inputs).stdout.splitlines()
    assert told[:2] == ["regress", "check"]
    assert sorted(told[2:]) == [f"--{name}={odd}" for name in ("base", "budget", "config", "junit", "layer")]


def test_the_action_s_command_has_only_options_that_there_are() -> None:
    (script,) = [line for line in scripts(ACTION) if "xbench regress check" in line]
    assert set(re.findall(r"--[a-z-]+", script)) <= options_of(CHECK)
    layers = next(p for p in CHECK.params if p.name == "layer").type
    assert isinstance(layers, click.Choice)
    assert ACTION["inputs"]["layer"]["default"] in layers.choices


@pytest.mark.parametrize("snippet", SNIPPETS, ids=["github", "gitlab"])
def test_the_page_s_snippets_parse_and_their_commands_do(snippet: dict[str, Any]) -> None:
    assert snippet
    for line in scripts(snippet):
        words = shlex.split(line)
        if words[0] == "xbench":
            assert words[1:3] == ["regress", "check"]
            with CHECK.make_context("check", words[3:]) as context:  # parses, and runs nothing
                assert context.params["base"]


def test_this_project_s_own_suite_is_read_and_ci_runs_its_deterministic_layer() -> None:
    from xbench.records import Baseline, load
    from xbench.regress import load_suite

    suite = load_suite(ROOT / "xbench.toml")
    baseline = load(ROOT / "results" / "baselines" / "any" / "baseline.json")
    assert isinstance(baseline, Baseline)
    held = {one.case for one in baseline.side.measurements}
    counted = next(check for check in suite.checks if check.name == "counts")
    assert set(counted.cases()) <= held
    last = (ROOT / ".ci" / "run").read_text().splitlines()[-1]
    words = shlex.split(last)
    assert words[:3] == [".venv/bin/xbench", "regress", "check"]
    with CHECK.make_context("check", words[3:]) as context:
        assert context.params["layer"] == "deterministic"
