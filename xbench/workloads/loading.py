"""A user's file: read, imported as Python would do it, and its errors as one sentence with the line.

A module gets its own name (`train`, or `package.train` if `__init__.py` files make its folders a package). So relative
imports work, and a process that the factory spawns, such as a data loader's worker, can import it again. If that name
already belongs to another module, a private name takes its place, and neither of the two works.

Before that it is read: whether it can be a factory, and how its own step differs from ours. Only what is certain is
told: a class of `torch.optim`, an autocast with a literal dtype, and a norm of clipping that is a number or a constant
of the module. Nothing here imports torch.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, TextIO, cast

from xbench.errors import WorkloadError, nearest
from xbench.spec import WorkloadSpec
from xbench.text import and_of, cut, visible

FACTORY = (
    "def make():",
    "    model = MyModel()  # not wrapped in DistributedDataParallel",
    "    inputs, targets = torch.randn(8, 3, 224, 224), torch.randint(1000, (8,))  # or a DataLoader in place of both",
    "    return model, (inputs, targets), torch.nn.CrossEntropyLoss()",
)
"""The lines that a training script lacks."""

OPTIMIZERS = {"SGD": "sgd", "Adam": "adamw", "AdamW": "adamw"}
"""`--optimizer` by class of `torch.optim`: the one whose update costs the same."""

AMP = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
TRAINING = ("backward", "init_process_group")
"""Functions that a training script calls and a factory does not."""


def factory_hint(file: str) -> str:
    """Hint above the lines of a factory."""
    return f"add a factory to it, as below, and give {visible(cut(file, 100))}:make"


def read(title: str, file: Path) -> ast.Module | None:
    """Syntax tree of a file; None if it does not parse, as its import tells. Raises WorkloadError if unreadable."""
    try:
        return ast.parse(file.read_bytes())
    except OSError as error:
        raise WorkloadError(f"{title}: {str(file)!r} cannot be read: {error.strerror}") from None
    except (SyntaxError, ValueError):
        return None


def factories_in(file: Path) -> list[str]:
    """Names of the functions that look like factories: at the top of the file, of three results, without arguments.

    `rank` may be one.
    """
    try:
        tree = read("", file) if file.is_file() else None  # a pipe would never end
    except WorkloadError:
        return []
    functions = [one for one in tree.body if isinstance(one, ast.FunctionDef)] if tree is not None else []
    return [
        one.name
        for one in functions
        if ast.unparse(one.args) in ("", "rank")
        and any(isinstance(value, ast.Tuple) and len(value.elts) == 3 for value in _results(one))
    ]


def check_factory(title: str, file: Path, name: str) -> None:
    """Raise WorkloadError for a file that does not have the name, or in which it is a training script's function.

    Such a file is not imported: it may train. Raises WorkloadError for a file that cannot be read, too.
    """
    tree = read(title, file)
    if tree is None:
        return
    words = {getattr(node, key, None) for node in ast.walk(tree) for key in ("id", "attr", "name", "asname")}
    if name not in words and not words & {"*", "globals", "setattr"}:
        close = nearest(name, [one.name for one in tree.body if isinstance(one, ast.FunctionDef)])
        hint = f"did you mean {close!r}?" if close else factory_hint(file.name)
        lines = () if close else FACTORY
        raise WorkloadError(f"{title}: {name!r} does not exist in {file.name}", hint=hint, lines=lines)
    function = next((one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name), None)
    if function is None or function.decorator_list or not words.intersection(TRAINING):
        return
    if not _results(function):
        raise WorkloadError(
            f"{title}: {name!r} returns nothing, as the main function of a training script, and xbench runs the steps "
            "itself",
            hint=factory_hint(file.name),
            lines=FACTORY,
        )


def differing(file: Path, spec: WorkloadSpec) -> str | None:
    """One sentence on options with which the measured step would be that of the script in `file`; None without any."""
    tree = read(spec.title, file)
    if tree is None:
        return None
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found: dict[str, set[tuple[str, str]]] = {"--optimizer": set(), "--amp": set(), "--clip": set()}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = _last_word(call.func)
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        if name in OPTIMIZERS:
            found["--optimizer"].add((name, OPTIMIZERS[name]))
        elif name == "autocast" and "enabled" not in named:
            dtype = AMP.get(_last_word(named.get("dtype", call.args[1] if len(call.args) > 1 else None)))
            if dtype is not None:
                found["--amp"].add((f"autocast {dtype}", dtype))
        elif name == "clip_grad_norm_":
            norm = named.get("max_norm", call.args[1] if len(call.args) > 1 else None)
            norm = constants.get(norm.id) if isinstance(norm, ast.Name) else norm
            if isinstance(norm, ast.Constant) and isinstance(norm.value, int | float):
                found["--clip"].add((f"clipping at {norm.value:g}", f"{norm.value:g}"))
    ours = {
        "--optimizer": spec.optimizer,
        "--amp": spec.amp or spec.dtype,
        "--clip": f"{spec.clip:g}" if spec.clip is not None else "no clipping",
    }
    sure = {flag: one for flag, (one,) in ((flag, tuple(ones)) for flag, ones in found.items() if len(ones) == 1)}
    unlike = {flag: one for flag, one in sure.items() if one[1] != ours[flag]}
    if not unlike:
        return None
    theirs, measured = and_of([told for told, _ in unlike.values()]), and_of([ours[flag] for flag in unlike])
    options = " ".join(f"{flag} {value}" for flag, (_, value) in unlike.items())
    return f"{spec.title}: the file uses {theirs}, and this run measures {measured}: {options}"


def _results(function: ast.FunctionDef) -> list[ast.expr]:
    """Values that the function itself, and not one that it defines, returns."""
    inner = [node for node in ast.walk(function) if isinstance(node, ast.FunctionDef) and node is not function]
    inside = {id(node) for nested in inner for node in ast.walk(nested)}
    returns = (node for node in ast.walk(function) if isinstance(node, ast.Return) and id(node) not in inside)
    return [node.value for node in returns if node.value is not None]


def _last_word(node: ast.AST | None) -> str:
    """`c` of the expression `a.b.c`; '' of others."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


