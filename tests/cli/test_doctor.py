"""`wsguard doctor`: what this machine can enforce, and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from guarded import House

import workspace_guard

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture
def house(workspace: Path, state_dir: Path) -> House:
    """The sample workspace and a state folder."""
    return House(workspace, state_dir)


def test_doctor_when_json_then_every_mode_with_its_strength(house: House) -> None:
    """The modes stand strongest first, each with its reason."""
    done = house.call("doctor", "--json")
    document = done.document
    modes = {mode["name"]: mode for mode in document["modes"]}

    assert (done.status, document["schema"]) == (0, "workspace-guard/doctor/1")
    assert list(modes) == ["deny", "absorb", "detect"]
    assert modes["detect"]["available"]
    assert set(modes["detect"]["enforcement"].values()) == {"partial"}
    assert all(mode["reason"] for mode in modes.values())
    assert document["auto"] == "detect"
    assert document["state_dir"] == str(house.state)


def test_doctor_when_asked_then_makes_nothing(house: House) -> None:
    """Probes undo themselves, and the state folder is not made."""
    with house.unchanged(without=()):
        house.call("doctor")

    assert not house.state.exists()
    assert sorted(p.name for p in house.state.parent.iterdir()) == [
        "temporary",
        "workspace",
    ]


def test_doctor_when_the_state_folder_is_unusable_then_says_so(house: House) -> None:
    """What would be refused later is told with the way out."""
    house.state.write_bytes(b"a file\n")
    done = house.call("doctor", "--json")
    [found] = [
        item for item in done.document["facilities"] if item["name"] == "state folder"
    ]

    assert (done.status, found["available"]) == (0, False)
    assert "--state-dir" in found["advice"]


def test_doctor_when_text_then_names_the_mode_that_auto_takes(house: House) -> None:
    """A person reads which mode they would get."""
    done = house.call("doctor")

    assert (done.status, done.err) == (0, "")
    assert "`--mode auto` takes detect." in done.out.decode()


@pytest.mark.parametrize("command", [[], ["run"], ["recover"], ["runs", "show"]])
def test_help_when_asked_for_then_has_an_example(
    house: House, command: list[str]
) -> None:
    """Each command explains itself."""
    done = house.call_here(*command, "--help")

    assert done.status == 0
    assert b"Usage: wsguard" in done.out
    assert command == [] or b"Example:" in done.out


def test_version_when_asked_for_then_is_the_packages(house: House) -> None:
    """`--version` names the program and its version."""
    done = house.call("--version")

    assert done.out.decode() == f"wsguard, version {workspace_guard.__version__}\n"
