"""What the command of a step finds in its environment, and its private TMPDIR."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from euid import ordinary_user
from steps import give_to_ordinary, make_workspace, put, staged_with, state_of

from workspace_guard.errors import StateUnusable
from workspace_guard.step.contract import Contract
from workspace_guard.step.environment import (
    environment,
    remove_scratch,
    scratch_folder,
)

if TYPE_CHECKING:
    from workspace_guard.files.layout import RunFolder
    from workspace_guard.step.stage import StagedStep

CALLER = {
    "PATH": "/usr/bin",
    "HOME": "/home/a",
    "LANG": "C.UTF-8",
    "TERM": "xterm",
    "LC_ALL": "C",
    "API_KEY": "secret",
    "TMPDIR": "/tmp",
    "GIT_CEILING_DIRECTORIES": "/",
    "WSGUARD_RUN": "an outer one",
}


@pytest.fixture
def staged(tmp_path: Path) -> StagedStep:
    """A built step."""
    return staged_with(make_workspace(tmp_path / "workspace", {"output.md": b"x"}))[0]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """The folder of a run."""
    run = state_of(tmp_path / "workspace", tmp_path / "state").run("r-1")
    run.path.mkdir(mode=0o700)
    return run


def made(staged: StagedStep, **options: object) -> dict[str, str]:
    """The environment of a command, without the path of the workspace in it."""
    tasks = staged.path.parent
    found = environment(
        Contract.of(**options),
        CALLER,
        staged,
        tasks=tasks,
        scratch=Path("/scratch"),
        run_id="r-1",
    )
    return {name: value.replace(str(tasks), "TASKS") for name, value in found.items()}


OURS = {
    "TMPDIR": "/scratch",
    "GIT_CEILING_DIRECTORIES": "TASKS",
    "WSGUARD_STEP": "TASKS/run_1",
    "WSGUARD_RUN": "r-1",
}


# --- Variables ------------------------------------------------------------------------


@pytest.mark.case("E73")
def test_environment_when_nothing_is_said_then_is_the_callers_and_ours(
    staged: StagedStep,
) -> None:
    """The caller's, and what keeps temporary files and git in their places."""
    assert made(staged) == CALLER | OURS


def test_environment_when_clean_then_starts_from_four_variables(
    staged: StagedStep,
) -> None:
    """`--clean-env` passes no secret on."""
    assert made(staged, clean_env=True) == OURS | {
        "PATH": "/usr/bin",
        "HOME": "/home/a",
        "LANG": "C.UTF-8",
        "TERM": "xterm",
    }


@pytest.mark.parametrize(
    ("env", "clean", "expected"),
    [
        (["A=1"], False, CALLER | OURS | {"A": "1"}),
        (["A="], False, CALLER | OURS | {"A": ""}),
        (["LC_ALL=de_DE"], False, CALLER | OURS | {"LC_ALL": "de_DE"}),
        (["TMPDIR=/x"], False, CALLER | OURS | {"TMPDIR": "/x"}),
        (["WSGUARD_RUN=x"], False, CALLER | OURS | {"WSGUARD_RUN": "x"}),
        (["TMPDIR"], False, CALLER | OURS | {"TMPDIR": "/tmp"}),
        (["API_KEY"], False, CALLER | OURS),
        (["NOWHERE"], False, CALLER | OURS),
        (
            ["API_KEY", "NOWHERE", "A=1", "HOME=/x"],
            True,
            {
                "PATH": "/usr/bin",
                "LANG": "C.UTF-8",
                "TERM": "xterm",
                **OURS,
                "API_KEY": "secret",
                "A": "1",
                "HOME": "/x",
            },
        ),
    ],
)
def test_environment_when_the_contract_sets_a_variable_then_that_wins(
    staged: StagedStep, env: list[str], *, clean: bool, expected: dict[str, str]
) -> None:
    """`NAME=VALUE` wins over ours too; `NAME` alone is the caller's own value."""
    assert expected == made(staged, env=env, clean_env=clean)


def test_environment_when_made_then_the_callers_is_left_alone(
    staged: StagedStep,
) -> None:
    """What a step is given is never written into the caller's own."""
    before = dict(CALLER)

    made(staged, env=["A=1"])

    assert before == CALLER


def test_environment_when_the_caller_lacks_some_then_clean_lacks_them_too(
    staged: StagedStep,
) -> None:
    """A variable that is nowhere is not made up."""
    found = environment(
        Contract(clean_env=True),
        {"PATH": "/bin"},
        staged,
        tasks=staged.path.parent,
        scratch=Path("/scratch"),
        run_id="r-1",
    )

    assert set(found) == {"PATH", *OURS}


