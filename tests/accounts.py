"""The accounts that run `wsguard` in tests: root, and an ordinary user.

Where pytest runs as root the ordinary user is uid 12345, who may be unable to enter the
checkout or to run the interpreter of root's virtual environment. So the package and
what it needs at run time are copied once a session into a folder that anybody may
enter, and an interpreter that this user can run is looked for.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

import workspace_guard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ORDINARY_UID = 12345
USERS = ("root", "ordinary")
RUN_DEADLINE_S = 60.0
OLDEST_PYTHON = (3, 11)


def is_root() -> bool:
    """Tell whether these tests run as root."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Somebody who runs the program."""

    name: str
    uid: int
    gid: int
    python: str
    """An interpreter that this account can run."""
    library: Path
    """Where the package and its requirements lie, readable to this account."""
    home: Path

    @property
    def is_somebody_else(self) -> bool:
        """Whether running as this account means changing the user id."""
        return hasattr(os, "geteuid") and os.geteuid() != self.uid

    @property
    def environment(self) -> dict[str, str]:
        """A small environment of this account's own."""
        inherited = {
            name: os.environ[name]
            for name in ("PATH", "LANG", "SYSTEMROOT", "PATHEXT")
            if name in os.environ
        }
        return {
            **inherited,
            "HOME": str(self.home),
            "PYTHONPATH": str(self.library),
            "PYTHONDONTWRITEBYTECODE": "1",
            "WORKSPACE_GUARD_STATE_DIR": str(self.home / "state"),
        }

    def start(
        self,
        command: list[str | bytes | os.PathLike[str]],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command as this account, its output piped."""
        return subprocess.Popen(
            command,
            cwd=cwd,
            env={**self.environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **self._identity(),
        )

    def run(
        self,
        command: list[str | bytes | os.PathLike[str]],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command as this account to its end, within a deadline."""
        with self.start(command, cwd=cwd, env=env) as process:
            try:
                out, err = process.communicate(timeout=RUN_DEADLINE_S)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def wsguard_command(
        self, *arguments: str | bytes | os.PathLike[str]
    ) -> list[str | bytes | os.PathLike[str]]:
        """The command line that is `wsguard ARGUMENTS…` for this account."""
        return [self.python, "-P", "-m", "workspace_guard", *arguments]

    def wsguard(
        self,
        *arguments: str | bytes | os.PathLike[str],
        cwd: Path,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the public command as this account to its end."""
        return self.run(self.wsguard_command(*arguments), cwd=cwd, env=env)

    def own(self, tree: Path) -> None:
        """Give a tree to this account, links themselves included; times stay."""
        if not self.is_somebody_else:
            return
        for folder, folders, files in os.walk(os.fsencode(tree), topdown=False):
            for name in (*folders, *files):
                os.lchown(os.path.join(folder, name), self.uid, self.gid)
        os.lchown(tree, self.uid, self.gid)

    def _identity(self) -> dict[str, object]:
        if not self.is_somebody_else:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


@functools.cache
def find_interpreter() -> str | None:
    """An interpreter that the ordinary user can run, new enough; or None.

    The one of these tests comes first, then one of the same version, then any.
    """
    if not is_root():
        return sys.executable
    same = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = [
        shutil.which(name, path="/usr/bin:/usr/local/bin:/bin")
        for name in (same, "python3")
    ]
    for candidate in (os.path.realpath(sys.executable), *found):
        if candidate is not None and _runs_for_ordinary(candidate):
            return candidate
    return None


def _runs_for_ordinary(interpreter: str) -> bool:
    probe = f"import sys; sys.exit(sys.version_info < {OLDEST_PYTHON})"
    try:
        done = subprocess.run(
            [interpreter, "-I", "-c", probe],
            check=False,
            capture_output=True,
            cwd="/",
            user=ORDINARY_UID,
            group=ORDINARY_UID,
            extra_groups=[],
        )
    except OSError:
        return False
    return done.returncode == 0


def copy_library(to: Path) -> None:
    """Copy the package and all that it needs at run time into a folder."""
    package = Path(workspace_guard.__file__).parent
    shutil.copytree(package, to / package.name)
    for name in sorted(_requirements("workspace-guard", set())):
        for file in importlib.metadata.distribution(name).files or ():
            source = Path(str(file.locate()))
            if ".." in file.parts or not source.is_file():
                continue  # a program in bin/, or bytecode that was never made
            target = to / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _requirements(name: str, seen: set[str]) -> set[str]:
    for needed in _direct_requirements(name):
        if needed not in seen:
            seen.add(needed)
            _requirements(needed, seen)
    return seen


def _direct_requirements(name: str) -> Iterator[str]:
    for line in importlib.metadata.requires(name) or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            yield requirement.name
