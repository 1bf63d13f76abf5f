"""The public door: which folders may be a workspace, and what is refused at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from accounts import is_root
from capabilities import require
from euid import ordinary_user
from listing import changes, tree_state
from steps import give_to_ordinary, make_workspace, put

from workspace_guard import Contract, Workspace
from workspace_guard.containment.choose import survey
from workspace_guard.errors import (
    ContractError,
    GuardError,
    InputError,
    ModeUnavailable,
    RecordMissing,
    StateUnusable,
    WorkspaceUnusable,
)
from workspace_guard.step.workspace import state_layout

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A folder that may be a workspace."""
    return make_workspace(tmp_path / "report", {"output.md": b"old\n"})


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder that is not there yet."""
    return tmp_path / "state"


def refusal(path: str | Path, state: Path, *, force: bool = False) -> str:
    """The message with which a folder is refused as a workspace, and its status."""
    with pytest.raises(WorkspaceUnusable) as caught:
        Workspace(path, state, force=force)
    assert caught.value.exit_status == 11
    return caught.value.message


# --- Lawful workspaces ----------------------------------------------------------------


def test_workspace_when_it_is_a_folder_then_is_known_by_its_real_path(
    top: Path, state: Path
) -> None:
    """However it is spelled, one folder is one workspace with one state."""
    (top.parent / "alias").symlink_to(top.parent)
    spellings = [top, f"{top}/", f"{top}/./", top.parent / "alias" / "report"]

    doors = [Workspace(spelling, state) for spelling in spellings]

    assert {door.path for door in doors} == {top.resolve()}
    assert len({door.state.path for door in doors}) == 1


def test_workspace_when_relative_then_is_that_of_the_working_folder(
    top: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`.` is the usual workspace, and stays it when the working folder changes."""
    monkeypatch.chdir(top)
    door = Workspace(".", state)
    monkeypatch.chdir("/")

    assert door.path == top.resolve()


def test_workspace_when_opened_then_nothing_is_made_or_changed(
    top: Path, state: Path
) -> None:
    """Opening a door looks, and does nothing."""
    before = tree_state(top.parent)

    door = Workspace(top, state)

    assert (door.runs(), repr(door)) == ([], f"Workspace({str(top)!r})")
    assert changes(before, tree_state(top.parent)) == {}


@pytest.mark.case("E11")
@pytest.mark.parametrize(
    "name", [b"bad\xff", b"two\nlines", "会议 纪要".encode(), b"-rf", b"x" * 255]
)
def test_workspace_when_its_name_is_unusual_then_has_a_state_of_its_own(
    tmp_path: Path, state: Path, name: bytes
) -> None:
    """A workspace's own name is bytes as well, and may be as long as names can be."""
    if b"\xff" in name:
        require("undecodable-names")
    folder = tmp_path / os.fsdecode(name)
    folder.mkdir()

    door = Workspace(folder, state)
    door.state.make()

    assert os.fsencode(door.path) == os.fsencode(folder)
    assert door.state.runs.is_dir()


def test_workspaces_when_of_one_name_then_have_states_of_their_own(
    tmp_path: Path, state: Path
) -> None:
    """The state is found by the real path, not by the name alone."""
    for parent in ("a", "b"):
        (tmp_path / parent / "report").mkdir(parents=True)

    doors = [Workspace(tmp_path / parent / "report", state) for parent in ("a", "b")]

    assert len({door.state.path for door in doors}) == 2


# --- What may not be one --------------------------------------------------------------


def test_workspace_when_missing_then_is_refused_by_name(
    tmp_path: Path, state: Path
) -> None:
    """A folder that is not there is not made."""
    message = refusal(tmp_path / "gone", state)

    assert message == f"workspace {tmp_path}/gone: does not exist"
    assert os.listdir(tmp_path) == []


def test_workspace_when_a_file_then_is_refused(tmp_path: Path, state: Path) -> None:
    """A document is not its workspace."""
    file = put(tmp_path, "output.md", b"x")

    assert refusal(file, state) == f"workspace {file}: is no folder"


def test_workspace_when_below_a_file_then_is_refused(
    tmp_path: Path, state: Path
) -> None:
    """What cannot be reached is no workspace."""
    file = put(tmp_path, "output.md", b"x")

    message = refusal(file / "x", state)

    assert message.startswith(f"workspace {file}/x: cannot be reached: ")


def test_workspace_when_a_link_then_is_refused_with_what_it_leads_to(
    top: Path, state: Path
) -> None:
    """Which folder was meant is said, so that it can be named."""
    link = top.parent / "link"
    link.symlink_to(top)

    assert refusal(link, state) == f"workspace {link}: is a link to {top}"
    assert refusal(f"{link}/", state) == f"workspace {link}: is a link to {top}"


