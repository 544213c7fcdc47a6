"""Checks the rules of style that no linter knows: sizes, names, and who may import what.

``python -m tools.check_layout`` prints every breach and exits 1 when there is one. An exception
stands in ``EXCEPTIONS`` with its reason.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TREES = ("hybridgen", "ipc", "launch", "workers", "tools", "tests")
MAX_FILE_LINES = 400
MAX_TEST_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
#: Words that say nothing about what a file holds.
BANNED_NAMES = frozenset(
    {"utils", "util", "helpers", "helper", "common", "misc", "manager", "impl"}
)
#: Unsafe by what they do with bytes from outside, or by how they share and start processes.
BANNED_MODULES = frozenset(
    {"pickle", "marshal", "shelve", "dill", "cloudpickle", "multiprocessing"}
)
BANNED_CALLS = frozenset({"eval", "exec", "torch.load", "os.fork", "os.forkpty", "yaml.load"})

#: Module → the only paths (files or folders) of the package that may import it.
IMPORT_PLACES: dict[str, tuple[str, ...]] = {
    "torch": (
        "hybridgen/models",
        "hybridgen/formats/convert.py",
        "hybridgen/formats/convert_rows.py",
        "hybridgen/formats/convert_write.py",
        "workers/gpu.py",
    ),
    "zmq": ("ipc",),
    "posix_ipc": ("ipc",),
    "psutil": ("launch",),
    "granian": ("workers/http_server.py",),
}
#: Files inside those places that must do without all the same.
IMPORT_EXCLUSIONS: dict[str, tuple[str, ...]] = {
    "torch": (
        "hybridgen/models/config.py",
        "hybridgen/models/engine.py",
        "hybridgen/models/mock.py",
    ),
}

#: (path, rule) or (path:function, rule) → why it may stay.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("hybridgen/messages.py", "file-length"): "the whole wire is read in one place, in order",
    **{
        (f"hybridgen/models/kernels/{kernel}", "function-length"): "one launch is one function"
        for kernel in (
            "chunk_attention.py:_chunk_kernel",
            "decode_attention.py:decode_attention_kernel",
            "expert_product.py:expert_product_kernel",
            "gemv.py:gemv_kernel",
            "limb_dot.py:limb_dot_kernel",
            "limb_gemv.py:limb_gemv_kernel",
            "rotary.py:_rotary_kernel",
            "split_dot.py:split_dot_kernel",
        )
    },
}


class Breach(NamedTuple):
    """A rule that is not kept."""

    where: str
    rule: str
    text: str


def main() -> int:
    """Check the whole repository; the exit code."""
    breaches = [breach for path in source_files() for breach in check_file(path)]
    kept = [breach for breach in breaches if (breach.where, breach.rule) not in EXCEPTIONS]
    for breach in kept:
        print(f"{breach.where}: {breach.rule}: {breach.text}")
    needless = set(EXCEPTIONS) - {(breach.where, breach.rule) for breach in breaches}
    for where, rule in sorted(needless):
        print(f"{where}: exception for {rule} is not needed any more")
    vanished = [place for place in _named_places() if not (ROOT / place).exists()]
    for place in vanished:
        print(f"{place}: named in the import rules, but not there")
    return 1 if kept or needless or vanished else 0


def _named_places() -> set[str]:
    rules = (*IMPORT_PLACES.values(), *IMPORT_EXCLUSIONS.values())
    return {place for places in rules for place in places}


def source_files(root: Path = ROOT) -> list[Path]:
    """Every Python file of the repository, each once: links into other trees are not followed."""
    return sorted(
        path
        for tree in TREES
        for path in (root / tree).rglob("*.py")
        if not any(parent.is_symlink() for parent in path.parents)
    )


def check_file(path: Path, root: Path = ROOT) -> Iterator[Breach]:
    """All breaches of one file."""
    name = path.relative_to(root).as_posix()
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    yield from check_sizes(name, text, tree)
    yield from check_name(name)
    if not name.startswith("tests/"):
        yield from check_imports(name, tree)
        yield from check_calls(name, tree)


def check_sizes(name: str, text: str, tree: ast.Module) -> Iterator[Breach]:
    """Files and functions that are too long."""
    num_lines = text.count("\n")
    limit = MAX_TEST_FILE_LINES if name.startswith("tests/") else MAX_FILE_LINES
    if num_lines > limit:
        yield Breach(name, "file-length", f"{num_lines} lines, at most {limit}")
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MAX_FUNCTION_LINES:
            where = f"{name}:{node.name}"
            yield Breach(where, "function-length", f"{length} lines, at most {MAX_FUNCTION_LINES}")


def check_name(name: str) -> Iterator[Breach]:
    """Files and folders whose name says nothing."""
    for part in Path(name).with_suffix("").parts:
        words = set(part.removeprefix("test_").split("_"))
        if words & BANNED_NAMES:
            yield Breach(name, "file-name", f"{part} says nothing about what is in it")


def check_imports(name: str, tree: ast.Module) -> Iterator[Breach]:
    """Imports of banned modules, and of modules that have their place elsewhere."""
    is_package = not name.startswith("tools/")
    for module in imported_modules(tree):
        top = module.partition(".")[0]
        if top in BANNED_MODULES:
            yield Breach(name, "banned-import", module)
        elif is_package and top in IMPORT_PLACES and not _may_import(name, top):
            places = ", ".join(IMPORT_PLACES[top])
            yield Breach(name, "import-place", f"{top} is imported only in {places}")


def _may_import(name: str, module: str) -> bool:
    is_inside = any(
        name == place or name.startswith(f"{place}/") for place in IMPORT_PLACES[module]
    )
    return is_inside and name not in IMPORT_EXCLUSIONS.get(module, ())


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """Every module that a file imports, wherever the statement stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def check_calls(name: str, tree: ast.Module) -> Iterator[Breach]:
    """Calls that run bytes as code, or copy a process with its locks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in BANNED_CALLS:
            yield Breach(name, "banned-call", f"line {node.lineno}: {ast.unparse(node.func)}")


if __name__ == "__main__":
    sys.exit(main())
