"""Say with one word how a step ended; the first rule that fails names it.

Room: step. Pure: all facts come in, a judgement goes out, no disk is touched and
nothing that the agent said is among the facts.

Source: spec 1, "The verdict and the promotion predicate".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workspace_guard.errors import show_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workspace_guard.containment.base import (
        Escape,
        Gap,
        Leftover,
        OnEscape,
        RunnerResult,
    )
    from workspace_guard.files.relpath import RelPath
    from workspace_guard.step.candidates import TargetState


class Verdict(enum.Enum):
    """How a step ended."""

    PROMOTED = "promoted"
    ACCEPTED = "accepted"
    RUNNER_FAILED = "runner_failed"
    TIMED_OUT = "timed_out"
    UNFINISHED = "unfinished"
    ESCAPED = "escaped"
    UNPROVEN = "unproven"
    TARGET_MISSING = "target_missing"
    TARGET_INVALID = "target_invalid"
    UNCHANGED = "unchanged"
    REJECTED = "rejected"
    CONFLICT = "conflict"
    PROMOTION_FAILED = "promotion_failed"

    @property
    def exit_status(self) -> int:
        """The exit status of `run`; 31 and 130/143 are told by `RunRecord`."""
        return _EXIT_STATUS[self]

    @property
    def meaning(self) -> str:
        """One sentence for people."""
        return _MEANING[self]

    @property
    def next_step(self) -> str:
        """What to do about it."""
        return _NEXT_STEP[self]


ESCAPED_NOT_RESTORED = 31

_EXIT_STATUS = {
    Verdict.PROMOTED: 0,
    Verdict.ACCEPTED: 0,
    Verdict.RUNNER_FAILED: 20,
    Verdict.TIMED_OUT: 21,
    Verdict.UNFINISHED: 22,
    Verdict.ESCAPED: 30,
    Verdict.UNPROVEN: 32,
    Verdict.TARGET_MISSING: 40,
    Verdict.TARGET_INVALID: 41,
    Verdict.UNCHANGED: 42,
    Verdict.REJECTED: 43,
    Verdict.CONFLICT: 44,
    Verdict.PROMOTION_FAILED: 45,
}

_MEANING = {
    Verdict.PROMOTED: "the targets are in the workspace",
    Verdict.ACCEPTED: "the step is good; nothing was to be promoted",
    Verdict.RUNNER_FAILED: "the command failed, was stopped, or never started",
    Verdict.TIMED_OUT: "the command was ended at its time limit",
    Verdict.UNFINISHED: "a target was still being written after the command ended",
    Verdict.ESCAPED: "the command changed something outside its step",
    Verdict.UNPROVEN: "a gap in the evidence could hide an escape",
    Verdict.TARGET_MISSING: "a target is not in the step",
    Verdict.TARGET_INVALID: "a target is not a file that may be promoted",
    Verdict.UNCHANGED: "a target is byte for byte its input",
    Verdict.REJECTED: "the contract's own check refused the candidate",
    Verdict.CONFLICT: "a destination was changed by somebody else meanwhile",
    Verdict.PROMOTION_FAILED: "promotion failed and was undone",
}

_NEXT_STEP = {
    Verdict.PROMOTED: "none; the old content is kept with the run",
    Verdict.ACCEPTED: "take what you want from the step's folder",
    Verdict.RUNNER_FAILED: "read execution.log in the step's folder",
    Verdict.TIMED_OUT: "read execution.log; allow more with --timeout SECONDS",
    Verdict.UNFINISHED: "have the command wait for what it starts",
    Verdict.ESCAPED: "look at the named paths in the run's quarantine",
    Verdict.UNPROVEN: "close the named gap, or say --accept-gaps",
    Verdict.TARGET_MISSING: "see in TASK.md and execution.log what was asked and done",
    Verdict.TARGET_INVALID: "leave a regular file with one name; --allow-empty helps "
    "where an empty one is right",
    Verdict.UNCHANGED: "see in execution.log why nothing was done",
    Verdict.REJECTED: "read what the check says in execution.log",
    Verdict.CONFLICT: "compare the destination with the step's target, then run again",
    Verdict.PROMOTION_FAILED: "mend the cause; the step still holds its targets",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What of the contract bears on the verdict."""

    on_escape: OnEscape
    accept_gaps: bool
    promote: bool
    has_targets: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What the contract's own check has said."""

    command: str
    fault: str | None
    """None where it accepted; else what it did: "exited with 3", "changed a.md"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that a verdict rests on."""

    runner: RunnerResult
    stopped_for_escape: bool
    leftovers: tuple[Leftover, ...]
    moved_targets: tuple[bytes, ...]
    escapes: tuple[Escape, ...]
    gaps: tuple[Gap, ...]
    targets: tuple[TargetState, ...]
    verification: Verification | None
    moved_destinations: tuple[RelPath, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict and why, in a sentence that names the first fact of its rule."""

    verdict: Verdict
    reason: str

    @property
    def may_promote(self) -> bool:
        """Whether the targets are to be put in place."""
        return self.verdict is Verdict.PROMOTED


def judge(facts: Facts, policy: Policy) -> Judgement:
    """Apply the predicate, rule by rule, in its order.

    Returns:
        `PROMOTED` where every rule holds and the targets are to be promoted now,
        `ACCEPTED` where they are not to be, else the verdict of the first broken rule.
    """
    for rule in (_runner, _unfinished, _escaped, _unproven, _targets):
        broken = rule(facts, policy)
        if broken is not None:
            return broken
    if facts.verification is not None and facts.verification.fault is not None:
        check = facts.verification
        return _say(Verdict.REJECTED, f"the check `{check.command}` {check.fault}")
    if facts.moved_destinations:
        names = _some([path.shown for path in facts.moved_destinations])
        return _say(Verdict.CONFLICT, f"changed since the step was built: {names}")
    return _good(facts, policy)


def _good(facts: Facts, policy: Policy) -> Judgement:
    count = len(facts.targets)
    if not policy.has_targets:
        return _say(Verdict.ACCEPTED, "no target was asked for")
    if not policy.promote:
        return _say(Verdict.ACCEPTED, f"{count} of {count} targets valid, kept here")
    return _say(
        Verdict.PROMOTED, f"{count} of {count} targets promoted{_beside(facts)}"
    )


def _runner(facts: Facts, policy: Policy) -> Judgement | None:
    runner = facts.runner
    if runner.error is None:
        return None
    # A command that we ended for its escape is judged by the escape.
    stopped = facts.stopped_for_escape and policy.on_escape == "stop"
    if stopped and _took_effect(facts):
        return None
    also = _beside(facts)
    if runner.error == "timeout":
        reason = runner.message or "the time limit was reached"
        return _say(Verdict.TIMED_OUT, reason + also)
    reason = runner.message or f"runner: {runner.error}"
    return _say(Verdict.RUNNER_FAILED, reason + also)


def _beside(facts: Facts) -> str:
    """What a verdict that has another reason must not keep from a reader."""
    effects = [escape.effect for escape in facts.escapes]
    count = len(_took_effect(facts))
    if not count:
        return ""
    changes = "1 change" if count == 1 else f"{count:,} changes"
    whole = "not all put back" if "unrestored" in effects else "put back"
    return f"; and {changes} outside the step, {whole}"


def _unfinished(facts: Facts, _policy: Policy) -> Judgement | None:
    writing = [p for p in facts.leftovers if p.target_open]
    if writing:
        who = _some([f"{p.pid} ({p.command})" for p in writing])
        return _say(Verdict.UNFINISHED, f"still had a target open for writing: {who}")
    if facts.moved_targets:
        names = _some([show_path(path) for path in facts.moved_targets])
        return _say(Verdict.UNFINISHED, f"changed after the command had ended: {names}")
    return None


def _took_effect(facts: Facts) -> list[Escape]:
    return [
        escape
        for escape in facts.escapes
        if escape.effect in {"restored", "unrestored", "absorbed"}
    ]


def _escaped(facts: Facts, policy: Policy) -> Judgement | None:
    counted = _took_effect(facts)
    if policy.on_escape == "report":
        # Not failing is one thing; a parent that could not be put back is another.
        counted = [escape for escape in counted if escape.effect == "unrestored"]
    if policy.on_escape == "fail-on-attempt":
        counted += [e for e in facts.escapes if e.effect == "refused"]
    if not counted:
        return None
    names = _some([f"{e.kind} {show_path(e.path)}" for e in counted])
    return _say(Verdict.ESCAPED, f"outside the step: {names}")


def _unproven(facts: Facts, policy: Policy) -> Judgement | None:
    hiding = [gap for gap in facts.gaps if gap.could_hide_escape]
    if not hiding or policy.accept_gaps:
        return None
    return _say(Verdict.UNPROVEN, _some([gap.shown for gap in hiding]))


_VERDICT_OF_STATE = (
    ("missing", Verdict.TARGET_MISSING),
    ("invalid", Verdict.TARGET_INVALID),
    ("empty", Verdict.TARGET_INVALID),
    ("unchanged", Verdict.UNCHANGED),
)


def _targets(facts: Facts, _policy: Policy) -> Judgement | None:
    for state, verdict in _VERDICT_OF_STATE:
        found = [target for target in facts.targets if target.state == state]
        if found:
            names = _some([f"{t.path.shown} {t.reason or state}" for t in found])
            return _say(verdict, names)
    return None


_SHOWN = 3


def _some(items: Sequence[str]) -> str:
    """The first few of a list, with the count of the rest."""
    more = len(items) - _SHOWN
    text = ", ".join(items[:_SHOWN])
    return f"{text} and {more} more" if more > 0 else text


def _say(verdict: Verdict, reason: str) -> Judgement:
    return Judgement(verdict=verdict, reason=reason)
