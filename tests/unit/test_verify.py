"""The contract's own check: what it says, and whether it left the targets alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from steps import make_workspace, put, staged_with

from workspace_guard.containment.base import (
    ContainedRun,
    Enclosure,
    Enforcement,
    Escape,
    Gap,
    Leftover,
    RunnerResult,
    Strength,
    Usage,
)
from workspace_guard.errors import WorkspaceUnusable
from workspace_guard.step.judge import Verification
from workspace_guard.step.verify import moved_targets, together, verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FULL = Enforcement.FULL
RUN = ContainedRun(
    runner=RunnerResult(error=None, exit_code=0, signal=None, timed_out=False),
    escapes=(),
    processes=(),
    moved_targets=(),
    strength=Strength(content=FULL, metadata=FULL, processes=FULL, evidence=FULL),
    gaps=(),
    usage=Usage(cpu_s=1.0, max_rss_bytes=1),
)
COMMAND = ("python3", "check.py", "a b")


class Check:
    """A step whose check does something to it, and ends in some way."""

    def __init__(self, place: Path, *targets: str) -> None:
        top = make_workspace(place / "workspace", {"output.md": b"old\n"})
        options = {"target": list(targets)} if targets else {}
        self.staged, self.contract = staged_with(top, verify=list(COMMAND), **options)
        self.step = self.staged.path
        self.enclosure = Enclosure(
            workspace=top,
            step=self.staged.relative,
            step_path=self.step,
            run_id="r-1",
            log=place / "execution.log",
            quarantine=place / "quarantine",
            environment={},
            selections=tuple(target.top for target in self.staged.targets),
        )
        self.seen: list[tuple[Enclosure, tuple[str, ...]]] = []

    def run(
        self, act: Callable[[Path], object] | None = None, **ended: object
    ) -> Verification:
        """Run the check, which does this and ends so."""

        def contain(enclosure: Enclosure, command: tuple[str, ...]) -> ContainedRun:
            self.seen.append((enclosure, command))
            if act is not None:
                act(enclosure.step_path)
            return replace(RUN, runner=replace(RUN.runner, **ended))

        return verify(self.contract, self.enclosure, contain)[0]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """A step that has left its document."""
    check = Check(tmp_path)
    put(check.step, "output.md", b"new\n")
    return check


def test_check_when_it_exits_with_0_then_has_accepted(check: Check) -> None:
    """It runs in the step under the command's own rules, with one thing of its own."""
    said = check.run()

    assert said == Verification(command="python3 check.py 'a b'", fault=None)
    ((enclosure, command),) = check.seen
    aside = check.enclosure.quarantine.with_name("quarantine-verify")
    assert (enclosure, command) == (
        replace(check.enclosure, quarantine=aside),
        COMMAND,
    )


@pytest.mark.parametrize(
    ("ended", "fault"),
    [
        ({"error": "exit", "exit_code": 3}, "exited with 3"),
        (
            {"error": "signal", "signal": 9, "message": "killed by SIGKILL"},
            "killed by SIGKILL",
        ),
        ({"error": "timeout", "timed_out": True}, "timeout"),
        (
            {"error": "not_found", "message": "x: not found in PATH"},
            "could not be started (x: not found in PATH)",
        ),
    ],
)
def test_check_when_it_does_not_end_well_then_has_refused(
    check: Check, ended: dict[str, object], fault: str
) -> None:
    """Only an exit with 0 accepts."""
    assert fault == check.run(**ended).fault


def _rewrite(step: Path) -> None:
    (step / "output.md").write_bytes(b"better\n")


def _rewrite_the_same(step: Path) -> None:
    (step / "output.md").write_bytes(b"new\n")


def _remove(step: Path) -> None:
    (step / "output.md").unlink()


def _link(step: Path) -> None:
    (step / "output.md").rename(step / "real")
    (step / "output.md").symlink_to("real")


def _chmod(step: Path) -> None:
    (step / "output.md").chmod(0o755)


