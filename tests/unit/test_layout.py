"""Where state lies, and that nobody else gets at it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from accounts import ORDINARY_UID
from capabilities import require
from euid import ordinary_user
from hypothesis import given
from hypothesis import strategies as st
from oscalls import each_call

from workspace_guard.errors import StateUnusable
from workspace_guard.files.layout import (
    RunFolder,
    StateLayout,
    WorkspaceState,
    make_private,
)

LONGEST = 255
"""Bytes that a name may have on the file systems in use."""


def mode_of(path: Path) -> int:
    """Who may read, write and enter."""
    return stat.S_IMODE(path.stat().st_mode) & 0o777


def undecodable(name: bytes) -> Path:
    """A path whose name is no UTF-8."""
    return Path("/w") / os.fsdecode(name)


# --- Names ----------------------------------------------------------------------------


def test_state_when_asked_then_lies_below_the_root_under_name_and_hash() -> None:
    """The name is for people, the hash tells two workspaces of one name apart."""
    layout = StateLayout(Path("/s"))
    assert layout.of(Path("/home/me/draft")).path == Path("/s/draft-d96afba1a6fb")
    assert layout.of(Path("/home/you/draft")).path == Path("/s/draft-9bde5bbda7a5")


def test_state_when_the_workspace_is_the_root_then_has_a_name_all_the_same() -> None:
    """`/` has no name of its own."""
    name = StateLayout(Path("/s")).of(Path("/")).path.name
    assert name == "root-8a5edab28263"


@pytest.mark.case("E11")
def test_state_when_the_name_is_no_utf8_then_can_be_made(tmp_path: Path) -> None:
    """A workspace may be called anything that the file system takes."""
    require("undecodable-names")
    state = StateLayout(tmp_path).of(undecodable(b"bad\xff"))
    state.make()
    assert [name[:-13] for name in os.listdir(os.fsencode(tmp_path))] == [b"bad\xff"]
    assert state.journal.is_dir()


@pytest.mark.parametrize(
    "name",
    [
        b"x" * LONGEST,
        "纪".encode() * 85,
        b"\xff" * LONGEST,
        b"a" + "\N{GRINNING FACE}".encode() * 63,
    ],
)
def test_state_when_the_name_is_long_then_can_be_made(
    tmp_path: Path, name: bytes
) -> None:
    """A name as long as can be leaves room for the hash, cut between characters."""
    state = StateLayout(tmp_path).of(undecodable(name))
    state.make()
    made = os.fsencode(state.path.name)
    assert len(made) <= LONGEST
    made.decode("utf-8")
    other = StateLayout(tmp_path).of(undecodable(name[:-4] + b"else"))
    assert other.path != state.path


@given(st.binary(min_size=1, max_size=LONGEST))
def test_state_when_any_name_then_is_one_part_below_the_root(raw: bytes) -> None:
    """No name of a workspace leads out of the state folder."""
    name = raw.replace(b"/", b"_").replace(b"\0", b"_")
    state = StateLayout(Path("/s")).of(undecodable(name)).path
    assert state.parent == Path("/s")
    assert len(os.fsencode(state.name)) <= LONGEST


def test_run_when_asked_then_each_thing_has_its_place() -> None:
    """These names are on disk; `runs show` and people's scripts rest on them."""
    state = WorkspaceState(Path("/s/w-1"))
    run = state.run("r1")
    assert run == RunFolder(Path("/s/w-1/runs/r1"))
    assert run.run_id == "r1"
    places = {
        "journal": state.journal,
        "runs": state.runs,
        "snapshots": state.snapshots,
        "runs/r1/record.json": run.record,
        "runs/r1/record.sha256": run.record_digest,
        "runs/r1/execution.log": run.log,
        "runs/r1/quarantine": run.quarantine,
        "runs/r1/previous": run.previous,
    }
    assert {Path("/s/w-1") / name: path for name, path in places.items()} == {
        path: path for path in places.values()
    }


# --- Owner-only -----------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_make_when_the_umask_is_open_then_folders_are_owner_only(
    tmp_path: Path, umask: int
) -> None:
    """What a run keeps is nobody else's business, whatever the umask."""
    state = StateLayout(tmp_path / "state").of(Path("/w"))
    before = os.umask(umask)
    try:
        state.make()
    finally:
        os.umask(before)
    made = (state.path.parent, state.path, state.journal, state.runs, state.snapshots)
    assert {mode_of(folder) for folder in made} == {0o700}


def test_make_when_watched_then_no_folder_is_open_to_others_for_a_moment(
    tmp_path: Path,
) -> None:
    """A folder is made closed; it is not made and then closed."""
    root = tmp_path / "state"
    before = os.umask(0)
    try:
        with each_call(lambda _call: modes.extend(map(mode_of, root.rglob("*")))):
            modes: list[int] = []
            StateLayout(root).of(Path("/w")).make()
    finally:
        os.umask(before)
    assert set(modes) == {0o700}


