"""A user's training script, read and not run: whether it can be a factory, and how its own step differs from ours.

Only what is certain is told: a class of `torch.optim`, an autocast with a literal dtype, and a norm of clipping that is
a number or a constant of the module. Nothing here imports torch.
"""

from __future__ import annotations

import ast
from pathlib import Path

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