def test_workspace_when_a_link_is_forced_then_is_the_folder_itself(
    top: Path, state: Path
) -> None:
    """`--force` takes the folder behind the link, by its real path."""
    link = top.parent / "link"
    link.symlink_to(top)

    assert Workspace(link, state, force=True).path == top.resolve()


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("nowhere", "does not exist"),
        ("output.md", "is no folder"),
        ("loop", "cannot be reached: "),
    ],
)
def test_workspace_when_a_link_leads_to_no_folder_then_force_does_not_help(
    tmp_path: Path, state: Path, text: str, fact: str
) -> None:
    """What is no folder is no workspace."""
    put(tmp_path, "output.md", b"x")
    (tmp_path / "loop").symlink_to(text)

    message = refusal(tmp_path / "loop", state, force=True)

    assert message.startswith(f"workspace {tmp_path}/loop: {fact}")


def test_workspace_when_it_is_the_root_then_is_refused(state: Path) -> None:
    """`/` is far more than one document's work."""
    assert refusal("/", state) == "workspace /: is the root of the file system"


def test_workspace_when_it_is_the_home_folder_then_is_refused_without_force(
    top: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step in the home folder itself is most likely a slip."""
    monkeypatch.setenv("HOME", str(top))

    assert refusal(top, state) == f"workspace {top}: is the home folder"
    assert Workspace(top, state, force=True).path == top


def test_workspace_when_home_is_spelled_by_a_link_then_is_refused_too(
    top: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the home folder really is counts."""
    (top.parent / "home").symlink_to(top)
    monkeypatch.setenv("HOME", str(top.parent / "home"))

    assert refusal(top, state) == f"workspace {top}: is the home folder"


def test_workspace_when_in_the_home_folder_then_is_lawful(
    top: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the home folder itself is refused."""
    monkeypatch.setenv("HOME", str(top.parent))

    assert Workspace(top, state).path == top


def test_workspace_when_the_account_has_no_home_then_is_lawful(
    top: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container the user may be a bare number."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)

    assert Workspace(top, state).path == top


@pytest.mark.parametrize("force", [False, True])
def test_workspace_when_its_path_holds_nul_then_is_refused(
    state: Path, *, force: bool
) -> None:
    """A path that can be none is told as such."""
    message = refusal("a\0b", state, force=force)

    assert message == r"workspace a\x00b: its path holds a NUL character"


def test_workspace_when_its_path_is_hostile_then_the_message_is_one_line(
    tmp_path: Path, state: Path
) -> None:
    """A path can neither hide a line of the message nor move the cursor."""
    message = refusal(tmp_path / "a\n\x1b[2K", state)

    assert message == rf"workspace {tmp_path}/a\n\x1b[2K: does not exist"


def test_workspace_when_it_may_not_be_entered_then_is_refused(
    place: Path, state: Path
) -> None:
    """An ordinary user is told which folder is closed."""
    require("ordinary-user")
    (place / "closed" / "report").mkdir(parents=True)
    give_to_ordinary(place)
    (place / "closed").chmod(0)

    with ordinary_user():
        message = refusal(place / "closed" / "report", state)

    head = f"workspace {place}/closed/report: cannot be reached: "
    assert message.startswith(head)


# --- Workspace and state folder -------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("inner", ["", "report-0123", "report-0123/runs"])
def test_workspace_when_in_the_state_folder_then_is_refused(
    state: Path, inner: str, *, force: bool
) -> None:
    """A step could reach the records of others; no word makes that good."""
    folder = state / inner
    folder.mkdir(parents=True)

    message = refusal(folder, state, force=force)

    assert message == f"workspace {folder}: lies in the state folder {state}"


@pytest.mark.parametrize("inner", ["", ".wsguard", "a/b"])
def test_state_when_in_the_workspace_then_is_refused(top: Path, inner: str) -> None:
    """A contained command must not reach the state."""
    if not inner:
        with pytest.raises(WorkspaceUnusable):
            Workspace(top, top)
        return

    with pytest.raises(StateUnusable) as caught:
        Workspace(top, top / inner)

    expected = (
        f"state folder {top}/{inner}: lies in the workspace {top}, "
        "where a step could reach it"
    )
    assert expected == caught.value.message
    assert caught.value.exit_status == 14


def test_state_when_a_link_leads_into_the_workspace_then_is_refused(
    top: Path, state: Path
) -> None:
    """Where the state really lies counts, not how it is spelled."""
    state.symlink_to(top / ".state")

    with pytest.raises(StateUnusable, match="lies in the workspace"):
        Workspace(top, state)


def test_state_when_it_lies_beside_a_workspace_of_like_name_then_is_lawful(
    top: Path,
) -> None:
    """A name that begins like another is not inside it."""
    door = Workspace(top, top.with_name("report-state"))

    assert door.layout.root == top.with_name("report-state")


@pytest.mark.parametrize("text", ["a\0b", "loop/x"])
def test_state_when_its_path_can_be_none_then_is_refused(
    top: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state folder that cannot be is told as such, when it is used at the latest."""
    (top.parent / "loop").symlink_to("loop")
    monkeypatch.chdir(top.parent)

    def use() -> None:
        Workspace(top, text).run_step(["true"])

    with pytest.raises(StateUnusable):
        use()


def test_state_when_none_is_given_then_is_the_platforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default it lies in the user's own state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))

    assert state_layout().root == tmp_path / "xdg" / "workspace-guard"


def test_state_when_no_home_is_known_then_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder named `~` is made in the working folder."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)

    with pytest.raises(StateUnusable, match="no home folder that is known"):
        state_layout()


def _file(path: Path) -> None:
    path.write_bytes(b"x")


def _closed(path: Path) -> None:
    path.mkdir()
    path.chmod(0o500)


def _in_a_closed_folder(path: Path) -> None:
    path.parent.chmod(0o500)


@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (_file, "File exists"),
        (_closed, "Permission denied"),
        (_in_a_closed_folder, "Permission denied"),
    ],
)
def test_state_when_it_cannot_be_written_then_nothing_runs(
    place: Path, make: Callable[[Path], None], fact: str
) -> None:
    """14, with the folder and the fact, before the step is built."""
    require("ordinary-user")
    top = make_workspace(place / "report", {"output.md": b"old\n"})
    (place / "there").mkdir()
    state = place / "there" / "state"
    give_to_ordinary(place)
    make(state)
    give_to_ordinary(place)
    before = tree_state(top)

    with ordinary_user(), pytest.raises(StateUnusable) as caught:
        Workspace(top, state).run_step(["touch", "output.md"])

    assert caught.value.message.startswith(f"state folder {place}/there/state")
    assert caught.value.message.endswith(f": {fact}")
    assert changes(before, tree_state(top)) == {}


