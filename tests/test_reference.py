"""The pages that are made of the code are what the code says now."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from workspace_guard.step.judge import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

MAKER = Path(__file__).parents[1] / "docs" / "make_reference.py"


@pytest.fixture(scope="module")
def maker() -> Iterator[ModuleType]:
    """`docs/make_reference.py`, which is a program and in no package."""
    spec = importlib.util.spec_from_file_location("make_reference", MAKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_pages_when_compared_then_are_what_the_code_makes(maker: ModuleType) -> None:
    """`python docs/make_reference.py` makes a page that is not current."""
    for name, make in maker.PAGES.items():
        assert make() == (maker.REFERENCE / name).read_text("utf-8")


def test_pages_when_made_then_are_all_there_are(maker: ModuleType) -> None:
    """No page of the reference is written by hand beside the made ones."""
    assert {path.name for path in maker.REFERENCE.iterdir()} == set(maker.PAGES)


def test_exit_statuses_when_listed_then_are_those_of_the_contract(
    maker: ModuleType,
) -> None:
    """Scripts rest on each number; a class or verdict more has to be put here."""
    assert [(row.status, row.msgid) for row in maker.rows()] == [
        (0, "accepted"),
        (0, "promoted"),
        (2, "usage"),
        (10, "contract-invalid"),
        (10, "input-unusable"),
        (10, "step-name"),
        (10, "target-path-invalid"),
        (11, "snapshot-too-large"),
        (11, "workspace-unusable"),
        (12, "workspace-held"),
        (13, "mode-unavailable"),
        (14, "state-unusable"),
        (15, "recovery-incomplete"),
        (20, "runner_failed"),
        (21, "timed_out"),
        (22, "unfinished"),
        (30, "escaped"),
        (31, "escaped"),
        (32, "unproven"),
        (40, "target_missing"),
        (41, "target_invalid"),
        (42, "unchanged"),
        (43, "rejected"),
        (44, "conflict"),
        (44, "recovery-conflict"),
        (45, "promotion-failed"),
        (45, "promotion_failed"),
        (50, "record-missing"),
        (51, "record-damaged"),
        (52, "store-damaged"),
        (53, "store-incomplete"),
        (54, "journal-damaged"),
        (55, "state-write-failed"),
        (56, "run-not-closed"),
        (57, "not-put-back"),
        (70, "internal"),
        (70, "os-error"),
        (130, "interrupted"),
        (130, "runner_failed"),
        (143, "runner_failed"),
        (143, "terminated"),
    ]


def test_each_status_when_read_then_says_what_it_means_and_what_to_do(
    maker: ModuleType,
) -> None:
    """No cell is empty, and none has the full stop of a sentence."""
    for row in maker.rows():
        assert row.meaning != ""
        assert row.next_step != ""
        assert not row.meaning.endswith(".")


def test_ids_of_errors_when_listed_then_are_given_once(maker: ModuleType) -> None:
    """An id names one class, and none is a verdict's word."""
    ids = [kind.msgid for kind in maker.error_classes()]

    assert sorted(ids) == sorted(set(ids))
    assert set(ids) & {verdict.value for verdict in Verdict} == set()