# --- The private TMPDIR ---------------------------------------------------------------


def test_scratch_when_made_then_is_the_owners_only_and_outside_the_workspace(
    tmp_path: Path, run: RunFolder
) -> None:
    """A private folder where programs expect one, with room for a socket's path."""
    with scratch_folder(tmp_path / "workspace", run) as scratch:
        assert scratch.parent == Path(tempfile.gettempdir()).resolve()
        assert oct(stat.S_IMODE(scratch.stat().st_mode)) == "0o700"
        assert not scratch.is_relative_to(tmp_path)


def test_scratch_when_the_run_ends_then_is_gone_with_all_that_is_in_it(
    tmp_path: Path, run: RunFolder
) -> None:
    """What a command has put aside goes, links without what they lead to."""
    outside = put(tmp_path, "outside", b"kept\n")

    with scratch_folder(tmp_path / "workspace", run) as scratch:
        put(scratch, "a/b/c", b"x")
        (scratch / "a").chmod(0o000)
        (scratch / "link").symlink_to(outside)
        (scratch / "folder").symlink_to(tmp_path)

    assert not os.path.lexists(scratch)
    assert outside.read_bytes() == b"kept\n"


def test_scratch_when_the_run_fails_then_is_gone_too(
    tmp_path: Path, run: RunFolder
) -> None:
    """No error leaves a folder behind."""
    seen: list[Path] = []

    def fail() -> None:
        with scratch_folder(tmp_path / "workspace", run) as scratch:
            seen.append(scratch)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()

    assert not seen[0].exists()


def test_scratch_when_the_command_removed_it_then_nobody_minds(
    tmp_path: Path, run: RunFolder
) -> None:
    """A command may remove its TMPDIR, or put something else there."""
    outside = put(tmp_path, "outside/kept", b"kept\n")

    with scratch_folder(tmp_path / "workspace", run) as scratch:
        scratch.rmdir()
    with scratch_folder(tmp_path / "workspace", run) as scratch:
        scratch.rmdir()
        scratch.symlink_to(outside.parent)

    assert not os.path.lexists(scratch)
    assert outside.read_bytes() == b"kept\n"


def test_scratch_when_temporary_files_lie_in_the_workspace_then_lies_with_the_run(
    tmp_path: Path, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TMPDIR is outside the workspace, also where the caller's is not."""
    inside = tmp_path / "workspace" / "tmp"
    inside.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(inside))

    with scratch_folder(tmp_path / "workspace", run) as scratch:
        assert scratch == run.path / "tmp"
        assert oct(stat.S_IMODE(scratch.stat().st_mode)) == "0o700"

    assert (os.listdir(inside), run.scratch.exists()) == ([], False)


def test_scratch_when_temporary_files_lead_into_the_workspace_by_a_link_then_too(
    tmp_path: Path, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a folder really is counts, not how it is spelled."""
    inside = tmp_path / "workspace" / "tmp"
    inside.mkdir(parents=True)
    (tmp_path / "alias").symlink_to(inside)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "alias"))

    with scratch_folder(tmp_path / "workspace", run) as scratch:
        assert scratch == run.path / "tmp"


def test_scratch_when_it_cannot_be_made_then_the_folder_is_named(
    place: Path, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary folder that is closed is said to be, before anything runs."""
    require("ordinary-user")
    closed = place / "closed"
    closed.mkdir()
    give_to_ordinary(place)
    closed.chmod(0o500)
    monkeypatch.setattr(tempfile, "tempdir", str(closed))

    def make() -> None:
        with scratch_folder(place / "workspace", run):
            pass

    with ordinary_user(), pytest.raises(StateUnusable) as caught:
        make()

    expected = f"state folder {closed}: no private temporary folder: Permission denied"
    assert expected == caught.value.message
    assert caught.value.hint == "set TMPDIR to a folder that can be written"


def test_scratch_when_there_is_no_temporary_folder_at_all_then_is_refused(
    tmp_path: Path, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without one is no crash."""

    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)

    def make() -> None:
        with scratch_folder(tmp_path / "workspace", run):
            pass

    with pytest.raises(StateUnusable, match="No usable temporary directory found"):
        make()


def test_scratch_when_removed_twice_then_nothing_happens(tmp_path: Path) -> None:
    """Recovery removes what may be gone already."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    remove_scratch(os.fsencode(scratch))
    remove_scratch(os.fsencode(scratch))
    remove_scratch(os.fsencode(tmp_path / "nowhere" / "scratch"))

    assert os.listdir(tmp_path) == []
