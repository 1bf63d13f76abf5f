"""Parent paths in a task text, and the TASK.md that is written of it."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from workspace_guard.errors import TargetPathError, show_path
from workspace_guard.files.relpath import RelPath
from workspace_guard.step.targets import Target
from workspace_guard.step.tasktext import TaskText, localise, render

INPUTS = {
    b"output.md": b"inputs/output.snapshot.md",
    b"template.md": b"inputs/template.snapshot.md",
    b"a/output.md": b"inputs/a/output.snapshot.md",
    b"PLAN": b"inputs/PLAN.snapshot",
    "会议 纪要.md".encode(): "inputs/会议 纪要.snapshot.md".encode(),
}


@dataclass(frozen=True)
class Input:
    """An input as `render` sees it."""

    path: RelPath


# --- What is rewritten ----------------------------------------------------------------


def test_task_when_it_is_that_of_the_incident_then_is_rewritten_word_for_word() -> None:
    """The example of the spec."""
    task = localise(
        "参考 ../../template.md、基于 ../../output.md、输出到 output.md", INPUTS
    )

    assert task == TaskText(
        text=(
            "参考 inputs/template.snapshot.md、基于 inputs/output.snapshot.md、"
            "输出到 output.md"
        ),
        rewritten=(
            ("../../template.md", "inputs/template.snapshot.md"),
            ("../../output.md", "inputs/output.snapshot.md"),
        ),
        warnings=(),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("../../output.md", "inputs/output.snapshot.md"),
        ("./../../output.md", "inputs/output.snapshot.md"),
        ("edit ../../output.md.", "edit inputs/output.snapshot.md."),
        ("edit ../../output.md. Then", "edit inputs/output.snapshot.md. Then"),
        ("../../output.md, and", "inputs/output.snapshot.md, and"),
        ("(../../output.md)", "(inputs/output.snapshot.md)"),
        ("[x](../../output.md)", "[x](inputs/output.snapshot.md)"),
        ("[../../output.md]", "[inputs/output.snapshot.md]"),
        ('"../../output.md"', '"inputs/output.snapshot.md"'),
        ("`../../output.md`", "`inputs/output.snapshot.md`"),
        ("**../../output.md**", "**inputs/output.snapshot.md**"),
        ("<../../output.md>", "<inputs/output.snapshot.md>"),
        ("--file=../../output.md", "--file=inputs/output.snapshot.md"),
        ("../../output.md:12", "inputs/output.snapshot.md:12"),
        ("../../output.md#背景", "inputs/output.snapshot.md#背景"),
        ("../../output.md?", "inputs/output.snapshot.md?"),
        ("../../output.md!", "inputs/output.snapshot.md!"),
        ("../../output.md…", "inputs/output.snapshot.md…"),
        (
            "../../output.md\n../../PLAN\n",
            "inputs/output.snapshot.md\ninputs/PLAN.snapshot\n",
        ),
        ("参考../../output.md修改", "参考inputs/output.snapshot.md修改"),
        ("读「../../output.md」。", "读「inputs/output.snapshot.md」。"),
        ("基于《../../output.md》，写", "基于《inputs/output.snapshot.md》，写"),
        ("见../../PLAN。", "见inputs/PLAN.snapshot。"),
        ("../../PLAN.", "inputs/PLAN.snapshot."),
        ("../../会议 纪要.md", "inputs/会议 纪要.snapshot.md"),
        ("../../a/output.md", "inputs/a/output.snapshot.md"),
        (
            "../../output.md ../../output.md",
            "inputs/output.snapshot.md inputs/output.snapshot.md",
        ),
        (
            "../../a/output.md,../../output.md",
            "inputs/a/output.snapshot.md,inputs/output.snapshot.md",
        ),
    ],
)
def test_parent_path_when_it_can_only_be_an_input_then_is_made_local(
    text: str, expected: str
) -> None:
    """Where a path ends is plain from what stands beside it, in English and Chinese."""
    task = localise(text, INPUTS)

    assert expected == task.text
    assert task.warnings == ()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("../../output.md.bak", "../../output.md.bak"),
        ("../../output.md_old", "../../output.md_old"),
        ("../../output.md-old", "../../output.md-old"),
        ("../../output.md~", "../../output.md~"),
        ("../../output.md2", "../../output.md2"),
        ("../../output.md/x", "../../output.md/x"),
        ("../../output.md/../template.md", "../../output.md/../template.md"),
        ("../../output", "../../output"),
        ("../../PLAN文件", "../../PLAN文件"),
        ("../../PLAN.md", "../../PLAN.md"),
        ("../../PLAN.版", "../../PLAN.版"),
        ("../../blackboard.json", "../../blackboard.json"),
        ("../../../output.md", "../../../output.md"),
        ("a/../../output.md", "a/../../output.md"),
        ("x../../output.md", "x../../output.md"),
        ("~/../../output.md", "~/../../output.md"),
        ("/../../output.md", "/../../output.md"),
        ("-../../output.md", "-../../output.md"),
        ("../output.md", "../output.md"),
        ("../../tasks/../output.md", "../../tasks/../output.md"),
        (r"..\..\output.md", r"..\..\output.md"),
        ("cd ..", ".."),
        ("cd ..; ls", ".."),
        ("(cd ..)", ".."),
        ("到 .. 去", ".."),
        ("到../去", "到../去"),
        ("../..", "../.."),
        ("a/..", "a/.."),
        ("a/../b", "a/../b"),
        ("看（../x）", "../x"),
        ("看「../x」。", "../x"),
        ("[x](../y.md)", "../y.md"),
    ],
)
def test_parent_path_when_it_could_be_another_then_stays_and_is_warned_of(
    text: str, named: str
) -> None:
    """What is not plainly an input is left to the user, who is told."""
    task = localise(text, INPUTS)

    expected = f"the task text names {named!r}, which leads out of the step"
    assert (text, (), (expected,)) == (task.text, task.rewritten, task.warnings)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "output.md",
        "inputs/output.snapshot.md",
        "wait... what",
        "and so on...",
        "等等……",
        "等等...好",
        "v1..v2",
        "range(1..10)",
        "a..b/c",
        "..hidden",
        "...",
        ".../x",
        "x/...",
        "https://example.org/a",
    ],
)
def test_text_when_it_leads_nowhere_then_is_left_without_a_word(text: str) -> None:
    """Dots that are no way upwards are no reason to speak."""
    assert localise(text, INPUTS) == TaskText(text=text)


def test_parent_path_when_one_input_ends_like_another_then_the_longest_counts() -> None:
    """`a.md b` is not taken for `a.md`, nor `a/output.md` for `output.md`."""
    inputs = {b"a.md": b"inputs/a.snapshot.md", b"a.md b": b"inputs/a.snapshot.md b"}

    task = localise("../../a.md b ../../a.md", inputs)

    assert task.text == "inputs/a.snapshot.md b inputs/a.snapshot.md"
    assert task.rewritten == (
        ("../../a.md b", "inputs/a.snapshot.md b"),
        ("../../a.md", "inputs/a.snapshot.md"),
    )


@pytest.mark.parametrize("name", ["a+b (1).md", "a[1].md", "a|b.md", "^$.md", "\\d.md"])
def test_input_when_its_name_looks_like_a_pattern_then_is_taken_literally(
    name: str,
) -> None:
    """A name means itself, whatever characters it has."""
    task = localise(f"../../{name} ../../axb.md", {name.encode(): b"inputs/x"})

    assert task.text == "inputs/x ../../axb.md"


def test_warning_when_a_path_stands_twice_then_is_given_once() -> None:
    """A path is warned of once, in the order of the text."""
    task = localise("../b ../a ../b", INPUTS)

    assert task.warnings == (
        "the task text names '../b', which leads out of the step",
        "the task text names '../a', which leads out of the step",
    )


def test_warning_when_a_path_has_control_characters_then_they_are_escaped() -> None:
    """A task text cannot move the cursor of whoever reads the warning."""
    task = localise("../a\x1b[2Kb", {})

    assert task.warnings == (
        r"the task text names '../a\\x1b', which leads out of the step",
    )


def test_input_when_its_name_is_no_utf8_then_is_rewritten_with_its_exact_bytes() -> (
    None
):
    """The text names the copy by the bytes that it has."""
    inputs = {b"bad\xff.md": b"inputs/bad\xff.snapshot.md"}

    task = localise(os.fsdecode(b"read ../../bad\xff.md"), inputs)

    assert os.fsencode(task.text) == b"read inputs/bad\xff.snapshot.md"


_TEXTS = st.lists(
    st.sampled_from(
        [*"./\\ -a。（b", "..", "../", "../../", "output.md", "template.md"]
    ),
    max_size=12,
).map("".join)


@given(_TEXTS)
def test_task_when_rewritten_again_then_does_not_change(text: str) -> None:
    """What has been made local is local, and nothing else was touched."""
    once = localise(text, INPUTS)
    again = localise(once.text, INPUTS)

    assert (once.text, ()) == (again.text, again.rewritten)
    assert once.warnings == again.warnings


@given(_TEXTS)
def test_task_when_it_still_leads_upwards_then_there_is_a_warning(text: str) -> None:
    """No `..` as a part of a path goes unreported, by another way of looking."""
    task = localise(text, INPUTS)

    parts = task.text.replace("\\", "/").replace(" ", "/").replace("。", "/")
    upwards = ".." in parts.replace("（", "/").split("/")
    assert not upwards or task.warnings != ()


# --- TASK.md --------------------------------------------------------------------------


def test_task_md_when_written_then_is_this() -> None:
    """What to do, inputs and targets by local names, and what may not be done."""
    task = TaskText(text="补上缺少的两节。\n")
    inputs = [Input(RelPath((b"inputs", b"output.snapshot.md")))]
    targets = [Target.parse(t) for t in ("output.md", "figures/", "glob:out/*.csv")]

    assert (
        render(task, inputs, targets)
        == """\
