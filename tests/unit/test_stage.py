"""Build a step on a real file system; what cannot be built leaves nothing behind."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from accounts import is_root
from capabilities import require
from euid import ordinary_user
from listing import changes, tree_state
from steps import (
    OLD_NS,
    give_to_ordinary,
    make_old,
    make_workspace,
    put,
    staged_with,
    written_while_read,
)

from workspace_guard.errors import (
    ContractError,
    GuardError,
    InputError,
    StepNameTaken,
    WorkspaceUnusable,
)
from workspace_guard.files.relpath import RelPath
from workspace_guard.step.contract import Contract
from workspace_guard.step.stage import StagedStep, snapshot_path, stage, unstage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DOCUMENT = "# 方案\n\n## 背景\n".encode()
FILES: dict[str | bytes, bytes] = {
    "output.md": DOCUMENT,
    "template.md": b"## a\n",
    "blackboard.json": b"{}\n",
    "notes/plan.md": b"1. draft\n",
    "tasks/01_draft/TASK.md": b"Draft.\n",
}


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A workspace like that of the incident."""
    return make_workspace(tmp_path / "workspace", FILES)


@contextlib.contextmanager
def unchanged(*tops: Path) -> Iterator[None]:
    """See that nothing in these trees is different after the block, times included."""
    before = [tree_state(top) for top in tops]
    yield
    assert [{} for _ in tops] == [
        changes(then, tree_state(top)) for then, top in zip(before, tops, strict=True)
    ]


def refusal(
    parent: Path, kind: type[GuardError] = GuardError, **options: object
) -> str:
    """The message with which a step is refused that leaves no trace."""
    with unchanged(parent), pytest.raises(kind) as caught:
        staged_with(parent, **options)
    return caught.value.message


def files_below(top: Path) -> dict[str, bytes]:
    """The regular files of a step by their relative paths."""
    return {
        path.relative_to(top).as_posix(): path.read_bytes()
        for path in top.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


# --- What is built --------------------------------------------------------------------


def test_step_when_nothing_is_named_then_holds_copies_of_the_default_inputs(
    parent: Path,
) -> None:
    """The three default inputs that are there, under names that no target has."""
    staged, _ = staged_with(parent, task="补上。")

    assert (staged.name, staged.path) == ("run_1", parent / "tasks" / "run_1")
    assert staged.relative == RelPath((b"tasks", b"run_1"))
    found = files_below(staged.path)
    assert found.pop("TASK.md").decode().startswith("# Task\n\n补上。\n")
    assert found == {
        "inputs/output.snapshot.md": DOCUMENT,
        "inputs/template.snapshot.md": b"## a\n",
        "inputs/blackboard.snapshot.json": b"{}\n",
    }


def test_step_when_built_then_says_what_its_inputs_and_destinations_were(
    parent: Path,
) -> None:
    """Digests and sizes are of what was read, and the destination is hashed too."""
    staged, _ = staged_with(parent)

    digest = hashlib.sha256(DOCUMENT).hexdigest()
    first = staged.inputs[0]
    assert (bytes(first.source), bytes(first.path), first.sha256, first.size_bytes) == (
        b"output.md",
        b"inputs/output.snapshot.md",
        digest,
        len(DOCUMENT),
    )
    assert staged.baseline == {RelPath((b"output.md",)): digest}
    assert [str(target) for target in staged.targets] == ["output.md"]


@pytest.mark.case("S49", "E2")
def test_inputs_when_copied_then_are_read_only_files_with_one_name(
    parent: Path,
) -> None:
    """An input is a copy: nothing that is done to it reaches the original."""
    staged, _ = staged_with(parent, input="notes/plan.md")

    for copy in staged.inputs:
        path = staged.path / os.fsdecode(bytes(copy.path))
        found = path.lstat()
        assert (oct(found.st_mode), found.st_nlink) == ("0o100444", 1)
        assert found.st_ino != (parent / os.fsdecode(bytes(copy.source))).stat().st_ino


def test_step_when_built_then_holds_no_link_and_no_special_file(parent: Path) -> None:
    """Nothing in a fresh step leads anywhere."""
    staged, _ = staged_with(parent, input="notes/plan.md")

    kinds = {look.kind for look in tree_state(staged.path).values()}
    assert kinds == {"file", "folder"}


@pytest.mark.parametrize(
    "files", [FILES, {"output.md": b"x\n"}], ids=["with tasks", "without tasks"]
)
def test_step_when_built_then_the_folders_above_keep_their_times(
    tmp_path: Path, files: dict[str | bytes, bytes]
) -> None:
    """Building a step is no change of the parent that anybody has to explain."""
    top = make_workspace(tmp_path / "workspace", files)
    before = tree_state(top)

    staged_with(top)

    found = changes(before, tree_state(top, without=(b"tasks/run_1",)))
    assert set(found) - {b"tasks"} == set()
    assert top.stat().st_mtime_ns == OLD_NS


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("output.md", "inputs/output.snapshot.md"),
        ("a/output.md", "inputs/a/output.snapshot.md"),
        ("a/b/output.md", "inputs/a/b/output.snapshot.md"),
        ("tasks/01_draft/TASK.md", "inputs/tasks/01_draft/TASK.snapshot.md"),
        ("Makefile", "inputs/Makefile.snapshot"),
        (".hidden", "inputs/.hidden.snapshot"),
        ("a.tar.gz", "inputs/a.tar.snapshot.gz"),
        ("会议 纪要.md", "inputs/会议 纪要.snapshot.md"),
        ("-rf", "inputs/-rf.snapshot"),
        ("two\nlines.md", "inputs/two\nlines.snapshot.md"),
        ("a (1) [2].md", "inputs/a (1) [2].snapshot.md"),
        ("bad\udcff.md", "inputs/bad\udcff.snapshot.md"),
        ("inputs/a.md", "inputs/inputs/a.snapshot.md"),
    ],
)
def test_input_when_named_then_lies_below_inputs_with_its_folders(
    tmp_path: Path, source: str, expected: str
) -> None:
    """`<stem>.snapshot<suffix>`, so that no input bears a target's name."""
    raw = os.fsencode(source)
    if b"\xff" in raw:
        require("undecodable-names")
    top = make_workspace(tmp_path / "workspace", {raw: b"content\n"})

    staged, _ = staged_with(top, input=source, no_target=True)

    assert os.fsencode(expected) == bytes(snapshot_path(RelPath.of(raw)))
    assert (staged.path / expected).read_bytes() == b"content\n"


