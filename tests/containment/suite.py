"""What every containment mode must make of the same hostile programs.

A mode subclasses `ContainmentSuite` and brings its table: what the record says of each
program. What holds in every mode stands here: the parent is exactly as it was, nothing
outside was touched by the guard, and what the program made is kept.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import hostile
import pytest
from capabilities import require
from listing import TreeState, changes, tree_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from accounts import Account

STEP = b"tasks/repair_1"
GIT_OBJECT = re.compile(rb"(\.git/objects)/.+")

NEEDS: dict[str, tuple[str, ...]] = {
    "bound_socket": ("fifo",),
    "chown": ("root",),
    "device": ("root",),
    "fifo": ("fifo",),
    "git_by_discovery": ("git",),
    "git_commit": ("git",),
    "hard_link": ("hard-links",),
    "hard_link_in_the_step": ("hard-links",),
    "odd_names": ("undecodable-names",),
    "one_of_two_names": ("hard-links",),
    "outside_file_linked_in": ("hard-links",),
    "target_is_a_fifo": ("fifo",),
    "target_is_a_second_name": ("hard-links",),
    "xattr": ("xattr", "hard-links"),
}
"""What of the machine a program needs to do its worst."""

ROOT_ONLY = frozenset({"chown", "device"})

CASES: dict[str, tuple[pytest.MarkDecorator, ...]] = {
    "absolute_path": (pytest.mark.case("E71"),),
    "bound_socket": (pytest.mark.case("E17"),),
    "chmod": (pytest.mark.case("S7"),),
    "created_tree": (pytest.mark.case("E65"),),
    "daemon": (
        pytest.mark.case("E56"),
        pytest.mark.case("S45"),
    ),
    "deep_delete": (
        pytest.mark.case("E8"),
        pytest.mark.case("S14"),
        pytest.mark.case("S34"),
        pytest.mark.case("S40"),
    ),
    "edits_its_inputs": (pytest.mark.case("S49"),),
    "fails_after_writing": (pytest.mark.case("E60"),),
    "fifo": (pytest.mark.case("S13"),),
    "folder_for_file": (pytest.mark.case("S32"),),
    "git_commit": (pytest.mark.case("E73"),),
    "hard_link_in_the_step": (pytest.mark.case("E67"),),
    "in_place_mtime_back": (pytest.mark.case("S47"),),
    "leaves_nothing": (pytest.mark.case("S46"),),
    "link_for_file": (pytest.mark.case("E7"),),
    "mode_to_the_same": (pytest.mark.case("S5"),),
    "odd_names": (pytest.mark.case("E10"),),
    "outside_file_linked_in": (pytest.mark.case("S25"),),
    "rename_folder": (pytest.mark.case("S37"),),
    "rename_storm": (pytest.mark.case("S22"),),
    "symlink_swap": (
        pytest.mark.case("E5"),
        pytest.mark.case("S29"),
    ),
    "target_is_a_dangling_link": (pytest.mark.case("E61"),),
    "target_is_a_fifo": (pytest.mark.case("E16"),),
    "target_is_a_link": (pytest.mark.case("E4"),),
    "target_is_a_second_name": (pytest.mark.case("E2"),),
    "twin_renamed_over": (pytest.mark.case("S4"),),
    "whiteout_name": (pytest.mark.case("E31"),),
    "xattr": (pytest.mark.case("E1"),),
}
"""The collected cases that a program brings about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a mode makes of one program."""

    verdict: str = "escaped"
    exit_status: int = 30
    escapes: Mapping[bytes, str] = field(default_factory=dict)
    """Path in the workspace to kind; git's objects are folded into one path."""
    effects: frozenset[str] = frozenset({"restored"})
    kept: Mapping[bytes, bytes] = field(default_factory=dict)
    """The bytes that must be found in quarantine, by the path they were written to."""
    types: Mapping[bytes, str] = field(default_factory=dict)
    """What some of the escapes have left in their place."""
    leftovers: tuple[str, ...] = ()
    """How each process that outlived the command was ended."""
    outside: tuple[bytes, ...] = ()
    """What the program itself has made outside the workspace."""


PROMOTED = Expected(verdict="promoted", exit_status=0, effects=frozenset())