# Task

补上缺少的两节。

## Inputs

Read-only copies, made for this step:

- `inputs/output.snapshot.md`

## What to leave here

- `output.md`
- `figures` (a folder with at least one file)
- `out/*.csv` (at least one file of this pattern)

## Rules

- Work in this folder only. Nothing outside this folder may be changed.
- What you are asked for counts only if it is in this folder when you end.
- A report of success counts for nothing; the files do.
"""
    )


def test_task_md_when_nothing_is_given_or_asked_then_says_so() -> None:
    """A step without text, inputs and targets has a TASK.md that says it."""
    assert (
        render(TaskText(text=" \n"), [], [])
        == """\
# Task

(no text was given)

## Inputs

None.

## What to leave here

Nothing in particular.

## Rules

- Work in this folder only. Nothing outside this folder may be changed.
- What you are asked for counts only if it is in this folder when you end.
- A report of success counts for nothing; the files do.
"""
    )


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (b"a`b.md", "- ``inputs/a`b.md``"),
        (b"a``b.md", "- ```inputs/a``b.md```"),
        (b"a.md`", "- `` inputs/a.md` ``"),
        (b"a\nb.md", r"- `inputs/a\nb.md`"),
        (b"a\n# Rules\n- none", r"- `inputs/a\n# Rules\n- none`"),
        (b"a\x1b[31m.md", r"- `inputs/a\x1b[31m.md`"),
        (b"bad\xff.md", r"- `inputs/bad\xff.md`"),
        (b"*a*_b_<b>[c](d)", "- `inputs/*a*_b_<b>[c](d)`"),
    ],
)
def test_task_md_when_a_name_has_marks_of_markdown_then_stays_one_line(
    name: bytes, line: str
) -> None:
    """A name can neither end its code span nor begin a heading."""
    text = render(TaskText(text="x"), [Input(RelPath((b"inputs", name)))], [])

    assert line in text.splitlines()
    assert len(text.splitlines()) == 19


_NAMES = st.binary(min_size=1, max_size=8).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
) | st.text(st.sampled_from("`. \n#-*a"), min_size=1, max_size=6).map(
    str.encode
).filter(lambda name: name not in (b".", b".."))


def _code_spans(markdown: str) -> list[str]:
    """The code spans of the lists, as a reader of Markdown sees them."""
    return [
        child.content
        for token in MarkdownIt().parse(markdown)
        for child in token.children or ()
        if child.type == "code_inline"
    ]


@pytest.mark.slow
@given(st.lists(_NAMES, max_size=4), st.lists(_NAMES, max_size=4))
@example([b"` `"], [b" a "])
@example([b"``", b"`"], [b" "])
def test_task_md_when_names_are_any_then_a_reader_of_markdown_sees_each_exactly(
    inputs: list[bytes], targets: list[bytes]
) -> None:
    """Whatever the names, the document has its four headings and its two lists."""
    paths = [RelPath((b"inputs", name)) for name in inputs]
    wanted = [Target(path=RelPath((n,)), destination=RelPath((n,))) for n in targets]

    text = render(TaskText(text="x"), [Input(p) for p in paths], wanted)

    headings = [t for t in MarkdownIt().parse(text) if t.type == "heading_open"]
    assert [t.tag for t in headings] == ["h1", "h2", "h2", "h2"]
    assert _code_spans(text) == [
        *("inputs/" + show_path(name) for name in inputs),
        *(show_path(name) for name in targets),
    ]


@given(st.lists(_NAMES, min_size=1, max_size=4), st.text("./a` =\\", max_size=9))
def test_task_md_when_names_are_any_then_nothing_of_ours_leads_upwards(
    names: list[bytes], spelled: str
) -> None:
    """TASK.md holds no `..` of ours as a part of a path."""
    inputs = [Input(RelPath((b"inputs", *names)))]
    try:
        targets = [Target.parse(spelled)]
    except TargetPathError:
        targets = []

    text = render(TaskText(text=""), inputs, targets)

    spans = [span.split("/") for span in _code_spans(text)]
    assert not any(".." in parts for parts in spans)
    assert ".." not in render(TaskText(text=""), [], [])
