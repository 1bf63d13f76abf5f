"""Every row of the predicate, in its order, and that no broken rule is passed over."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workspace_guard.containment.base import (
    Escape,
    Gap,
    Leftover,
    OnEscape,
    RunnerResult,
)
from workspace_guard.files.relpath import RelPath
from workspace_guard.step.candidates import TargetState, TargetStateName
from workspace_guard.step.judge import (
    ESCAPED_NOT_RESTORED,
    Facts,
    Judgement,
    Policy,
    Verdict,
    Verification,
    judge,
)

ON_ESCAPE: tuple[OnEscape, ...] = ("fail", "fail-on-attempt", "stop", "report")


def runner(error: str | None = None, **more: object) -> RunnerResult:
    """How a command ended."""
    fields = {"exit_code": 0, "signal": None, "timed_out": False} | more
    return RunnerResult(error=error, **fields)


def escape(effect: str, path: bytes = b"output.md") -> Escape:
    """A change outside the step."""
    return Escape(
        path=path,
        kind="changed",
        effect=effect,
        before=None,
        after=None,
        quarantine=None,
    )


def gap(*, hides: bool) -> Gap:
    """Something that the evidence does not cover."""
    return Gap(
        kind="unreadable", path=b"x", could_hide_escape=hides, message="unreadable"
    )


def leftover(*, target_open: bool) -> Leftover:
    """A process that outlived its command."""
    return Leftover(
        pid=4715, command="sleep 60", ended="terminated", target_open=target_open
    )


def target(state: TargetStateName, name: bytes = b"output.md") -> TargetState:
    """A target, as it was found."""
    path = RelPath((name,))
    return TargetState(
        path=path,
        destination=path,
        state=state,
        reason=None if state == "valid" else f"is {state}",
    )


GOOD = Facts(
    runner=runner(),
    stopped_for_escape=False,
    leftovers=(),
    moved_targets=(),
    escapes=(),
    gaps=(),
    targets=(target("valid"),),
    verification=None,
    moved_destinations=(),
)
POLICY = Policy(on_escape="fail", accept_gaps=False, promote=True, has_targets=True)
CHECK = Verification(command="python3 check.py", fault="exited with 3")


# --- The good end ---------------------------------------------------------------------


def test_step_when_every_rule_holds_then_is_promoted() -> None:
    """Promote if all hold."""
    judgement = judge(GOOD, POLICY)

    assert judgement == Judgement(
        verdict=Verdict.PROMOTED, reason="1 of 1 targets promoted"
    )
    assert judgement.may_promote


@pytest.mark.parametrize(
    ("policy", "targets", "reason"),
    [
        (
            replace(POLICY, promote=False),
            GOOD.targets,
            "1 of 1 targets valid, kept here",
        ),
        (replace(POLICY, has_targets=False), (), "no target was asked for"),
        (
            replace(POLICY, has_targets=False, promote=False),
            (),
            "no target was asked for",
        ),
    ],
)
def test_step_when_nothing_is_to_be_promoted_then_is_accepted(
    policy: Policy, targets: tuple[TargetState, ...], reason: str
) -> None:
    """A good step under `--no-promote` or `--no-target` ends as `accepted`."""
    judgement = judge(replace(GOOD, targets=targets), policy)

    assert judgement == Judgement(verdict=Verdict.ACCEPTED, reason=reason)
    assert not judgement.may_promote


# --- Each rule ------------------------------------------------------------------------

# In the order of the spec: what breaks a rule, the verdict, and the reason.
BROKEN: list[tuple[dict[str, object], str, str]] = [
    (
        {"runner": runner("exit", exit_code=3, message="exited with status 3")},
        "runner_failed",
        "exited with status 3",
    ),
    (
        {"leftovers": (leftover(target_open=True),)},
        "unfinished",
        "still had a target open for writing: 4715 (sleep 60)",
    ),
    (
        {"moved_targets": (b"output.md",)},
        "unfinished",
        "changed after the command had ended: output.md",
    ),
    (
        {"escapes": (escape("restored"),)},
        "escaped",
        "outside the step: changed output.md",
    ),
    ({"gaps": (gap(hides=True),)}, "unproven", "x: unreadable"),
    ({"targets": (target("missing"),)}, "target_missing", "output.md is missing"),
    ({"targets": (target("invalid"),)}, "target_invalid", "output.md is invalid"),
    ({"targets": (target("empty"),)}, "target_invalid", "output.md is empty"),
    ({"targets": (target("unchanged"),)}, "unchanged", "output.md is unchanged"),
    (
        {"verification": CHECK},
        "rejected",
        "the check `python3 check.py` exited with 3",
    ),
    (
        {"moved_destinations": (RelPath((b"output.md",)),)},
        "conflict",
        "changed since the step was built: output.md",
    ),
]


@pytest.mark.parametrize(("facts", "verdict", "reason"), BROKEN)
def test_rule_when_it_alone_is_broken_then_names_the_verdict(
    facts: dict[str, object], verdict: str, reason: str
) -> None:
    """One broken rule is enough, and the reason names the first fact of it."""
    judgement = judge(replace(GOOD, **facts), POLICY)

    assert (judgement.verdict.value, judgement.reason) == (verdict, reason)
    assert not judgement.may_promote


@pytest.mark.parametrize(
    ("first", "later"), list(itertools.combinations(range(len(BROKEN)), 2))
)
def test_rule_when_a_later_one_is_broken_too_then_the_first_names_the_verdict(
    first: int, later: int
) -> None:
    """The order of the rules is part of the contract."""
    facts, verdict, reason = BROKEN[first]
    together = BROKEN[later][0] | facts
    if "targets" in facts and "targets" in BROKEN[later][0]:
        found = (*BROKEN[later][0]["targets"], *facts["targets"])
        together = {"targets": found}

    judgement = judge(replace(GOOD, **together), POLICY)

    if "runner" in facts and "escapes" in together:
        reason += "; and 1 change outside the step, put back"
    assert (verdict, reason) == (judgement.verdict.value, judgement.reason)


@pytest.mark.parametrize(
    "policy",
    [
        replace(POLICY, promote=False),
        replace(POLICY, has_targets=False),
        replace(POLICY, on_escape="stop"),
        replace(POLICY, on_escape="fail-on-attempt"),
    ],
)
@pytest.mark.parametrize(("facts", "verdict", "reason"), BROKEN)
def test_rule_when_broken_then_no_policy_makes_the_step_good(
    facts: dict[str, object], verdict: str, reason: str, policy: Policy
) -> None:
    """What is broken is broken, also where nothing would be promoted."""
    judgement = judge(replace(GOOD, **facts), policy)

    assert (verdict, reason) == (judgement.verdict.value, judgement.reason)


# --- 1: the runner --------------------------------------------------------------------


@pytest.mark.case("E60")
@pytest.mark.parametrize(
    ("ended", "verdict", "reason"),
    [
        (runner("exit", exit_code=1), "runner_failed", "runner: exit"),
        (
            runner("signal", exit_code=None, signal=9, message="killed by SIGKILL"),
            "runner_failed",
            "killed by SIGKILL",
        ),
        (
            runner("not_found", exit_code=None, message="no such program: pj"),
            "runner_failed",
            "no such program: pj",
        ),
        (runner("not_executable"), "runner_failed", "runner: not_executable"),
        (runner("interrupted"), "runner_failed", "runner: interrupted"),
        (runner("timeout", timed_out=True), "timed_out", "the time limit was reached"),
        (
            runner("timeout", timed_out=True, message="ended after 5 s"),
            "timed_out",
            "ended after 5 s",
        ),
    ],
)
def test_runner_when_it_did_not_end_well_then_a_good_target_counts_for_nothing(
    ended: RunnerResult, verdict: str, reason: str
) -> None:
    """A file that is there is no proof that the work was done."""
    judgement = judge(replace(GOOD, runner=ended), POLICY)

    assert (verdict, reason) == (judgement.verdict.value, judgement.reason)


@pytest.mark.parametrize("effect", ["restored", "unrestored", "absorbed"])
def test_runner_when_it_was_ended_for_its_escape_then_the_escape_is_named(
    effect: str,
) -> None:
    """Under `--on-escape stop` the command's end is our doing and not its fault."""
    facts = replace(
        GOOD,
        runner=runner("signal", exit_code=None, signal=15),
        stopped_for_escape=True,
        escapes=(escape(effect),),
    )

    assert judge(facts, replace(POLICY, on_escape="stop")).verdict is Verdict.ESCAPED