def refused(verdict: str, exit_status: int) -> Expected:
    """What a mode must make of a program that left the parent alone and failed."""
    return Expected(verdict=verdict, exit_status=exit_status, effects=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What came of one program."""

    verdict: str
    exit_status: int
    escapes: Mapping[bytes, str]
    effects: frozenset[str]
    kept: Mapping[bytes, bytes]
    types: Mapping[bytes, str]
    leftovers: tuple[str, ...]
    parent: Mapping[bytes, Any]
    """What differs in the parent, but for what was promoted."""
    outside: tuple[bytes, ...]
    """What differs in the folder beside the workspace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where one program is let loose."""

    account: Account
    workspace: Path
    state: Path
    outside: Path
    script: Path

    def prepare(self, *, repository: bool) -> None:
        """Make the folder beside the workspace and, if asked, a repository in it."""
        self.outside.mkdir()
        (self.outside / "precious.md").write_bytes(b"precious\n")
        (self.outside / "check.sh").write_bytes(b"#!/bin/sh\nexit 1\n")
        self.account.own(self.outside)
        if repository:
            self._commit_all()

    def _commit_all(self) -> None:
        git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org"]
        for arguments in (
            ["init", "-qb", "trunk"],
            ["add", "-A"],
            ["commit", "-qm", "start"],
        ):
            done = self.account.run([*git, *arguments], cwd=self.workspace)
            assert done.returncode == 0, done.stderr

    def look(self, *, promoted: bool) -> tuple[TreeState, TreeState]:
        """List the parent without the step, and the folder outside.

        Building a step moves the time of `tasks`; a promotion replaces `output.md`.
        """
        without = (STEP, b"output.md") if promoted else (STEP,)
        moved = (b"tasks", b".") if promoted else (b"tasks",)
        parent = tree_state(self.workspace, without=without, any_time=moved)
        return parent, tree_state(self.outside, any_time=(b".",))

    def let_loose(self, name: str, mode: str) -> tuple[int, dict[str, Any]]:
        """Run a program as the step's command; give exit status and record."""
        options = ["-w", self.workspace, "--name", "repair_1", "--mode", mode]
        task = ["--task", "Add the missing sections; write to output.md"]
        command = [self.account.python, self.script, name]
        done = self.account.wsguard(
            "run",
            *options,
            *task,
            "--json",
            "--",
            *command,
            cwd=self.workspace.parent,
            env={"WORKSPACE_GUARD_STATE_DIR": str(self.state)},
        )
        assert done.stdout, done.stderr.decode(errors="replace")
        return done.returncode, json.loads(done.stdout)


def exact_path(row: Mapping[str, Any], key: str = "path") -> bytes:
    """The bytes of a path in a record (spec 4)."""
    if f"{key}_bytes" in row:
        return base64.b64decode(row[f"{key}_bytes"])
    return str(row[key]).encode()


def in_workspace(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The escapes inside the workspace; what lies outside is only reported."""
    return [row for row in record["escapes"] if not exact_path(row).startswith(b"/")]


def fold(path: bytes) -> bytes:
    """Take the names of git's objects, which nobody can write down, for one."""
    return GIT_OBJECT.sub(rb"\1/*", path)


def read_kept(run: Path, row: Mapping[str, Any]) -> bytes | None:
    """The bytes in quarantine of one escape, or None where there is no file."""
    if row["quarantine"] is None:
        return None
    kept = os.path.join(os.fsencode(run), exact_path(row, "quarantine"))
    if os.path.islink(kept) or not os.path.isfile(kept):
        return None
    with open(kept, "rb") as file:
        return file.read()


def every_program() -> list[object]:
    """The parameters (user, program), each with the marks of its cases."""
    return [
        pytest.param(user, name, marks=CASES.get(name, ()), id=f"{user}-{name}")
        for user in ("root", "ordinary")
        for name in hostile.PROGRAMS
        if user == "root" or name not in ROOT_ONLY
    ]


@pytest.mark.slow
class ContainmentSuite:
    """The tests of a mode; a subclass is marked with it and has its table."""

    mode: ClassVar[str]
    expected: ClassVar[Mapping[str, Expected]]

    @pytest.fixture
    def ground(
        self, user: Account, place: Path, workspace: Path, library: Path
    ) -> Ground:
        """A workspace, a state folder, a folder beside, and the programs."""
        script = library / "hostile.py"
        if not script.exists():
            shutil.copy2(Path(hostile.__file__), script)
        return Ground(
            account=user,
            workspace=workspace,
            state=place / "state",
            outside=place / "outside",
            script=script,
        )

    @pytest.mark.parametrize(("user", "name"), every_program(), indirect=["user"])
    def test_parent_when_a_program_turns_hostile_then_is_as_it_was(
        self, ground: Ground, name: str
    ) -> None:
        """Whatever a command does, its escape is named and the parent is as before."""
        for facility in NEEDS.get(name, ()):
            require(facility)

        expected = self.expected[name]
        ground.prepare(repository=name.startswith("git_"))
        promoted = expected.verdict == "promoted"
        parent, outside = ground.look(promoted=promoted)
        exit_status, record = ground.let_loose(name, self.mode)
        parent_now, outside_now = ground.look(promoted=promoted)
        rows = in_workspace(record)
        [run] = ground.state.glob(f"*/runs/{record['run_id']}")
        kept = {exact_path(row): read_kept(run, row) for row in rows}
        left = {exact_path(row): (row["after"] or {}).get("type") for row in rows}

        assert Seen(
            verdict=expected.verdict,
            exit_status=expected.exit_status,
            escapes=expected.escapes,
            effects=expected.effects,
            kept=expected.kept,
            types=expected.types,
            leftovers=expected.leftovers,
            parent={},
            outside=expected.outside,
        ) == Seen(
            verdict=record["verdict"],
            exit_status=exit_status,
            escapes={fold(exact_path(row)): row["kind"] for row in rows},
            effects=frozenset(row["effect"] for row in rows),
            kept={path: kept.get(path) for path in expected.kept},
            types={path: left[path] for path in expected.types if path in left},
            leftovers=tuple(row["ended"] for row in record["processes"]),
            parent=changes(parent, parent_now),
            outside=tuple(changes(outside, outside_now)),
        )

    def test_table_when_compared_with_the_programs_then_has_each_of_them(self) -> None:
        """No hostile program goes without its row."""
        assert set(hostile.PROGRAMS) == set(self.expected)
