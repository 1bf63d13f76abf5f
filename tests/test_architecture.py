"""The floors, the public names, and what each module must say of itself."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import workspace_guard

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(workspace_guard.__file__).parent
ROOT = PACKAGE.parent
MODULES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES = 450
WITHOUT_ROOM = {"__init__.py", "__main__.py"}
NOT_EVERYWHERE = frozenset(
    {
        "_ctypes",
        "ctypes",
        "fcntl",
        "grp",
        "msvcrt",
        "posix",
        "pty",
        "pwd",
        "resource",
        "spwd",
        "syslog",
        "termios",
        "tty",
        "winreg",
    }
)
"""Modules that some platform lacks, or whose use belongs in the kernel room."""


def _name(module: Path) -> str:
    return module.relative_to(PACKAGE).as_posix()


every_module = pytest.mark.parametrize("module", MODULES, ids=_name)


def test_imports_when_checked_by_contract_then_go_down_only() -> None:
    """A module imports only from floors below its own; each library has one room."""
    check = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", check, "--no-cache"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", workspace_guard.__all__)
def test_public_name_when_used_first_then_is_loaded(name: str) -> None:
    """Every name of `__all__` can be reached, and is what its module calls so."""
    value = getattr(workspace_guard, name)
    assert value.__name__ == name


def test_public_name_when_unknown_then_is_an_attribute_error() -> None:
    """Lazy loading does not make up names."""
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = workspace_guard.Nothing


def test_package_when_imported_then_loads_nothing_heavy() -> None:
    """The map of the house costs no start time: it loads no other module of ours."""
    probe = "import sys, workspace_guard; print(*sorted(sys.modules), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", probe], check=True, capture_output=True, text=True
    )
    loaded = set(done.stdout.split())
    heavy = {"click", "rich", "watchdog", "psutil", "typing", "dataclasses", "yaml"}
    ours = {name for name in loaded if name.startswith("workspace_guard.")}
    assert (loaded & heavy, ours) == (set(), set())


@every_module
def test_module_when_read_then_says_which_room_it_is(module: Path) -> None:
    """A module's docstring has one line of purpose and its `Room:`."""
    docstring = ast.get_docstring(ast.parse(module.read_text("utf-8"))) or ""
    assert docstring != ""
    assert module.name in WITHOUT_ROOM or "\nRoom: " in docstring


@every_module
def test_module_when_counted_then_is_one_subject(module: Path) -> None:
    """A room longer than this holds more than one subject."""
    assert len(module.read_text("utf-8").splitlines()) <= MOST_LINES


@every_module
def test_module_outside_kernel_when_imported_then_needs_no_linux(module: Path) -> None:
    """What only some platforms have is imported in kernel/, or under a guard."""
    if _name(module).startswith("kernel/"):
        return
    tree = ast.parse(module.read_text("utf-8"))
    found = {name for name in _imported(tree.body) if name in NOT_EVERYWHERE}
    assert found == set()


def _imported(body: list[ast.stmt]) -> Iterator[str]:
    """The top names of the imports that run when a module is loaded.

    Not those of functions, nor those under a test of the platform or of typing, nor
    those whose ImportError is caught.
    """
    for statement in body:
        match statement:
            case ast.Import(names=names):
                yield from (alias.name.split(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.split(".")[0]
            case ast.If(test=test) if not _is_guard(test):
                yield from _imported([*statement.body, *statement.orelse])
            case ast.Try(handlers=handlers) if not _catches_import_error(handlers):
                yield from _imported(statement.body)
            case ast.With() | ast.ClassDef():
                yield from _imported(statement.body)


def _is_guard(test: ast.expr) -> bool:
    text = ast.unparse(test)
    return any(word in text for word in ("sys.platform", "os.name", "TYPE_CHECKING"))


def _catches_import_error(handlers: list[ast.ExceptHandler]) -> bool:
    return any(
        handler.type is not None
        and ast.unparse(handler.type) in ("ImportError", "ModuleNotFoundError")
        for handler in handlers
    )


def test_every_module_when_imported_then_loads() -> None:
    """No module breaks when it is loaded by itself."""
    for module in MODULES:
        parts = module.relative_to(ROOT).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if module.name != "__main__.py":
            assert importlib.import_module(name).__name__ == name