def test_state_when_it_belongs_to_somebody_else_then_nothing_runs(
    place: Path,
) -> None:
    """What another user could read or write is not written there."""
    require("ordinary-user")
    if not is_root():
        pytest.skip("needs a folder of another owner")
    top = make_workspace(place / "report", {"output.md": b"old\n"})
    give_to_ordinary(place)
    door = Workspace(top, place / "state")
    door.state.path.mkdir(parents=True)
    (place / "state").chmod(0o777)
    door.state.path.chmod(0o777)

    with ordinary_user(), pytest.raises(StateUnusable) as caught:
        door.run_step(["true"])

    assert caught.value.message.endswith("belongs to uid 0, not to us")


# --- What is refused before anything runs ---------------------------------------------


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("touch output.md", "the command is one text: 'touch output.md'"),
        ("", "the command is one text: ''"),
        ([], "no command was given"),
        ((), "no command was given"),
        ([""], "no command was given"),
        (["", "a"], "no command was given"),
        (["a\0b"], "the command holds a NUL character"),
        (["a", "b\0"], "the command holds a NUL character"),
    ],
)
def test_command_when_it_can_be_none_then_is_refused_and_nothing_is_made(
    top: Path, state: Path, command: list[str], message: str
) -> None:
    """A program and its arguments, with no shell between."""
    before = tree_state(top.parent)

    with pytest.raises(ContractError) as caught:
        Workspace(top, state).run_step(command)

    assert (message, 10) == (caught.value.message, caught.value.exit_status)
    assert changes(before, tree_state(top.parent)) == {}


@pytest.mark.parametrize(
    ("contract", "kind"),
    [
        (Contract.of(target="tasks/run_1/x"), ContractError),
        (Contract.of(target=["a", "a"]), ContractError),
        (Contract.of(input="missing.md"), InputError),
        (Contract(name="../x"), ContractError),
    ],
)
def test_step_when_it_is_refused_then_nothing_of_it_is_left(
    top: Path, state: Path, contract: Contract, kind: type[GuardError]
) -> None:
    """No step, no run, no open journal; the workspace is as it was, times included."""
    door = Workspace(top, state)
    before = tree_state(top)

    with pytest.raises(kind):
        door.run_step(["touch", "output.md"], contract)

    assert changes(before, tree_state(top)) == {}
    assert (door.runs(), os.listdir(door.state.journal)) == ([], [])


@pytest.mark.parametrize("by_contract", [False, True])
def test_mode_when_this_machine_lacks_it_then_is_refused_and_never_a_weaker_one(
    top: Path, state: Path, *, by_contract: bool
) -> None:
    """A mode asked for by name is had or is an error, and nothing is made."""
    lacking = next((mode.name for mode in survey() if not mode.available), None)
    if lacking is None:
        pytest.skip("this machine has every mode")
    before = tree_state(top.parent)
    door = Workspace(top, state)

    contract = Contract(mode=lacking if by_contract else "auto")

    with pytest.raises(ModeUnavailable) as caught:
        door.run_step(["true"], contract, "auto" if by_contract else lacking)

    assert (caught.value.exit_status, caught.value.msgid) == (13, "mode-unavailable")
    assert changes(before, tree_state(top.parent)) == {}


def test_record_when_there_is_no_run_then_is_missing(top: Path, state: Path) -> None:
    """Asking for the latest of none is told as such."""
    with pytest.raises(RecordMissing, match="there is no such run"):
        Workspace(top, state).record()
