"""The house rules, executable: what imports what, what stays fast, what is documented."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import xbench
from xbench import cli
from xbench.modes import MODES
from xbench.records import KINDS

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "xbench").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
OF_OTHER_PROGRAMS = {  # torchrun's and Slurm's, in docs/clusters.md; pip's in getting-started.md
    "--index-url", "--no-deps",
    "--nodes", "--nnodes", "--nproc-per-node", "--node-rank", "--master-addr", "--master-port", "--ntasks-per-node",
    "--gpus-per-task", "--pty", "--job-name", "--exclusive", "--kill-on-bad-exit",
}  # fmt: skip
OTHER_MEANINGS = [  # modules in which the name of a mode means something else
    ("xbench.horovod.", "horovod"),  # the package, its folders and its process group
    ("xbench.environment", "horovod"),  # the package, whose version is recorded
]
OF_A_CHECKOUT = re.compile(r"\b(docs|examples|benchmarks|tests)/|\b(README|CONTRIBUTING)\b|\bresults/[\w-]+\.json")
"""Files that a wheel lacks."""

MAX_LINES = 600
MAX_FUNCTION_LINES = 80
MAX_PARAMETERS = 8
HEAVY = ("torch", "torchvision", "numpy", "scipy", "pydantic", "rich")


def _context() -> click.Context:
    return cli.cli.make_context("xbench", ["x"], resilient_parsing=True)


def _command(name: str) -> click.Command:
    command = cli.cli.get_command(_context(), name)
    assert command is not None
    return command


def _all_commands() -> list[tuple[str, click.Command]]:
    """Every command and subcommand, as (path, command)."""
    found = [(name, _command(name)) for name in cli.COMMANDS]
    for path, command in found:
        if isinstance(command, click.Group):
            found += [(f"{path} {name}", child) for name, child in command.commands.items()]
    return found


def test_imports_run_one_way() -> None:
    from importlinter.cli import lint_imports

    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None) == 0


@pytest.mark.parametrize("words", [["--help"], ["--version"], [], ["comprae"]])
def test_the_group_alone_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        f"import sys; from xbench.cli import main; main({words!r}); "
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_command_s_help_imports_no_torch(name: str) -> None:
    code = (
        f"import sys; from xbench.cli import main; assert main([{name!r}, '--help']) == 0; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_summary_in_the_table_is_the_command_s_own(name: str) -> None:
    assert _command(name).get_short_help_str(limit=200) == cli.COMMANDS[name][1]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_a_page_that_names_its_options(name: str) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# xbench {name}\n")
    command = _command(name)
    shown = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    own = [option for param in shown for option in param.opts]
    children = list(command.commands) if isinstance(command, click.Group) else []
    assert [option for option in [*own, *children] if option not in page] == []


def test_options_in_the_pages_exist() -> None:
    known = {option for _, command in _all_commands() for p in command.params for option in p.opts}
    known |= {"--help", "--version", "--debug", *OF_OTHER_PROGRAMS}
    for script in (ROOT / "benchmarks").rglob("*.py"):
        known |= set(re.findall(r'"(--[a-z][a-z-]+)"', script.read_text(encoding="utf-8")))
    for page in (ROOT / "docs").glob("*.md"):
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text(encoding="utf-8")))
        assert named <= known, page.name


def test_every_mode_is_one_line_here_and_in_the_page() -> None:
    page = (ROOT / "docs" / "modes.md").read_text(encoding="utf-8")
    for info in MODES:
        assert info.summary
        assert "\n" not in info.summary
        assert len(info.summary) <= 80
        assert page.count(f"\n| `{info.name}` |") == 1


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_mode_is_named_in_the_table_and_in_its_schedule_alone(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    if module == "xbench.modes":
        return
    own = {info.name for info in MODES if info.schedule.partition(":")[0] == module}
    meant = {word for place, word in OTHER_MEANINGS if module.startswith(place)}
    strange = {info.name for info in MODES} - {"ddp", "compute", "auto"} - own - meant
    assert [text for text in _texts(path) if _mode_names(text) & strange] == []


def test_every_other_meaning_of_a_mode_s_name_is_needed() -> None:
    texts = {".".join(path.relative_to(ROOT).with_suffix("").parts): _texts(path) for path in SOURCES}
    for place, word in OTHER_MEANINGS:
        assert any(word in _mode_names(text) for name in texts if name.startswith(place) for text in texts[name])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_names_a_file_that_only_a_checkout_has(path: Path) -> None:
    assert [text for text in _texts(path) if OF_A_CHECKOUT.search(text)] == []


@pytest.mark.parametrize("noun", ["bucket", "layer", "tensor"])
def test_a_count_of_one_has_its_noun_in_the_singular(noun: str) -> None:
    plural = re.compile(rf" {noun}s\b")
    bare = [
        f"{path.relative_to(ROOT)}:{part.lineno}"
        for path in SOURCES
        if path.parts[len(ROOT.parts) + 1] in ("commands", "planning", "report", "runs")
        for text in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(text, ast.JoinedStr)
        for number, part in zip(text.values, text.values[1:], strict=False)
        if isinstance(number, ast.FormattedValue) and isinstance(part, ast.Constant) and plural.match(part.value)
    ]
    assert bare == [], "text.counted gives both"


def _texts(path: Path) -> list[str]:
    """Every text in a module but its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in told]
    return [node.value for node in nodes if isinstance(node.value, str)]