PRIVATE = "xbench_workload_"
_TAIL_CHARACTERS = 2000
_TWICE = "trying to initialize the default process group twice"  # torch's words


def load_file(file: Path) -> Any:
    """Import a Python file afresh and return its module. Raises whatever the file raises."""
    importlib.invalidate_caches()
    name = module_name(file)
    package = name.rpartition(".")[0]
    if package:
        _import_package(package, package_root(file)[0])
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise WorkloadError(f"{str(file)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up by name
    spec.loader.exec_module(module)
    return module


def _import_package(name: str, root: Path) -> None:
    """Import the file's package from its own root, not a module of the same name next to the file."""
    sys.path.insert(0, str(root))
    try:
        importlib.import_module(name)
    finally:
        sys.path.remove(str(root))


def package_root(file: Path) -> tuple[Path, tuple[str, ...]]:
    """The folder from which the file is imported, and the parts of its module's name from there."""
    root = file.parent
    parts: tuple[str, ...] = (file.stem,)
    while (root / "__init__.py").is_file() and root.name.isidentifier():
        root, parts = root.parent, (root.name, *parts)
    return root, parts


def module_name(file: Path) -> str:
    """Name under which the file is imported: its own, or a private one if that is taken or invalid."""
    root, parts = package_root(file)
    file_or_package = file if len(parts) == 1 else root / parts[0] / "__init__.py"
    if not file.stem.isidentifier() or _taken(parts[0], file_or_package, (str(file.parent), str(root))):
        return f"{PRIVATE}{file.stem}"
    return ".".join(parts)


def _taken(name: str, own_file: Path, folders: tuple[str, ...]) -> bool:
    """True if that name belongs to a loaded module of another file, or would be found outside of these folders."""
    if name in sys.stdlib_module_names:
        return True
    if name in sys.modules:
        origin = getattr(sys.modules[name], "__file__", None)
    else:
        elsewhere = [entry for entry in sys.path if entry not in folders]
        spec = PathFinder.find_spec(name, elsewhere)
        if spec is None or spec.origin is None:  # None: a folder without __init__.py, which a file precedes
            return False
        origin = spec.origin
    return origin is None or Path(origin).resolve() != own_file.resolve()


class TailedStream:
    """A text stream that keeps the end of what is written to it, and otherwise acts as the underlying stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._end = ""

    def write(self, text: str) -> int:
        """Write to the underlying stream."""
        self._end = (self._end + text)[-_TAIL_CHARACTERS:]
        return self._stream.write(text)

    @property
    def last_line(self) -> str:
        """The last line that is not empty; '' without one."""
        return next((line.strip() for line in reversed(self._end.splitlines()) if line.strip()), "")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def as_script(file: Path | None) -> Iterator[TailedStream]:
    """Set `sys.path` and `sys.argv` as if Python had been started with this file alone, without xbench's options.

    Yields the text that is written to `sys.stderr` meanwhile.
    """
    argv, path, stderr = sys.argv, list(sys.path), sys.stderr
    folders = [] if file is None else list(dict.fromkeys((str(file.parent), str(package_root(file)[0]))))
    tail = TailedStream(stderr)
    sys.argv = [argv[0] if file is None else str(file)]
    sys.path[:0] = folders
    sys.stderr = cast(TextIO, tail)
    try:
        yield tail
    finally:
        sys.argv, sys.stderr = argv, stderr
        for folder in folders:
            if sys.path.count(folder) > path.count(folder):
                sys.path.remove(folder)


def raised(title: str, error: BaseException, file: Path | None, last_line: str = "") -> WorkloadError:
    """Error of a file or its factory as one sentence with the line, and a remedy if one is known.

    `last_line`: the last line that it wrote to stderr. It tells why the file ended the process.
    """
    detail = "".join(traceback.format_exception(error))
    text = " ".join(str(error).split()) or "no message"
    if isinstance(error, SystemExit) and isinstance(error.code, int) and last_line:
        text += f" ({last_line})"
    location = _location(error, file)
    if _TWICE in text:
        return WorkloadError(
            f"{title} cannot be built: {location} makes a process group, and xbench has already made one",
            hint="guard it: if not torch.distributed.is_initialized(); or if this is a training script, "
            + factory_hint(file.name if file is not None else "the file"),
            detail=detail,
            lines=FACTORY,
        )
    return WorkloadError(
        f"{title} cannot be built: {location} raised {type(error).__name__}: {text}",
        hint=_remedy(error, file, text),
        detail=detail,
    )


def _location(error: BaseException, file: Path | None) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if file is not None and frame.filename == str(file)]
    other_frames = [frame for frame in frames if not frame.filename.startswith(str(Path(__file__).parent))]
    frame = (user_frames or other_frames or list(frames))[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _remedy(error: BaseException, file: Path | None, text: str) -> str | None:
    if isinstance(error, SystemExit):
        return "parse arguments under if __name__ == '__main__': the file is imported, without arguments"
    if isinstance(error, ImportError) and "relative import" in text and file is not None:
        return f"an __init__.py in {file.parent.name or str(file.parent)!r} makes it a package, or import absolutely"
    if isinstance(error, ModuleNotFoundError) and error.name and file is not None:
        top = error.name.partition(".")[0]
        for folder in dict.fromkeys((Path.cwd(), *file.parents)):
            if (folder / top).is_dir() or (folder / f"{top}.py").is_file():
                return f"set PYTHONPATH={folder}, where {top!r} is"
    if "DataLoader worker" in text:
        return "return the loader in place of a batch, or make the batch without worker processes (num_workers=0)"
    return None