def test_default_inputs_when_some_are_missing_then_the_others_are_given(
    tmp_path: Path,
) -> None:
    """A default input that is not there is no mistake."""
    top = make_workspace(tmp_path / "workspace", {"template.md": b"x"})

    staged, _ = staged_with(top, no_target=True)

    assert [bytes(copy.source) for copy in staged.inputs] == [b"template.md"]


def test_default_inputs_when_not_wanted_then_only_the_named_are_given(
    parent: Path,
) -> None:
    """`--no-default-inputs` leaves what was asked for by name."""
    staged, _ = staged_with(parent, input="notes/plan.md", no_default_inputs=True)

    assert [bytes(copy.source) for copy in staged.inputs] == [b"notes/plan.md"]


def test_input_when_named_twice_then_is_copied_once(parent: Path) -> None:
    """An input that is a default one as well is one input."""
    staged, _ = staged_with(parent, input=["output.md", "./output.md"])

    names = [bytes(copy.source) for copy in staged.inputs]
    assert names == [b"output.md", b"template.md", b"blackboard.json"]


@pytest.mark.case("E2")
def test_input_when_it_has_a_second_name_then_its_copy_has_one(
    parent: Path, tmp_path: Path
) -> None:
    """A hard link in the parent does not reach into the step."""
    require("hard-links")
    outside = put(tmp_path, "outside/twin", b"twin\n")
    os.link(outside, parent / "notes" / "twin.md")

    staged, _ = staged_with(parent, input="notes/twin.md")

    copy = staged.path / "inputs" / "notes" / "twin.snapshot.md"
    assert copy.stat().st_nlink == 1
    assert outside.stat().st_nlink == 2
    copy.chmod(0o644)
    copy.write_bytes(b"edited\n")
    assert outside.read_bytes() == b"twin\n"