def _imports_of(path: Path, modules: dict[str, Path]) -> set[str]:
    """Modules of xbench that a file imports, those for type checking alone among them."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            for alias in node.names:
                child = f"{node.module}.{alias.name}"
                imported.add(child if child in modules else node.module)
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names if alias.name in modules}
    return imported


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCES
    }
    waiting = {name: _imports_of(path, modules) - {name} for name, path in modules.items()}
    while free := [name for name, imported in waiting.items() if not imported & waiting.keys()]:
        for name in free:
            del waiting[name]
    assert sorted(waiting) == []


def _mode_names(text: str) -> set[str]:
    """The names in a text that is nothing but names of modes, such as a list for `--modes`; prose has none."""
    words = set(re.split(r"[,:@ ]", text.strip()))
    return words if words <= set(MODES.names()) else set()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    assert ast.get_docstring(ast.parse(text)), "a module's docstring is its theory"


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_of_tests_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


KNOWS_KINDS = ("xbench/records/", "xbench/report/kinds/")
KNOWS_KINDS_TOO = {
    "xbench/schedules/attach.py": "attach takes a plan as a record of several kinds, as a plan, and as names"
}


def _asks_for_kind(tree: ast.AST) -> bool:
    """True if the code tells records apart by their class."""
    classes = {kind.__name__ for kind in KINDS.values()}
    for node in ast.walk(tree):
        asked: list[ast.AST] = []
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            asked = list(ast.walk(node.args[1]))
        elif isinstance(node, ast.MatchClass):
            asked = list(ast.walk(node.cls))
        names = {one.id for one in asked if isinstance(one, ast.Name)}
        names |= {one.attr for one in asked if isinstance(one, ast.Attribute)}
        if names & classes:
            return True
    return False


def test_records_are_told_apart_by_class_in_one_place_only() -> None:
    """Others ask the record, or its view: `view_of` for a report, `of_kind` where one kind alone will do."""
    found = {str(path.relative_to(ROOT)) for path in SOURCES if _asks_for_kind(ast.parse(path.read_text("utf-8")))}
    assert {name for name in found if not name.startswith(KNOWS_KINDS)} == set(KNOWS_KINDS_TOO)


def _keys(node: ast.AST) -> list[ast.expr | None]:
    """The keys that a dictionary is written or read with."""
    if isinstance(node, ast.Dict):
        return list(node.keys)
    if isinstance(node, ast.Subscript):
        return [node.slice]
    return list(node.args[:1]) if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".get") else []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_events_of_a_journal_are_dictionaries_in_one_module_only(path: Path) -> None:
    """Everybody else writes and reads the classes of `rank.events`."""
    keys = [key for node in ast.walk(ast.parse(path.read_text("utf-8"))) for key in _keys(node)]
    named = [key for key in keys if isinstance(key, ast.Constant) and key.value == "event"]
    assert bool(named) == (path == ROOT / "xbench" / "rank" / "events.py")


def _over_limits(path: Path) -> set[str]:
    """The functions of a file that are too long or take too many parameters; `self` and `cls` do not count."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            taken = [one for one in named if one.arg not in ("self", "cls")]
            if (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES or len(taken) > MAX_PARAMETERS:
                found.add(f"{path.relative_to(ROOT)}:{node.name}")
    return found


def test_functions_and_parameter_lists_are_short() -> None:
    assert set().union(*map(_over_limits, SOURCES)) == set()


def test_all_is_honest() -> None:
    for module_info in pkgutil.walk_packages(xbench.__path__, "xbench."):
        source = ROOT / Path(*module_info.name.split("."))
        file = source / "__init__.py" if module_info.ispkg else source.with_suffix(".py")
        if "__all__" not in file.read_text(encoding="utf-8"):
            continue
        module = importlib.import_module(module_info.name)
        assert len(module.__all__) == len(set(module.__all__)), module_info.name
        for name in module.__all__:
            assert getattr(module, name) is not None, f"{module_info.name}.{name}"


def test_the_public_api_is_what_it_says() -> None:
    assert len(xbench.__all__) == len(set(xbench.__all__))
    for name in xbench.__all__:
        assert hasattr(xbench, name), name
    assert dir(xbench) == sorted(xbench.__all__)


def test_constraints_pin_every_dependency() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    needed = set(re.findall(r'^    "([A-Za-z][\w-]*)(?:>=[^"]*)?",$', pyproject, flags=re.MULTILINE))
    pinned = set(re.findall(r"^([A-Za-z][\w.-]*)==[\w.]+$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))
    assert len(needed) > 10
    assert {name.lower().replace("_", "-") for name in needed} <= {name.lower().replace("_", "-") for name in pinned}