@pytest.mark.parametrize("act", [_rewrite, _rewrite_the_same, _remove, _link, _chmod])
def test_check_when_it_touches_a_target_then_has_refused(
    check: Check, act: Callable[[Path], None]
) -> None:
    """A check looks; what it has written was never judged."""
    assert check.run(act).fault == "changed output.md"


def test_check_when_it_fails_and_touches_a_target_then_its_end_is_named(
    check: Check,
) -> None:
    """The first fault is the one that is told."""
    assert check.run(_rewrite, error="exit", exit_code=1).fault == "exited with 1"


def test_check_when_it_writes_what_is_no_target_then_has_accepted(
    check: Check,
) -> None:
    """Bytecode and logs of a check are its own affair."""
    said = check.run(lambda step: put(step, "__pycache__/check.pyc", b"x"))

    assert said.fault is None


@pytest.mark.parametrize(
    ("target", "path", "fault"),
    [
        ("glob:*.md", "a.md", "changed a.md"),
        ("glob:*.md", "new.md", "changed new.md"),
        ("glob:*.md", "a.txt", None),
        ("glob:*.md", "x/a.md", None),
        ("glob:*.md", "TASK.md", None),
        ("glob:**/*.md", "x/a.md", "changed x/a.md"),
        ("glob:out/*.md", "out/a.md", "changed out/a.md"),
        ("glob:out/*.md", "out/a.txt", None),
        ("figures/", "figures/x/a", "changed figures/x/a"),
        ("figures/", "figures2/a", None),
    ],
)
def test_check_when_targets_are_many_then_those_that_match_must_hold_still(
    tmp_path: Path, target: str, path: str, fault: str | None
) -> None:
    """Also of a pattern that starts in the step's own folder."""
    check = Check(tmp_path, target)
    for name in ("a.md", "a.txt", "out/a.md", "figures/x/a"):
        put(check.step, name, b"x\n")

    assert fault == check.run(lambda step: put(step, path, b"changed\n")).fault


def test_check_when_a_name_is_hostile_then_its_fault_is_one_line(
    tmp_path: Path,
) -> None:
    """A name can neither hide a line of the reason nor break the record."""
    check = Check(tmp_path, "glob:*.md")

    said = check.run(lambda step: put(step, b"a\n\xff.md", b"x"))

    assert said.fault == r"changed a\n\xff.md"


def test_check_when_the_step_is_gone_then_was_not_started(check: Check) -> None:
    """A command that removes its own folder leaves nothing to be checked."""
    check.step.rename(check.step.with_name("elsewhere"))

    with pytest.raises(WorkspaceUnusable, match="the step is gone"):
        check.run()

    assert check.seen == []


# --- What counts as touched, and what is added up -------------------------------------


def test_moved_targets_when_there_is_no_target_named_then_all_count() -> None:
    """The default target is one file, and nothing else was looked at."""
    assert moved_targets((), (b"output.md",)) == (b"output.md",)


def test_run_and_check_when_put_together_then_nothing_of_either_is_lost() -> None:
    """A check can escape like a command; the command's own end stays."""
    escape = Escape(
        path=b"a",
        kind="changed",
        effect="restored",
        before=None,
        after=None,
        quarantine=None,
    )
    left = Leftover(pid=1, command="x", ended="killed", target_open=False)
    gap = Gap(kind="watch", path=None, could_hide_escape=True, message="lost events")
    run = replace(RUN, escapes=(escape,), gaps=(gap,), snapshot_id="one")
    checked = replace(
        RUN,
        runner=replace(RUN.runner, error="exit", exit_code=1),
        escapes=(replace(escape, path=b"b"),),
        processes=(left,),
        gaps=(gap,),
        interrupted_by=15,
    )

    both = together(run, checked)

    assert [found.path for found in both.escapes] == [b"a", b"b"]
    assert (both.processes, both.gaps) == ((left,), (gap,))
    assert (both.interrupted_by, both.snapshot_id) == (15, "one")
    assert both.runner == RUN.runner