@pytest.mark.parametrize("effect", ["refused", "reported", "foreign", None])
def test_runner_when_it_was_ended_and_nothing_took_effect_then_it_failed(
    effect: str | None,
) -> None:
    """A command that was cut off is never good, whatever it was cut off for."""
    facts = replace(
        GOOD,
        runner=runner("signal", exit_code=None, signal=15),
        stopped_for_escape=True,
        escapes=() if effect is None else (escape(effect),),
    )

    verdict = judge(facts, replace(POLICY, on_escape="stop")).verdict
    assert verdict is Verdict.RUNNER_FAILED


# --- 2: what was left -----------------------------------------------------------------


def test_leftover_when_it_had_no_target_open_then_is_no_reason_to_fail() -> None:
    """A process that was ended in time is named in the record and that is all."""
    facts = replace(GOOD, leftovers=(leftover(target_open=False),))

    assert judge(facts, POLICY).verdict is Verdict.PROMOTED


# --- 3: escapes and gaps --------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "on_escape", "verdict"),
    [
        ("refused", "fail", "promoted"),
        ("refused", "fail-on-attempt", "escaped"),
        ("refused", "stop", "promoted"),
        ("refused", "report", "promoted"),
        ("absorbed", "fail", "escaped"),
        ("absorbed", "fail-on-attempt", "escaped"),
        ("absorbed", "stop", "escaped"),
        ("absorbed", "report", "promoted"),
        ("restored", "fail", "escaped"),
        ("restored", "fail-on-attempt", "escaped"),
        ("restored", "stop", "escaped"),
        ("restored", "report", "promoted"),
        ("unrestored", "fail", "escaped"),
        ("unrestored", "fail-on-attempt", "escaped"),
        ("unrestored", "stop", "escaped"),
        ("unrestored", "report", "escaped"),
        ("reported", "fail", "promoted"),
        ("reported", "fail-on-attempt", "promoted"),
        ("reported", "stop", "promoted"),
        ("reported", "report", "promoted"),
        ("foreign", "fail", "promoted"),
        ("foreign", "fail-on-attempt", "promoted"),
        ("foreign", "stop", "promoted"),
        ("foreign", "report", "promoted"),
    ],
)
def test_escape_when_it_had_this_effect_then_the_policy_says_whether_it_fails(
    effect: str, on_escape: OnEscape, verdict: str
) -> None:
    """Refused attempts changed nothing; `report` only does not fail."""
    facts = replace(GOOD, escapes=(escape(effect),))

    assert judge(facts, replace(POLICY, on_escape=on_escape)).verdict.value == verdict


