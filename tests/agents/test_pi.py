"""The agent program of the incident itself, with its model's turns written down."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from listing import changes, tree_state
from scripted_model import Call, Say, ScriptedModel, Turn

if TYPE_CHECKING:
    from accounts import Account
    from conftest import Pi

EXAMPLE = Path(__file__).parents[2] / "examples" / "document-revision" / "workspace"
TASK = "参考 ../../template.md、基于 ../../output.md,补齐缺失的两节,输出到 output.md"
STEP = b"tasks/repair_1"
MISSING = "## 阻塞信息\n\n- 待法务答复。\n\n## 非阻塞信息\n\n- 无。\n\n"
SUCCESS = Say("两节已补齐。Outcome: SUCCESS")


def _edit(path: str) -> Call:
    """Put the missing sections before the third heading, with the agent's own tool."""
    edits = [{"oldText": "## 范围\n", "newText": MISSING + "## 范围\n"}]
    return Call("edit", {"path": path, "edits": edits})


INCIDENT: list[Turn] = [
    Call("read", {"path": "TASK.md"}),
    Call("bash", {"command": "ls -la . inputs ../..; cat ../../output.md"}),
    _edit("../../output.md"),
    SUCCESS,
]
GOOD: list[Turn] = [
    Call("read", {"path": "TASK.md"}),
    Call(
        "bash", {"command": "cp --no-preserve=mode inputs/output.snapshot.md output.md"}
    ),
    _edit("output.md"),
    SUCCESS,
]
CORRECTED: list[Turn] = [*INCIDENT[:3], *GOOD[1:]]


@pytest.fixture
def document(place: Path) -> Path:
    """The workspace of the incident, a scratch copy."""
    return Path(shutil.copytree(EXAMPLE, place / "workspace"))


def _run(
    account: Account, pi: Pi, workspace: Path, script: list[Turn]
) -> tuple[int, dict[str, Any], list[str]]:
    """Run pi as a contained step; give exit status, record and the tools it used."""
    with ScriptedModel(script) as model:
        where = ["-w", workspace, "--name", "repair_1", "--mode", "detect"]
        command = pi.command("Do the task in TASK.md")
        done = account.wsguard(
            "run", *where, "--task", TASK, "--json", "--", *command,
            cwd=workspace,
            env=pi.environment(model),
        )  # fmt: skip
        used = [
            call["function"]["name"]
            for message in model.requests[-1]["messages"]
            for call in message.get("tool_calls") or ()
        ]
    return done.returncode, json.loads(done.stdout), used


@pytest.mark.slow
@pytest.mark.mode("detect")
def test_pi_when_it_edits_the_parent_then_is_caught_and_the_parent_put_back(
    me: Account, pi: Pi, document: Path
) -> None:
    """The incident: the parent is as it was, whatever the agent says of itself."""
    before = tree_state(document, without=(STEP,), any_time=(b"tasks",))
    status, record, used = _run(me, pi, document, INCIDENT)
    after = tree_state(document, without=(STEP,), any_time=(b"tasks",))
    assert used == ["read", "bash", "edit"]
    assert (status, record["verdict"]) == (30, "escaped")
    assert [(e["path"], e["kind"]) for e in record["escapes"]] == [
        ("output.md", "changed")
    ]
    assert [t["state"] for t in record["targets"]] == ["missing"]
    assert changes(before, after) == {}


@pytest.mark.slow
@pytest.mark.mode("detect")
def test_pi_when_it_works_in_the_step_then_is_promoted(
    me: Account, pi: Pi, document: Path
) -> None:
    """The same agent with better turns: its document takes the old one's place."""
    old = (document / "output.md").read_text("utf-8")
    status, record, used = _run(me, pi, document, GOOD)
    assert used == ["read", "bash", "edit"]
    assert (status, record["verdict"], record["escapes"]) == (0, "promoted", [])
    assert (document / "output.md").read_text("utf-8") == old.replace(
        "## 范围\n", MISSING + "## 范围\n"
    )


@pytest.mark.slow
@pytest.mark.mode("detect")
def test_pi_when_it_corrects_itself_then_the_first_edit_still_counts(
    me: Account, pi: Pi, document: Path
) -> None:
    """Under `detect` an escape took effect, so a good local output does not help."""
    before = tree_state(document, without=(STEP,), any_time=(b"tasks",))
    status, record, _used = _run(me, pi, document, CORRECTED)
    after = tree_state(document, without=(STEP,), any_time=(b"tasks",))
    assert (status, record["verdict"]) == (30, "escaped")
    assert [t["state"] for t in record["targets"]] == ["valid"]
    assert changes(before, after) == {}