def test_make_when_done_twice_then_changes_nothing(tmp_path: Path) -> None:
    """Every run makes them; what is in them stays."""
    state = StateLayout(tmp_path).of(Path("/w"))
    state.make()
    (state.journal / "open.json").write_bytes(b"{}")
    state.make()
    assert (state.journal / "open.json").read_bytes() == b"{}"


def test_make_when_the_folders_were_opened_to_others_then_closes_them(
    tmp_path: Path,
) -> None:
    """Folders of ours are closed again, however they came to be open."""
    state = StateLayout(tmp_path).of(Path("/w"))
    state.make()
    for folder in (state.path, state.journal, state.runs):
        folder.chmod(0o777)
    state.make()
    assert {mode_of(f) for f in (state.path, state.journal, state.runs)} == {0o700}


@pytest.mark.parametrize("mode", [0o755, 0o1777, 0o2770])
def test_make_when_the_root_was_there_then_it_keeps_its_mode(
    tmp_path: Path, mode: int
) -> None:
    """A folder that somebody chose (`/tmp`, a share) is not ours to close."""
    root = tmp_path / "chosen"
    root.mkdir()
    root.chmod(mode)
    state = StateLayout(root).of(Path("/w"))
    state.make()
    assert mode == stat.S_IMODE(root.stat().st_mode)
    assert mode_of(state.path) == 0o700


# --- What is refused ------------------------------------------------------------------


def test_make_private_when_it_belongs_to_somebody_else_then_refuses(
    tmp_path: Path,
) -> None:
    """In a folder where all may write, somebody else may have been there first."""
    require("root")
    planted = tmp_path / "planted"
    planted.mkdir(mode=0o777)
    os.chown(planted, ORDINARY_UID, ORDINARY_UID)
    with pytest.raises(StateUnusable, match=f"belongs to uid {ORDINARY_UID}, not to"):
        make_private(planted)
    assert mode_of(planted) == 0o755


def test_make_private_when_an_ordinary_user_meets_roots_then_refuses(
    place: Path,
) -> None:
    """The effective user is whose folder it has to be."""
    require("root")
    planted = place / "planted"
    planted.mkdir(mode=0o755)
    with ordinary_user(place), pytest.raises(StateUnusable, match="belongs to uid 0"):
        make_private(planted)


@pytest.mark.parametrize("kind", ["link", "dangling", "file", "loop"])
def test_make_private_when_no_folder_of_its_own_then_refuses(
    tmp_path: Path, kind: str
) -> None:
    """A link is not followed: neither is its target closed, nor anything made."""
    require("symlinks")
    target = tmp_path / "target"
    target.mkdir(mode=0o755)
    place = tmp_path / "place"
    if kind == "file":
        place.write_bytes(b"mine\n")
    else:
        place.symlink_to({"link": target, "dangling": "nothing", "loop": place}[kind])
    with pytest.raises(StateUnusable) as caught:
        make_private(place)
    assert str(place) in caught.value.message
    assert caught.value.exit_status == 14
    assert mode_of(target) == 0o755
    assert sorted(os.listdir(tmp_path)) == ["place", "target"]


def test_make_when_the_root_is_a_file_then_refuses(tmp_path: Path) -> None:
    """A state folder that is no folder is named, with the way out."""
    (tmp_path / "state").write_bytes(b"")
    with pytest.raises(StateUnusable, match="state") as caught:
        StateLayout(tmp_path / "state").of(Path("/w")).make()
    assert "--state-dir" in caught.value.hint


def test_make_when_the_root_cannot_be_made_then_refuses(place: Path) -> None:
    """What the file system refuses is told as it says it."""
    with ordinary_user(place):
        (place / "closed").mkdir(mode=0o500)
        with pytest.raises(StateUnusable, match="Permission denied"):
            StateLayout(place / "closed" / "state").of(Path("/w")).make()


# --- All of them ----------------------------------------------------------------------


def test_workspaces_when_listed_then_are_those_with_runs_in_order(
    tmp_path: Path,
) -> None:
    """Other things in the state folder are not workspaces."""
    layout = StateLayout(tmp_path)
    states = [layout.of(Path(f"/{name}")) for name in ("b", "a")]
    for state in states:
        state.make()
    (tmp_path / "ledger.sqlite3").touch()
    (tmp_path / "handoff").mkdir()
    assert list(layout.workspaces()) == sorted(states, key=lambda state: state.path)


def test_workspaces_when_nothing_was_made_then_are_none(tmp_path: Path) -> None:
    """A state folder that is not there yet holds nothing."""
    assert list(StateLayout(tmp_path / "nothing").workspaces()) == []


def test_workspaces_when_the_root_is_a_file_then_refuses(tmp_path: Path) -> None:
    """A reading command names the state folder that cannot be read."""
    (tmp_path / "state").write_bytes(b"")
    with pytest.raises(StateUnusable, match="Not a directory"):
        list(StateLayout(tmp_path / "state").workspaces())