@pytest.mark.parametrize(
    ("effects", "beside"),
    [
        ((), ""),
        (("refused", "reported", "foreign"), ""),
        (("restored",), "; and 1 change outside the step, put back"),
        (("restored", "restored"), "; and 2 changes outside the step, put back"),
        (
            ("restored", "unrestored"),
            "; and 2 changes outside the step, not all put back",
        ),
    ],
)
def test_escapes_when_another_rule_names_the_verdict_then_are_told_beside_it(
    effects: tuple[str, ...], beside: str
) -> None:
    """A command that failed and escaped is not only said to have failed."""
    facts = replace(
        GOOD, runner=runner("exit", exit_code=3), escapes=tuple(map(escape, effects))
    )

    judgement = judge(facts, POLICY)

    assert judgement.verdict is Verdict.RUNNER_FAILED
    assert judgement.reason == f"runner: exit{beside}"


def test_escapes_when_there_are_many_then_the_reason_names_three_and_counts() -> None:
    """A reason stays a sentence, and no count is lost."""
    paths = [b"a", b"b\n", b"c\xff", b"d", b"e"]
    facts = replace(GOOD, escapes=tuple(escape("restored", path) for path in paths))

    assert judge(facts, POLICY).reason == (
        r"outside the step: changed a, changed b\n, changed c\xff and 2 more"
    )