def test_task_when_it_names_parent_paths_then_task_md_has_local_ones(
    parent: Path,
) -> None:
    """The incident's task text leads nowhere any more."""
    staged, _ = staged_with(
        parent, task="参考 ../../template.md、基于 ../../output.md、看 ../x"
    )

    text = (staged.path / "TASK.md").read_text("utf-8")
    assert text.splitlines()[2] == (
        "参考 inputs/template.snapshot.md、基于 inputs/output.snapshot.md、看 ../x"
    )
    assert staged.task.warnings == (
        "the task text names '../x', which leads out of the step",
    )


def test_task_when_it_is_no_utf8_then_task_md_has_its_exact_bytes(
    parent: Path,
) -> None:
    """A text from a command line of another encoding is passed on as it came."""
    staged, _ = staged_with(parent, task=os.fsdecode(b"caf\xe9"))

    assert b"\ncaf\xe9\n" in (staged.path / "TASK.md").read_bytes()


def test_step_when_placed_elsewhere_then_the_workspace_is_only_read(
    parent: Path, tmp_path: Path
) -> None:
    """A step outside the workspace changes nothing in it, not even a time."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    with unchanged(parent):
        staged = stage(parent, Contract(step_dir=elsewhere))

    assert (staged.path, staged.relative) == (elsewhere / "run_1", None)
    assert (elsewhere / "run_1" / "inputs" / "output.snapshot.md").is_file()


# --- Names and numbers ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ((), "run_1"),
        (("run_1",), "run_2"),
        (("run_1", "run_7"), "run_8"),
        (("run_9", "run_10"), "run_11"),
        (("run_007",), "run_8"),
        (("run_x", "run_1a", "run_", "xrun_5", "run_-3"), "run_1"),
        (("repair_4",), "run_1"),
        (("run_999999999", "run_1000000000"), "run_1000000001"),
        (("run_" + "9" * 30,), "run_1" + "0" * 30),
    ],
)
def test_step_when_unnamed_then_takes_the_number_after_the_highest(
    parent: Path, there: tuple[str, ...], expected: str
) -> None:
    """The next free number, whatever else lies in `tasks/`."""
    for name in there:
        (parent / "tasks" / name).mkdir()

    assert expected == staged_with(parent)[0].name


def test_number_when_a_file_or_a_link_has_it_then_counts_as_taken(
    parent: Path,
) -> None:
    """A number is free only where nothing has its name."""
    put(parent, "tasks/run_1", b"")
    (parent / "tasks" / "run_2").symlink_to("nowhere")

    assert staged_with(parent)[0].name == "run_3"


def test_step_when_it_is_a_repair_then_is_numbered_by_itself(parent: Path) -> None:
    """`repair_<n>` counts its own kind only."""
    (parent / "tasks" / "run_5").mkdir()

    assert stage(parent, Contract(name_prefix="repair")).name == "repair_1"


@pytest.mark.case("S62")
def test_steps_when_built_at_the_same_time_then_each_has_its_own_number(
    parent: Path,
) -> None:
    """Two runs never share a folder, and none removes another's."""
    count = 8
    barrier = threading.Barrier(count)
    found: list[StagedStep] = []

    def build() -> None:
        barrier.wait()
        found.append(stage(parent, Contract()))

    threads = [threading.Thread(target=build) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    names = sorted(staged.name for staged in found)
    assert names == [f"run_{number}" for number in range(1, 9)]
    for staged in found:
        assert (staged.path / "TASK.md").is_file()
        assert (staged.path / "inputs" / "output.snapshot.md").is_file()


@pytest.mark.case("S62")
def test_number_when_another_run_takes_it_in_that_moment_then_the_next_is_taken(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking for a free number and taking it somebody may have been faster."""
    real, left = os.mkdir, [2]

    def mkdir(name: bytes, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if name.startswith(b"run_") and left[0]:
            left[0] -= 1
            real(name, mode, dir_fd=dir_fd)
        real(name, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", mkdir)

    assert staged_with(parent)[0].name == "run_3"


@pytest.mark.case("S62")
def test_steps_when_one_of_two_fails_then_the_other_stays(parent: Path) -> None:
    """Clean-up after a failure removes its own step only."""
    staged, _ = staged_with(parent)

    refusal(parent, InputError, input="missing.md")

    assert (staged.path / "TASK.md").is_file()


@pytest.mark.parametrize("name", ["03_review", "修订 第一轮", "a\nb", ".x", "x" * 200])
def test_step_when_named_then_has_that_name(parent: Path, name: str) -> None:
    """A step is built under the name that its contract gives it."""
    staged, _ = staged_with(parent, name=name)

    assert (name, parent / "tasks" / name) == (staged.name, staged.path)
    assert staged.path.is_dir()


def _folder(path: Path) -> None:
    path.mkdir()
    put(path, "keep", b"kept\n")


def _file(path: Path) -> None:
    path.write_bytes(b"kept\n")


def _link(path: Path) -> None:
    path.symlink_to("01_draft")


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def _fifo(path: Path) -> None:
    require("fifo")
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


@pytest.mark.parametrize("make", [_folder, _file, _link, _dangling, _fifo])
def test_step_when_its_name_is_taken_then_is_refused_and_what_is_there_stays(
    parent: Path, make: Callable[[Path], None]
) -> None:
    """An existing name is refused, whatever has it."""
    make(parent / "tasks" / "review")
    make_old(parent)

    message = refusal(parent, StepNameTaken, name="review")

    assert message == f"step review: {parent}/tasks has it already"


@pytest.mark.parametrize("name", ["../x", "-x", "a/b", "..", "a\0b", ""])
def test_step_when_its_name_is_unlawful_then_is_refused_without_a_trace(
    parent: Path, name: str
) -> None:
    """A contract that was not made of options is looked at all the same."""
    with unchanged(parent), pytest.raises(ContractError):
        stage(parent, Contract(name=name))


@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (_file, "its tasks is no folder"),
        (_link, "its tasks is a link"),
        (_dangling, "its tasks is a link"),
        (_fifo, "its tasks is no folder"),
    ],
)
def test_tasks_when_it_is_no_folder_then_the_workspace_is_unusable(
    tmp_path: Path, make: Callable[[Path], None], fact: str
) -> None:
    """A step is never built through a link, wherever that leads."""
    top = make_workspace(tmp_path / "workspace", {"output.md": b"x"})
    (top / "01_draft").mkdir()
    make(top / "tasks")
    make_old(top)

    assert refusal(top, WorkspaceUnusable) == f"workspace {top}: {fact}"


# --- Inputs that cannot be ------------------------------------------------------------


def _outside(path: Path) -> None:
    outside = put(path.parents[2], "outside/secret", b"secret\n")
    path.symlink_to(outside)


def _linked_inside(path: Path) -> None:
    path.symlink_to("plan.md")


def _linked_folder(path: Path) -> None:
    """A folder that is a link to one with such a file, inside the workspace."""
    path.symlink_to(".")


@pytest.mark.parametrize(
    ("make", "name", "fact"),
    [
        (None, "notes/x.md", "is not there"),
        (None, "nowhere/x.md", "is not there"),
        (_folder, "notes/x.md", "is a folder"),
        (_outside, "notes/x.md", "is a link"),
        (_linked_inside, "notes/x.md", "is a link"),
        (_dangling, "notes/x.md", "is a link"),
        (_fifo, "notes/x.md", "is no regular file"),
        (_socket, "notes/x.md", "is no regular file"),
        (
            None,
            "output.md/x",
            "cannot be copied: a part of its path is a link or no folder",
        ),
        (
            _linked_folder,
            "notes/x.md/plan.md",
            "cannot be copied: a part of its path is a link or no folder",
        ),
        (None, "x" * 300, "cannot be copied: File name too long"),
    ],
)
@pytest.mark.case("E16")
def test_input_when_it_cannot_be_copied_then_is_named_and_nothing_is_left(
    parent: Path, make: Callable[[Path], None] | None, name: str, fact: str
) -> None:
    """A clear error before anything runs, and the half-built step is gone.

    The inputs before it had been copied already; a FIFO is never waited for.
    """
    if make is not None:
        make(parent / "notes" / "x.md")
    make_old(parent)

    message = refusal(parent, InputError, input=["notes/plan.md", name])

    assert message == f"input {name}: {fact}"


@pytest.mark.parametrize("make", [_linked_inside, _dangling, _folder])
def test_default_input_when_it_is_no_file_then_is_refused_like_any_other(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """A default input that is there is not left out in silence."""
    top = make_workspace(tmp_path / "workspace", {"plan.md": b"x"})
    make(top / "template.md")
    make_old(top)

    assert refusal(top, InputError, target="a.md").startswith("input template.md: is a")


@pytest.mark.parametrize(
    ("mode", "path"), [(0o000, "notes/x.md"), (0o000, "notes"), (0o600, "notes")]
)
def test_input_when_it_may_not_be_read_then_is_named(
    place: Path, mode: int, path: str
) -> None:
    """An ordinary user is told which input is closed to them."""
    require("ordinary-user")
    top = make_workspace(place / "workspace", {**FILES, "notes/x.md": b"x"})
    give_to_ordinary(place)
    (top / path).chmod(mode)
    make_old(top)

    before = tree_state(top)
    with ordinary_user(), pytest.raises(InputError) as caught:
        staged_with(top, input="notes/x.md")

    expected = "input notes/x.md: cannot be copied: Permission denied"
    assert expected == caught.value.message
    assert changes(before, tree_state(top)) == {}


@pytest.mark.case("S11")
def test_input_when_it_changes_while_it_is_copied_then_is_refused(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would not hold still is no input; neither half of it gets into a step."""
    growing = put(parent, "notes/growing", b"first line\n")

    with written_while_read(growing, monkeypatch), pytest.raises(InputError) as caught:
        staged_with(parent, input="notes/growing")

    assert caught.value.message == "input notes/growing: changed while it was copied"
    assert caught.value.hint == "end what writes to it"
    assert sorted(os.listdir(parent / "tasks")) == ["01_draft"]


# --- Targets and destinations ---------------------------------------------------------


def test_step_when_there_is_neither_target_nor_document_then_is_refused_at_once(
    tmp_path: Path,
) -> None:
    """Such a run would end in target_missing after an hour."""
    top = make_workspace(tmp_path / "workspace", {"template.md": b"x"})

    message = refusal(top, ContractError)

    assert message == "no target is named and the workspace has no output.md"


def test_step_when_no_target_is_wanted_then_needs_no_document(tmp_path: Path) -> None:
    """`--no-target` is the word for a step that need not leave anything."""
    top = make_workspace(tmp_path / "workspace", {"a": b""})

    staged, _ = staged_with(top, no_target=True)

    assert (staged.targets, staged.baseline, staged.inputs) == ((), {}, ())


@pytest.mark.case("E14")
@pytest.mark.parametrize("make", ["two files", "one file with two names"])
def test_targets_when_the_file_system_tells_case_apart_then_are_told_apart(
    tmp_path: Path, make: str
) -> None:
    """Names that differ in case are two, also where both are one file's."""
    if (tmp_path.with_name(tmp_path.name.swapcase())).exists():
        pytest.skip("this file system does not tell case apart")
    top = make_workspace(tmp_path / "workspace", {"x.md": b"x"})
    if make == "two files":
        put(top, "X.MD", b"y")
    else:
        require("hard-links")
        os.link(top / "x.md", top / "X.MD")

    staged, _ = staged_with(top, target=["a.md", "A.md"])

    assert len(staged.targets) == 2


def test_destinations_when_absent_then_are_not_in_the_baseline(parent: Path) -> None:
    """What is not there yet is told from what is."""
    targets = ["new.md", "a/b/new.md", "notes/plan.md", "output.md=notes/plan2.md"]

    staged, _ = staged_with(parent, target=targets)

    digest = hashlib.sha256(b"1. draft\n").hexdigest()
    assert staged.baseline == {RelPath((b"notes", b"plan.md")): digest}


def test_destinations_when_a_folder_or_pattern_takes_them_then_all_are_hashed(
    parent: Path,
) -> None:
    """Every file that a target could replace is known from the start."""
    put(parent, "figures/x/a.png", b"a")
    put(parent, "figures/.hidden", b"b")
    put(parent, "docs/a.md", b"c")
    put(parent, "docs/b.txt", b"d")
    put(parent, "docs/x/c.md", b"e")

    staged, _ = staged_with(
        parent, target=["out/=figures", "glob:out2/*.md=docs", "glob:*.md"]
    )

    assert sorted(bytes(path) for path in staged.baseline) == [
        b"docs/a.md",
        b"figures/.hidden",
        b"figures/x/a.png",
        b"output.md",
        b"template.md",
    ]


def test_pattern_when_it_cannot_match_in_a_folder_then_that_is_not_read(
    place: Path,
) -> None:
    """`glob:*.md` does not walk the workspace, nor mind what it may not read there."""
    require("ordinary-user")
    top = make_workspace(place / "workspace", {**FILES, "closed/x.md": b"x"})
    give_to_ordinary(place)
    (top / "closed").chmod(0)

    with ordinary_user():
        staged, _ = staged_with(top, target="glob:*.md")

    names = sorted(bytes(path) for path in staged.baseline)
    assert names == [b"output.md", b"template.md"]


_NOT_A_FILE = "is a link", "is a folder", "is no regular file"
_IN_PATH = "a part of its path is a link or no folder"


@pytest.mark.case("E19", "E20")
@pytest.mark.parametrize(
    ("make", "target", "fact"),
    [
        (_linked_inside, "notes/x.md", "is a link"),
        (_dangling, "notes/x.md", "is a link"),
        (_outside, "notes/x.md", "is a link"),
        (_folder, "notes/x.md", "is a folder"),
        (_fifo, "notes/x.md", "is no regular file"),
        (_linked_folder, "notes/x.md/plan.md", _IN_PATH),
        (_file, "notes/x.md/a.md", _IN_PATH),
        (_linked_folder, "a.md=notes/x.md/plan.md", _IN_PATH),
        (_linked_folder, "notes/x.md/", _IN_PATH),
        (_file, "notes/x.md/", _IN_PATH),
        (_linked_folder, "glob:notes/x.md/*", _IN_PATH),
    ],
)
def test_destination_when_it_could_never_be_replaced_then_is_refused_first(
    parent: Path, make: Callable[[Path], None], target: str, fact: str
) -> None:
    """A link is neither followed nor replaced, a folder is not a file's place."""
    make(parent / "notes" / "x.md")
    make_old(parent)

    message = refusal(parent, ContractError, target=target)

    assert message.startswith("destination notes/x.md")
    assert message.endswith(f": {fact}")


def test_destination_when_a_folder_of_targets_has_a_link_then_it_is_named(
    parent: Path,
) -> None:
    """What a folder would replace is looked at one by one."""
    put(parent, "figures/a.png", b"a")
    (parent / "figures" / "latest.png").symlink_to("a.png")
    make_old(parent)

    message = refusal(parent, ContractError, target="figures/")

    assert message == "destination figures/latest.png: is a link"


def test_destination_when_it_lies_in_the_step_itself_then_is_refused(
    parent: Path,
) -> None:
    """A step cannot be its own parent."""
    message = refusal(parent, ContractError, name="x", target="a.md=tasks/x/b.md")

    assert message == "target a.md: its destination lies in the step"


def test_targets_when_two_have_one_destination_then_are_refused(parent: Path) -> None:
    """Which of the two was meant nobody can know."""
    message = refusal(parent, ContractError, target=["a.md", "b.md=a.md"])

    assert message.endswith("their destinations are one: a.md, a.md")


@pytest.mark.parametrize("mode", [0o000, 0o300])
def test_destination_when_it_may_not_be_read_then_is_named(
    place: Path, mode: int
) -> None:
    """What cannot be hashed could not be told from somebody's later edit."""
    require("ordinary-user")
    top = make_workspace(place / "workspace", {**FILES, "notes/x.md": b"x"})
    give_to_ordinary(place)
    (top / "notes" / "x.md").chmod(mode)
    make_old(top)

    before = tree_state(top)
    with ordinary_user(), pytest.raises(ContractError) as caught:
        staged_with(top, target="notes/x.md")

    assert caught.value.message == "destination notes/x.md: Permission denied"
    assert changes(before, tree_state(top)) == {}


# --- Workspaces that cannot be written ------------------------------------------------


@pytest.mark.parametrize(
    ("path", "mode", "fact"),
    [
        (".", 0o555, "tasks: Permission denied"),
        ("tasks", 0o555, "run_1: Permission denied"),
        ("tasks", 0o000, "tasks: Permission denied"),
        (".", 0o000, "{top}: Permission denied"),
    ],
)
def test_workspace_when_it_cannot_be_written_then_is_unusable(
    place: Path, path: str, mode: int, fact: str
) -> None:
    """An ordinary user learns which folder is closed, and nothing was built."""
    require("ordinary-user")
    files = dict(FILES)
    if path == ".":
        del files["tasks/01_draft/TASK.md"]
    top = make_workspace(place / "workspace", files)
    give_to_ordinary(place)
    (top / path).chmod(mode)

    with ordinary_user(), pytest.raises(WorkspaceUnusable) as caught:
        staged_with(top)

    expected = f"workspace {top}: no step can be built: {fact.format(top=top)}"
    assert expected == caught.value.message
    (top / path).chmod(0o755)
    assert not (top / "tasks" / "run_1").exists()
    assert top.stat().st_mtime_ns == OLD_NS


def test_disk_when_it_takes_no_more_then_the_workspace_is_blamed_not_the_input(
    parent: Path,
) -> None:
    """A copy that cannot be written is no fault of what was to be copied."""
    resource = pytest.importorskip("resource")
    put(parent, "notes/large", bytes(100_000))
    make_old(parent)
    before = tree_state(parent)

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(WorkspaceUnusable) as caught:
            staged_with(parent, input="notes/large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    expected = f"workspace {parent}: no step can be built: File too large"
    assert expected == caught.value.message
    assert changes(before, tree_state(parent)) == {}


def test_workspace_when_it_is_gone_then_is_unusable(tmp_path: Path) -> None:
    """A workspace that vanished since it was looked at is no crash."""
    with pytest.raises(WorkspaceUnusable) as caught:
        stage(tmp_path / "gone", Contract())

    assert caught.value.message.endswith("No such file or directory")


# --- Taking a step away again ---------------------------------------------------------


@pytest.mark.parametrize(
    "files", [FILES, {"output.md": b"x\n"}], ids=["with tasks", "without tasks"]
)
def test_step_when_taken_away_again_then_the_workspace_is_as_before(
    tmp_path: Path, files: dict[str | bytes, bytes]
) -> None:
    """A run that was refused after its step was built leaves no trace of it."""
    top = make_workspace(tmp_path / "workspace", files)
    with unchanged(top):
        staged, _ = staged_with(top)
        put(staged.path, "deep/er/file", b"x")

        unstage(top, staged)


def test_step_when_taken_away_then_an_empty_tasks_folder_of_theirs_stays(
    tmp_path: Path,
) -> None:
    """A `tasks` folder that was there before is not ours, though nothing is in it."""
    top = make_workspace(tmp_path / "workspace", {"output.md": b"x\n"})
    (top / "tasks").mkdir()
    make_old(top)

    with unchanged(top):
        staged, _ = staged_with(top)
        unstage(top, staged)


def test_step_when_taken_away_then_what_others_put_beside_it_stays(
    tmp_path: Path,
) -> None:
    """A `tasks` folder that we have made is somebody else's once they use it."""
    top = make_workspace(tmp_path / "workspace", {"output.md": b"x\n"})
    staged, _ = staged_with(top)
    put(top, "tasks/theirs/a", b"a")

    unstage(top, staged)

    assert sorted(os.listdir(top / "tasks")) == ["theirs"]


def test_step_when_placed_elsewhere_and_taken_away_then_its_folder_stays(
    parent: Path, tmp_path: Path
) -> None:
    """The folder that takes steps is not ours to remove."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    staged = stage(parent, Contract(step_dir=elsewhere))

    with unchanged(parent):
        unstage(parent, staged)

    assert os.listdir(elsewhere) == []


def test_ordinary_user_when_building_in_anothers_folder_then_can(place: Path) -> None:
    """Times that cannot be put back are no reason to refuse a step."""
    require("ordinary-user")
    if not is_root():
        pytest.skip("needs a folder of another owner")
    top = make_workspace(place / "workspace", FILES)
    place.chmod(0o755)
    top.chmod(0o777)
    (top / "tasks").chmod(0o777)

    with ordinary_user():
        staged, _ = staged_with(top)

    assert (staged.path / "TASK.md").is_file()
