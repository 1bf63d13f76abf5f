"""The collected cases against the tests that settle them, both ways.

`cases.toml` lists every case. One that has no test says why: `later`, until the issue
that brings it, or `not_applicable`, for good. A test says which case it settles by
`@pytest.mark.case("S21")`; the marks are read from the source, so that a test which is
not collected on this machine counts as well.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

TESTS = Path(__file__).parent
REASONS = {"later", "not_applicable"}


def _cases() -> dict[str, dict[str, str]]:
    """Every case by id, with its reason if it has one."""
    table = tomllib.loads((TESTS / "cases.toml").read_text("utf-8"))
    return {name: row for group in table.values() for name, row in group.items()}


def _marked() -> dict[str, set[str]]:
    """The ids that the marks of the tests name, and the files where they stand."""
    found: dict[str, set[str]] = {}
    for module in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            if ast.unparse(node.func) != "pytest.mark.case":
                continue
            for argument in node.args:
                name = ast.literal_eval(argument)
                found.setdefault(name, set()).add(module.name)
    return found


def test_case_when_it_has_no_reason_then_a_test_settles_it() -> None:
    """A case without a test says why."""
    silent = {name for name, row in _cases().items() if not row}
    assert silent - set(_marked()) == set()


def test_case_when_it_has_a_reason_then_no_test_settles_it() -> None:
    """A reason is taken out when the test is there."""
    reasoned = {name for name, row in _cases().items() if row}
    assert reasoned & set(_marked()) == set()


def test_mark_when_read_then_names_a_case() -> None:
    """A mark names a case that is listed."""
    unknown = {n: files for n, files in _marked().items() if n not in _cases()}
    assert unknown == {}


def test_reason_when_read_then_is_one_of_two_kinds_and_not_empty() -> None:
    """A case has no reason or one, in words."""
    wrong = {
        name: row
        for name, row in _cases().items()
        if row and not (len(row) == 1 and set(row) <= REASONS and all(row.values()))
    }
    assert wrong == {}