@pytest.mark.parametrize(
    ("hides", "accepted", "verdict"),
    [
        (False, False, "promoted"),
        (False, True, "promoted"),
        (True, False, "unproven"),
        (True, True, "promoted"),
    ],
)
def test_gap_when_it_could_hide_an_escape_then_only_a_word_makes_it_good(
    *, hides: bool, accepted: bool, verdict: str
) -> None:
    """A gap with `could_hide_escape` is `unproven` unless `--accept-gaps`."""
    facts = replace(GOOD, gaps=(gap(hides=hides),))

    assert verdict == judge(facts, replace(POLICY, accept_gaps=accepted)).verdict.value


# --- 4, 5, 6: targets and the check ---------------------------------------------------


@pytest.mark.parametrize(
    ("states", "verdict"),
    [
        (("valid", "missing"), "target_missing"),
        (("invalid", "missing"), "target_missing"),
        (("empty", "missing"), "target_missing"),
        (("unchanged", "missing"), "target_missing"),
        (("valid", "invalid"), "target_invalid"),
        (("unchanged", "empty"), "target_invalid"),
        (("unchanged", "invalid"), "target_invalid"),
        (("valid", "unchanged"), "unchanged"),
        (("valid", "valid", "valid"), "promoted"),
    ],
)
def test_targets_when_one_of_several_is_bad_then_none_is_promoted(
    states: tuple[TargetStateName, ...], verdict: str
) -> None:
    """All of them or none; the earliest rule that one of them breaks counts."""
    names = [b"a", b"b", b"c"]
    found = tuple(target(s, n) for s, n in zip(states, names, strict=False))

    assert judge(replace(GOOD, targets=found), POLICY).verdict.value == verdict


def test_check_when_it_accepted_then_is_no_reason_to_fail() -> None:
    """A check that exited with 0 and changed nothing."""
    accepted = Verification(command="true", fault=None)

    verdict = judge(replace(GOOD, verification=accepted), POLICY).verdict
    assert verdict is Verdict.PROMOTED


# --- The rules once more, in other words ----------------------------------------------

_EFFECTS = ("refused", "absorbed", "restored", "unrestored", "reported", "foreign")
_FACTS = st.builds(
    Facts,
    runner=st.sampled_from(
        [None] * 4
        + ["exit", "signal", "timeout", "not_found", "not_executable", "interrupted"]
    ).map(lambda error: runner(error, timed_out=error == "timeout")),
    stopped_for_escape=st.booleans(),
    leftovers=st.lists(st.booleans(), max_size=2).map(
        lambda flags: tuple(leftover(target_open=flag) for flag in flags)
    ),
    moved_targets=st.sampled_from([(), (), (b"output.md",)]),
    escapes=st.lists(st.sampled_from(_EFFECTS), max_size=2).map(
        lambda effects: tuple(map(escape, effects))
    ),
    gaps=st.lists(st.booleans(), max_size=2).map(
        lambda flags: tuple(gap(hides=flag) for flag in flags)
    ),
    targets=st.lists(
        st.sampled_from(["valid"] * 4 + ["missing", "invalid", "empty", "unchanged"]),
        max_size=3,
    ).map(lambda states: tuple(map(target, states))),
    verification=st.sampled_from(
        [None, Verification(command="true", fault=None), CHECK]
    ),
    moved_destinations=st.sampled_from([(), (), (RelPath((b"output.md",)),)]),
)
_POLICIES = st.builds(
    Policy,
    on_escape=st.sampled_from(ON_ESCAPE),
    accept_gaps=st.booleans(),
    promote=st.booleans(),
    has_targets=st.booleans(),
)


