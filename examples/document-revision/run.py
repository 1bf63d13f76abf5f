"""Run the document revision of this folder on scratch copies, and check the outcome.

    python3 examples/document-revision/run.py [good] [incident] [lingering]

Without arguments: `good` and `incident`. Each agent gets a copy of its own of the
workspace. What `wsguard` reports is shown; then this program looks for itself, without
the package, whether the parent is what was promised, and says so in one line each. It
exits with 1 if anything was not as promised.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TASK = "参考 ../../template.md、基于 ../../output.md，补齐缺失的两节，输出到 output.md"
STEP = "tasks/repair_1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One agent and what must come of it."""

    agent: str
    exit_status: int
    is_promoted: bool
    says: str


STORIES = {
    "good": Story(
        agent="good_agent.py",
        exit_status=0,
        is_promoted=True,
        says="promoted; nothing else in the parent has changed",
    ),
    "incident": Story(
        agent="incident_agent.py",
        exit_status=30,
        is_promoted=False,
        says="parent byte for byte, mode for mode, mtime for mtime as before",
    ),
    "lingering": Story(
        agent="lingering_agent.py",
        exit_status=22,
        is_promoted=False,
        says="not promoted; parent byte for byte, mode for mode, mtime for mtime "
        "as before",
    ),
}


def main(names: list[str]) -> int:
    """Run the named stories; return 0 if each ended as promised."""
    unknown = [name for name in names if name not in STORIES]
    if unknown:
        print(f"no such story: {', '.join(unknown)}; there are {', '.join(STORIES)}")
        return 2
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="document-revision-") as scratch:
        for name in names or ["good", "incident"]:
            faults += tell(name, STORIES[name], Path(scratch) / name)
    return 1 if faults else 0


def tell(name: str, story: Story, scratch: Path) -> list[str]:
    """Run one story in a fresh folder; return what was not as promised."""
    workspace = scratch / "workspace"
    shutil.copytree(HERE / "workspace", workspace, symlinks=True)
    before = listing(workspace)

    print(f"\n--- {name}: {story.agent} " + "-" * 40, flush=True)
    exit_status = run_step(story, workspace, scratch / "state")

    faults = list(compare(story, before, listing(workspace), workspace))
    if exit_status != story.exit_status:
        faults.append(f"exit status {exit_status}, expected {story.exit_status}")
    print(
        f"{name}: {'NOT AS PROMISED: ' + '; '.join(faults) if faults else story.says}"
    )
    return faults


def run_step(story: Story, workspace: Path, state: Path) -> int:
    """Run the agent as a contained step; its output and the report go through."""
    where = ["--state-dir", state, "run", "-w", workspace]
    what = ["--name", "repair_1", "--mode", "detect", "--task", TASK]
    agent = [sys.executable, HERE / "agents" / story.agent]
    done = subprocess.run([*wsguard(), *where, *what, "--", *agent], check=False)
    return done.returncode


def wsguard() -> list[str | Path]:
    """The command of this environment, also where it is not on the PATH."""
    return [sys.executable, "-P", "-m", "workspace_guard"]


# --- An own look at the tree, independent of the package ------------------------------


def listing(workspace: Path) -> dict[str, tuple[object, ...]]:
    """Everything in the workspace but the step: type, mode, owner, time and content."""
    found = {".": describe(workspace)}
    for folder, folders, files in os.walk(workspace):
        for name in (*folders, *files):
            path = Path(folder) / name
            relative = path.relative_to(workspace).as_posix()
            if not f"{relative}/".startswith(f"{STEP}/"):
                found[relative] = describe(path)
    return found


def describe(path: Path) -> tuple[object, ...]:
    """What counts of one name."""
    status = path.lstat()
    content: object = None
    if stat.S_ISREG(status.st_mode):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    elif stat.S_ISLNK(status.st_mode):
        content = path.readlink()
    owner = (status.st_uid, status.st_gid)
    return (oct(status.st_mode), owner, status.st_mtime_ns, content)


def compare(
    story: Story,
    before: dict[str, tuple[object, ...]],
    after: dict[str, tuple[object, ...]],
    workspace: Path,
) -> list[str]:
    """What is not as promised, in words."""
    # A step was built, so the time of `tasks` has moved; a promotion moves that of the
    # workspace's own folder.
    moved = {"tasks", "."} if story.is_promoted else {"tasks"}
    faults = [
        f"{path} has changed"
        for path in sorted({*before, *after})
        if path not in {*moved, "output.md"} and before.get(path) != after.get(path)
    ]
    if not story.is_promoted:
        if before["output.md"] != after.get("output.md"):
            faults.append("output.md has changed")
        return faults
    if after.get("output.md") == before["output.md"]:
        faults.append("output.md was not promoted")
    candidate = workspace / STEP / "output.md"
    if not candidate.is_file():
        faults.append(f"{STEP}/output.md is missing")
    elif candidate.read_bytes() != (workspace / "output.md").read_bytes():
        faults.append(f"output.md is not what stands in {STEP}")
    if before["output.md"][:2] != after["output.md"][:2]:
        faults.append("the mode or the owner of output.md has changed")
    return faults


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