def _must_not_be_promoted(facts: Facts, policy: Policy) -> bool:
    """The predicate as one sentence, without its order."""
    effects = {escape.effect for escape in facts.escapes}
    fatal = {
        "fail": {"absorbed", "restored", "unrestored"},
        "stop": {"absorbed", "restored", "unrestored"},
        "fail-on-attempt": {"absorbed", "restored", "unrestored", "refused"},
        "report": {"unrestored"},
    }[policy.on_escape]
    stopped = facts.stopped_for_escape and policy.on_escape == "stop"
    return (
        (facts.runner.error is not None and not stopped)
        or any(process.target_open for process in facts.leftovers)
        or facts.moved_targets != ()
        or bool(effects & fatal)
        or (not policy.accept_gaps and any(g.could_hide_escape for g in facts.gaps))
        or any(found.state != "valid" for found in facts.targets)
        or (facts.verification is not None and facts.verification.fault is not None)
        or facts.moved_destinations != ()
        or not policy.promote
        or not policy.has_targets
    )


@given(_FACTS, _POLICIES)
@example(GOOD, POLICY)
def test_judge_when_any_rule_is_broken_then_never_says_promoted(
    facts: Facts, policy: Policy
) -> None:
    """Whatever the facts, a step that breaks a rule is not promoted."""
    judgement = judge(facts, policy)

    if _must_not_be_promoted(facts, policy):
        assert judgement.verdict is not Verdict.PROMOTED
        assert not judgement.may_promote
    elif facts.runner.error is None:
        assert judgement.verdict is Verdict.PROMOTED


@given(_FACTS, _POLICIES)
@example(
    replace(
        GOOD,
        runner=runner("signal"),
        stopped_for_escape=True,
        escapes=(escape("restored"),),
    ),
    replace(POLICY, on_escape="report"),
)
def test_judge_when_a_command_was_cut_off_then_never_says_that_the_step_is_good(
    facts: Facts, policy: Policy
) -> None:
    """A runner that did not end well is never promoted nor accepted."""
    good = judge(facts, policy).verdict in (Verdict.PROMOTED, Verdict.ACCEPTED)

    assert not good or facts.runner.error is None


# --- Exit statuses --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        ("promoted", 0),
        ("accepted", 0),
        ("runner_failed", 20),
        ("timed_out", 21),
        ("unfinished", 22),
        ("escaped", 30),
        ("unproven", 32),
        ("target_missing", 40),
        ("target_invalid", 41),
        ("unchanged", 42),
        ("rejected", 43),
        ("conflict", 44),
        ("promotion_failed", 45),
    ],
)
def test_verdict_when_it_ends_a_run_then_has_this_exit_status(
    verdict: str, status: int
) -> None:
    """Scripts rest on these numbers."""
    assert status == Verdict(verdict).exit_status


def test_verdicts_when_listed_then_are_those_of_the_spec() -> None:
    """Thirteen words, each with a sentence for people; 31 stands beside them."""
    assert [verdict.value for verdict in Verdict] == [
        "promoted",
        "accepted",
        "runner_failed",
        "timed_out",
        "unfinished",
        "escaped",
        "unproven",
        "target_missing",
        "target_invalid",
        "unchanged",
        "rejected",
        "conflict",
        "promotion_failed",
    ]
    assert all(verdict.meaning for verdict in Verdict)
    assert ESCAPED_NOT_RESTORED == 31
