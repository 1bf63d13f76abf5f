"""`wsguard run` as it is installed: exit statuses, the one document, and refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from guarded import GOOD, Done, House, finish, until
from sample import DOCUMENT

from workspace_guard import Contract

if TYPE_CHECKING:
    from accounts import Account

pytestmark = pytest.mark.mode("detect")
OLD = DOCUMENT.encode()


@pytest.fixture
def house(workspace: Path, state_dir: Path) -> House:
    """The sample workspace and a state folder."""
    return House(workspace, state_dir)


def refused(house: House, *options: str | bytes | Path) -> Done:
    """Call `run` in a way that it must refuse, and see that nothing has changed."""
    words = ["run", "-w", house.workspace, "--json", *options]
    with house.unchanged(without=()):
        done = house.call_here(*words, "--", "sh", "-c", "echo ran > ../../ran")
    assert done.err.startswith("wsguard: "), done.err
    message, hint = done.said
    assert f"wsguard: {message}\nhint: {hint}\n" == done.err
    if house.state.exists():
        assert list(house.folder.glob("runs/*")) == []
        assert house.journal == []
    return done


# --- Inputs ---------------------------------------------------------------------------

INPUTS = [
    ("nothere.md", "input nothere.md: is not there"),
    ("../secret", "input '../secret': leads upwards with '..'"),
    ("/etc/passwd", "input '/etc/passwd': is absolute; it must be relative"),
    ("", "input '': is empty"),
    ("data/latest", "input data/latest: is a link"),
    (
        "data/loop/table.csv",
        (
            "input data/loop/table.csv: cannot be copied: "
            "a part of its path is a link or no folder"
        ),
    ),
    ("data", "input data: is a folder"),
    ("data/pipe", "input data/pipe: is no regular file"),
]


@pytest.mark.parametrize(("path", "message"), INPUTS)
def test_input_when_no_file_of_the_workspace_then_refused(
    house: House, path: str, message: str
) -> None:
    """An input is a regular file in the workspace, reached through no link."""
    require("symlinks")
    require("fifo")
    done = refused(house, "--input", path)

    assert (done.status, done.said[0]) == (10, message)
    assert "named relative to the workspace" in done.said[1]


@pytest.mark.slow
@pytest.mark.parametrize("user", ["ordinary"], indirect=True)
def test_input_when_it_cannot_be_read_then_refused(user: Account, house: House) -> None:
    """An input that is locked is named, and the step is gone again."""
    (house.workspace / "PLAN.md").chmod(0)
    with house.unchanged(without=()):
        done = run_as(user, house, GOOD, "--input", "PLAN.md")

    assert done.error == (10, "input-unusable")
    assert done.said[0] == "input PLAN.md: cannot be copied: Permission denied"


WRITER = """
import sys
with open(sys.argv[1], "ab", buffering=0) as file:
    print("ready", flush=True)
    while file.tell() < 1 << 30:
        file.write(b"x" * 64)
"""


@pytest.mark.slow
def test_input_when_it_changes_while_it_is_copied_then_refused(house: House) -> None:
    """A copy of two states is no input."""
    busy = house.workspace / "busy.log"
    busy.write_bytes(b"x" * (8 << 20))
    command = [sys.executable, "-c", WRITER, busy]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        done = house.run(GOOD, "--input", "busy.log")
        writer.kill()

    assert done.error == (10, "input-unusable")
    assert done.said == (
        "input busy.log: changed while it was copied",
        "end what writes to it",
    )
    assert sorted(os.listdir(house.workspace / "tasks")) == ["01_draft", "03_review"]


# --- Targets --------------------------------------------------------------------------

TARGETS = [
    ("/etc/motd", "target '/etc/motd': is absolute; it must be relative"),
    ("../output.md", "target '../output.md': leads upwards with '..'"),
    ("a/../b.md", "target 'a/../b.md': leads upwards with '..'"),
    ("a//b.md", "target 'a//b.md': has an empty part (two slashes in a row)"),
    ("", "target '': is empty"),
    (
        "inputs/x.md",
        "target 'inputs/x.md': lies below inputs/, which holds read-only copies",
    ),
    ("TASK.md", "target 'TASK.md': is a file that the step itself writes"),
    ("a.md=/etc/motd", "target '/etc/motd': is absolute; it must be relative"),
    ("a.md=../x.md", "target '../x.md': leads upwards with '..'"),
]


@pytest.mark.parametrize(("target", "message"), TARGETS)
def test_target_when_its_path_is_unlawful_then_refused(
    house: House, target: str, message: str
) -> None:
    """A target lies in the step, its destination in the workspace."""
    done = refused(house, "--target", target)

    assert done.error == (10, "target-path-invalid")
    assert done.said[0] == message


@pytest.mark.case("E19")
@pytest.mark.case("E20")
@pytest.mark.parametrize(
    ("destination", "fact"),
    [("data", "is a folder"), ("data/latest", "is a link"), ("data/pipe", "regular")],
)
def test_destination_when_no_regular_file_then_refused(
    house: House, destination: str, fact: str
) -> None:
    """What promotion could never replace is refused before anything runs."""
    require("symlinks")
    require("fifo")
    done = refused(house, "--target", f"output.md={destination}")

    assert done.error == (10, "contract-invalid")
    assert done.said[0].startswith(f"destination {destination}: is")
    assert fact in done.said[0]


def test_target_when_named_twice_then_refused(house: House) -> None:
    """Two targets with one destination are told by their names."""
    done = refused(house, "--target", "a.md=x.md", "--target", "b.md=x.md")

    assert done.error == (10, "contract-invalid")
    assert done.said[0].startswith("targets a.md and b.md: ")


def test_target_when_it_holds_nul_then_refused(house: House, place: Path) -> None:
    """A contract file can say what no command line can."""
    (place / "step.toml").write_text('target = ["a\\u0000b.md"]\n')
    done = refused(house, "--contract", place / "step.toml")

    assert done.status == 10
    assert "NUL" in done.said[0]


def test_workspace_when_without_document_and_target_then_refused(house: House) -> None:
    """An hour later it would only end as `target_missing`."""
    (house.workspace / "output.md").unlink()
    done = refused(house)

    assert done.status == 10
    assert done.said == (
        "no target is named and the workspace has no output.md",
        "name one with --target PATH, or say --no-target",
    )


# --- The step's name ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("a/b", "holds a path separator"),
        ("..", "names no folder of its own"),
        ("-rf", "starts with a dash"),
        ("", "names no folder of its own"),
    ],
)
def test_name_when_unlawful_then_refused(house: House, name: str, fact: str) -> None:
    """A step's name is one part of a path."""
    done = refused(house, f"--name={name}")

    assert (done.status, done.said[0]) == (10, f"step name {name!r}: {fact}")


def test_name_when_taken_then_refused(house: House) -> None:
    """A step is built afresh, never in a folder that is there."""
    done = refused(house, "--name", "01_draft")

    assert done.error == (10, "step-name")
    tasks = house.workspace.resolve() / "tasks"
    assert done.said[0] == f"step 01_draft: {tasks} has it already"


# --- The workspace --------------------------------------------------------------------


def refused_workspace(house: House, workspace: Path, *options: str) -> Done:
    """Run in another workspace, which must be refused."""
    with house.unchanged(without=()):
        words = ["run", "-w", workspace, "--json", *options]
        done = house.call_here(*words, "--", "sh", "-c", "echo ran > ../../ran")
    assert done.error == (11, "workspace-unusable")
    assert str(workspace) in done.said[0]
    assert done.said[1] not in {"", "None"}
    return done


def test_workspace_when_missing_then_refused(house: House, place: Path) -> None:
    """The path that was asked for is named."""
    done = refused_workspace(house, place / "nowhere")

    assert done.said[0] == f"workspace {place / 'nowhere'}: does not exist"


def test_workspace_when_a_file_then_refused(house: House) -> None:
    """A workspace is a folder."""
    done = refused_workspace(house, house.workspace / "PLAN.md")

    assert done.said[0].endswith("PLAN.md: is no folder")


@pytest.mark.slow
@pytest.mark.case("E50")
def test_workspace_when_a_link_then_refused_unless_forced(
    house: House, place: Path
) -> None:
    """A link can be turned elsewhere; whoever means its folder says so."""
    require("symlinks")
    link = place / "link"
    link.symlink_to(house.workspace)
    done = refused_workspace(house, link)
    forced = house.call("run", "-w", link, "--force", "--json", "--", "sh", "-c", GOOD)

    assert done.said[0] == f"workspace {link}: is a link to {house.workspace.resolve()}"
    assert forced.document["workspace"] == str(house.workspace.resolve())
    assert forced.status == 0


@pytest.mark.slow
def test_workspace_when_reached_through_a_link_then_is_covered(
    house: House, place: Path
) -> None:
    """A link above the workspace is resolved, and an escape through it is found."""
    require("symlinks")
    (place / "way").symlink_to(place)
    plan = place / "way" / "workspace" / "PLAN.md"
    words = ["run", "-w", place / "way" / "workspace", "--json", "--"]
    with house.unchanged():
        done = house.call(*words, "sh", "-c", f"{GOOD}; echo mine > {plan}")

    assert (done.status, done.document["verdict"]) == (30, "escaped")


@pytest.mark.slow
@pytest.mark.parametrize("which", ["root", "home"])
def test_workspace_when_root_or_home_then_refused(
    house: House, place: Path, which: str
) -> None:
    """Nobody means to have the whole machine put back."""
    folder = place.parent.parent.parent if which == "root" else place / "home"
    folder.mkdir(exist_ok=True)
    home = {"HOME": str(place / "home")}
    words = ["run", "-w", "/" if which == "root" else folder, "--json", "--", "true"]
    done = house.call(*words, env=home)

    assert done.error == (11, "workspace-unusable")
    assert done.said[1] == "name a folder in it, or say --force"


def test_workspace_when_in_the_state_folder_then_refused(house: House) -> None:
    """The guard does not watch over itself."""
    house.state.mkdir()
    inner = house.state / "inner"
    inner.mkdir()
    done = refused_workspace(house, inner)

    assert "lies in the state folder" in done.said[0]


# --- The state folder -----------------------------------------------------------------


@pytest.mark.slow
def test_state_folder_when_a_file_then_refused(house: House) -> None:
    """A state folder that cannot be one is named, with the way out."""
    house.state.write_bytes(b"a file\n")
    with house.unchanged(without=()):
        done = house.run(GOOD)

    assert done.error == (14, "state-unusable")
    assert str(house.state) in done.said[0]
    assert "--state-dir" in done.said[1]


@pytest.mark.slow
def test_state_folder_when_in_the_workspace_then_refused(house: House) -> None:
    """A step could reach it there."""
    inside = {"WORKSPACE_GUARD_STATE_DIR": str(house.workspace / "state")}
    with house.unchanged(without=()):
        done = house.run(GOOD, env=inside)

    assert done.error == (14, "state-unusable")


@pytest.mark.slow
@pytest.mark.parametrize("user", ["ordinary"], indirect=True)
def test_state_folder_when_it_cannot_be_written_then_refused(
    user: Account, house: House
) -> None:
    """Without a place for the snapshot nothing runs."""
    house.state.mkdir(mode=0o500)
    user.own(house.state)
    with house.unchanged(without=()):
        done = run_as(user, house, GOOD)

    assert done.error == (14, "state-unusable")
    assert "Permission denied" in done.said[0]


def run_as(user: Account, house: House, script: str, *options: str) -> Done:
    """Run a step as somebody else."""
    done = user.wsguard(
        *("run", "-w", house.workspace, "--json", *options, "--", "sh", "-c", script),
        cwd=house.workspace.parent,
        env={"WORKSPACE_GUARD_STATE_DIR": str(house.state)},
    )
    return Done(done.returncode, done.stdout, done.stderr.decode())


# --- A workspace that is held ---------------------------------------------------------


@pytest.mark.slow
@pytest.mark.case("S62")
def test_workspace_when_held_then_the_holder_is_named(house: House) -> None:
    """A second run is refused at once, and takes nothing of the first one away."""
    script = f": > ../../ready; while [ ! -e ../../go ]; do sleep 0.01; done; {GOOD}"
    words = ["run", "-w", house.workspace, "--json", "--on-escape", "report"]
    with house.start(*words, "--", "sh", "-c", script) as first:
        until((house.workspace / "ready").exists)
        [run_id] = house.runs
        second = house.run("true")
        (house.workspace / "go").touch()
        done = finish(first)

    assert second.error == (12, "workspace-held")
    assert second.said == (
        f"workspace {house.workspace} is held by process {first.pid} (run {run_id})",
        "wait for it with --wait SECONDS, or end that run",
    )
    assert (done.status, done.document["verdict"]) == (0, "promoted")
    assert house.runs == [run_id]


@pytest.mark.slow
def test_workspace_when_held_and_waited_for_then_the_run_comes_next(
    house: House,
) -> None:
    """`--wait` begins when the holder has ended."""
    script = f": > ../../ready; while [ ! -e ../../go ]; do sleep 0.01; done; {GOOD}"
    words = ["run", "-w", house.workspace, "--json", "--on-escape", "report"]
    with house.start(*words, "--", "sh", "-c", script) as first:
        until((house.workspace / "ready").exists)
        waits = ["run", "-w", house.workspace, "--json", "--wait", "60"]
        with house.start(*waits, "--", "sh", "-c", "echo two > output.md") as second:
            until(lambda: len(house.runs) == 2)
            (house.workspace / "go").touch()
            statuses = [finish(first).status, finish(second).status]

    assert statuses == [0, 0]
    assert (house.workspace / "output.md").read_bytes() == b"two\n"


# --- Other options --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (("--mode", "deny"), 13, "mode deny: "),
        (("--timeout", "0"), 10, "option 'timeout': must be more than 0 seconds"),
        (("--timeout", "nan"), 10, "option 'timeout': must be a number of seconds"),
        (("--wait", "-1"), 10, "option 'wait': must be a number of seconds"),
        (("--max-snapshot", "lots"), 10, "option 'max_snapshot': must be a number of"),
        (("--max-snapshot", "100"), 11, "workspace "),
        (("--verify", "'"), 10, "option 'verify': "),
        (("--no-target", "--target", "a"), 10, "options 'no_target' and 'target' "),
        (("--task-file", "nowhere"), 10, "task file nowhere: "),
        (("--contract", "nowhere.toml"), 10, "contract file nowhere.toml: "),
        (("--record", "nowhere/record.json"), 10, "record nowhere/record.json: "),
    ],
)
def test_option_when_its_value_is_unlawful_then_refused(
    house: House, options: tuple[str, ...], status: int, message: str
) -> None:
    """What cannot be meant is refused with its name, before anything runs."""
    done = refused(house, *options)

    assert done.status == status
    assert done.said[0].startswith(message)


@pytest.mark.slow
def test_option_when_unknown_then_usage_and_one_document(house: House) -> None:
    """Also a mistyped option leaves one JSON document."""
    with house.unchanged(without=()):
        done = house.run(GOOD, "--targets", "x")

    assert done.error == (2, "usage")
    assert done.said[0].startswith("No such option '--targets'")
    assert "Usage: wsguard run" in done.err


@pytest.mark.slow
@pytest.mark.case("E68")
def test_workspace_when_too_large_for_a_snapshot_then_refused(house: House) -> None:
    """A sparse file of three gigabytes neither stalls the run nor eats the disk."""
    with (house.workspace / "sparse.img").open("wb") as file:
        file.truncate(3 << 30)
    with house.unchanged(without=(b"sparse.img",)):
        done = house.run("echo ran > ../../ran")

    assert done.error == (11, "snapshot-too-large")
    assert "--max-snapshot" in done.said[1]


# --- What is printed where ------------------------------------------------------------


@pytest.mark.slow
def test_output_when_json_then_the_agents_goes_to_stderr(house: House) -> None:
    """One document on standard output, everything else on standard error."""
    done = house.run(f"echo spoken; echo complained >&2; {GOOD}")

    assert done.document["verdict"] == "promoted"
    assert sorted(done.err.splitlines()) == ["complained", "spoken"]


@pytest.mark.slow
def test_output_when_text_then_the_agents_streams_stay_apart(house: House) -> None:
    """Without `--json` what the agent says can be piped on."""
    script = f"echo spoken; echo complained >&2; {GOOD}"
    done = house.call("run", "-w", house.workspace, "--", "sh", "-c", script)

    assert (done.status, done.out) == (0, b"spoken\n")
    assert done.err.startswith("complained\n")
    assert "promoted: the targets are in the workspace" in done.err


@pytest.mark.slow
def test_output_when_quiet_then_only_the_agent_is_heard(house: House) -> None:
    """`--quiet` is for whoever goes by the exit status."""
    script = "echo spoken; echo x > ../../PLAN.md"
    words = ["run", "-w", house.workspace, "--quiet", "--", "sh", "-c", script]
    done = house.call(*words)

    assert (done.status, done.out, done.err) == (30, b"spoken\n", "")


@pytest.mark.slow
def test_output_when_nobody_reads_then_the_status_is_the_runs(house: House) -> None:
    """A reader that has gone away changes nothing."""
    reading, writing = os.pipe()
    os.close(reading)
    words = ["run", "-w", house.workspace, "--json", "--", "sh", "-c", GOOD]
    try:
        with house.start(*words, stdout=writing) as process:
            status = process.wait(timeout=20)
    finally:
        os.close(writing)

    assert status == 0
    assert house.door.record().verdict.value == "promoted"


@pytest.mark.slow
def test_output_when_folders_are_made_fast_then_the_guard_is_silent(
    house: House,
) -> None:
    """What the live watch meets twice is no news for anybody."""
    make = "for n in $(seq 60); do mkdir -p tree/$n/a/b; done"
    done = house.run(f"{make}; {GOOD}")

    assert (done.status, done.err) == (0, "")


@pytest.mark.slow
@pytest.mark.case("S16")
def test_report_when_names_are_odd_then_escaped_in_text_and_exact_in_json(
    house: House,
) -> None:
    """A hostile name neither hides a line nor moves the cursor."""
    require("undecodable-names")
    make = r"""printf x > "$(printf '../../a\nb\033[2J')"; """
    done = house.run(make + r"""printf y > "$(printf '../../\377')" """)
    [odd, raw] = done.document["escapes"]
    shown = house.call_here("runs", "show", "-w", house.workspace)

    assert (odd["path"], raw["path"]) == ("a\nb\x1b[2J", "\\xff")
    assert ("path_bytes" in odd, raw["path_bytes"]) == (False, "/w==")
    assert "\x1b" not in shown.err
    assert "created a\\nb\\x1b[2J: removed from the workspace" in shown.err
    assert "created \\xff: removed" in shown.err


@pytest.mark.slow
@pytest.mark.case("E32")
def test_report_when_escapes_are_many_then_cut_by_kind_with_the_count(
    house: House,
) -> None:
    """No kind is dropped by the text, and nothing at all by the JSON."""
    script = "for n in $(seq 25); do : > ../../new$n; done; rm ../../data/*.csv"
    done = house.run(script)
    shown = house.call_here("runs", "show", "-w", house.workspace)
    kinds = [escape["kind"] for escape in done.document["escapes"]]

    assert (kinds.count("created"), kinds.count("deleted")) == (25, 3)
    assert shown.err.count(" removed from the workspace") == 20
    assert "created: 5 more of 25" in shown.err
    assert shown.err.count(": brought back") == 3


@pytest.mark.slow
def test_report_when_no_colour_is_wanted_then_has_none(house: House) -> None:
    """NO_COLOR is respected also where a terminal is pretended."""
    done = house.call(
        *("run", "-w", house.workspace, "--", "sh", "-c", GOOD),
        env={"NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "xterm"},
    )

    assert "\x1b[3" not in done.err
    assert "promoted" in done.err


# --- Contract files -------------------------------------------------------------------


@pytest.mark.slow
def test_contract_when_in_a_file_then_the_command_line_wins(
    house: House, place: Path
) -> None:
    """Everything can stand in a file, and its paths are relative to it."""
    folder = place / "contracts"
    folder.mkdir()
    (folder / "task.txt").write_text("Add the missing sections.\n")
    (folder / "step.toml").write_text(
        'workspace = "../workspace"\n'
        'task_file = "task.txt"\n'
        'record = "record.json"\n'
        'name = "by_the_file"\n'
        'target = ["file.md"]\n'
        "timeout = 600\n"
        'env = ["GREETING=hello"]\n'
        "wait = 0\n"
    )
    script = "echo $GREETING > line.md"
    done = house.call(
        *("run", "--contract", folder / "step.toml", "--json"),
        *("--target", "line.md", "--name", "by_the_line", "--", "sh", "-c", script),
    )
    step = house.workspace / "tasks/by_the_line"

    assert (done.status, done.document["verdict"]) == (0, "promoted")
    assert (house.workspace / "line.md").read_bytes() == b"hello\n"
    assert "Add the missing sections." in (step / "TASK.md").read_text()
    assert json.loads((folder / "record.json").read_bytes()) == done.document


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ('wait = "soon"', "'wait'"),
        ('force = "yes"', "'force'"),
        ("record = 5", "'record'"),
        ("timeot = 5", "'timeot' (did you mean 'timeout'?)"),
        ("target = [5]", "'target'"),
        ("= 5", "is no TOML"),
    ],
)
def test_contract_when_a_value_is_unlawful_then_refused(
    house: House, place: Path, text: str, fact: str
) -> None:
    """A contract file is as strict as the command line."""
    (place / "step.toml").write_text(text)
    done = refused(house, "--contract", place / "step.toml")

    assert done.status == 10
    assert fact in done.said[0]


@pytest.mark.slow
def test_contract_when_the_line_has_a_rival_then_the_line_wins(
    house: House, place: Path
) -> None:
    """`--task-file` takes the place of a task in the file, and so on."""
    (place / "step.toml").write_text('task = "of the file"\nno_target = true\n')
    (place / "task.txt").write_text("of the line\n")
    words = ["--contract", place / "step.toml", "--task-file", place / "task.txt"]
    done = house.run("echo 1 > a.md", *words, "--target", "a.md")

    assert done.document["verdict"] == "promoted"
    assert "of the line" in (house.workspace / "tasks/run_1/TASK.md").read_text()


# --- The record for the caller --------------------------------------------------------


@pytest.mark.slow
def test_record_when_asked_for_then_is_the_same_document(
    house: House, place: Path
) -> None:
    """Machines that lose their state folder keep the record."""
    done = house.run("exit 3", "--record", place / "record.json")

    assert done.status == 20
    assert json.loads((place / "record.json").read_bytes()) == done.document


@pytest.mark.slow
def test_record_when_it_cannot_be_written_then_says_so_with_one_document(
    house: House, place: Path
) -> None:
    """The run is over all the same, and its record is kept in the state folder."""
    gone = place / "gone"
    gone.mkdir()
    done = house.run(f"{GOOD}; rmdir {gone}", "--record", gone / "record.json")

    assert (done.status, done.document["verdict"]) == (55, "promoted")
    assert f"record {gone / 'record.json'}: No such file or directory" in done.err
    assert f"wsguard runs show {done.document['run_id']} --json" in done.err


# --- What the command finds -----------------------------------------------------------


def seen_by(house: House, *options: str, env: dict[str, str]) -> dict[str, str]:
    """The environment of a step's command."""
    done = house.run("env -0 > output.md", "--no-promote", *options, env=env)
    assert done.status == 0, done.err
    step = house.workspace / done.document["step"]["path"]
    rows = (step / "output.md").read_bytes().decode().rstrip("\0").split("\0")
    return dict(row.split("=", 1) for row in rows)


@pytest.mark.slow
def test_environment_when_not_asked_for_then_is_the_callers_and_ours(
    house: House,
) -> None:
    """The caller's variables come through, beside those that a step needs."""
    seen = seen_by(house, env={"KEPT": "1"})

    assert seen["KEPT"] == "1"
    assert seen["GIT_CEILING_DIRECTORIES"] == str(house.workspace / "tasks")
    assert seen["WSGUARD_STEP"] == str(house.workspace / "tasks/run_1")
    assert seen["PWD"] == seen["WSGUARD_STEP"]
    assert seen["WSGUARD_RUN"] == house.door.record().run_id


@pytest.mark.slow
def test_environment_when_given_then_wins_over_all_others(house: House) -> None:
    """`--env` is the last word."""
    options = ["--env", "KEPT=2", "--env", "TMPDIR=/nowhere"]
    seen = seen_by(house, *options, env={"KEPT": "1"})

    assert (seen["KEPT"], seen["TMPDIR"]) == ("2", "/nowhere")


@pytest.mark.slow
def test_environment_when_clean_then_only_what_is_named_passes(house: House) -> None:
    """`--clean-env` starts from four variables; a bare name passes one on."""
    options = ["--clean-env", "--env", "PASSED", "--env", "SET=x=y", "--env", "ABSENT"]
    seen = seen_by(house, *options, env={"PASSED": "1", "SECRET": "2"})
    ours = {"TMPDIR", "GIT_CEILING_DIRECTORIES", "WSGUARD_STEP", "WSGUARD_RUN"}
    allowed = {"PATH", "HOME", "LANG", "TERM", "PASSED", "SET", "PWD", "SHLVL", "_"}

    assert set(seen) - allowed - {"OLDPWD"} == ours
    assert (seen["PASSED"], seen["SET"]) == ("1", "x=y")


@pytest.mark.slow
def test_temporary_folder_when_the_run_is_over_then_is_gone(house: House) -> None:
    """TMPDIR is private, outside the workspace, and leaves nothing."""
    look = "ls -ld $TMPDIR | cut -c1-10; echo $TMPDIR"
    keep = "mkdir -p $TMPDIR/a/b; touch $TMPDIR/a/b/c; chmod 0 $TMPDIR/a/b/c"
    done = house.run(f"{{ {look}; }} > output.md; {keep}")
    mode, path = (house.workspace / "output.md").read_text().split()

    assert (done.status, mode) == (0, "drwx------")
    assert path.startswith(f"{house.temporary}/wsguard-")
    assert list(house.temporary.iterdir()) == []


@pytest.mark.slow
def test_temporary_folder_when_the_systems_is_the_workspaces_then_lies_elsewhere(
    house: House,
) -> None:
    """What a command leaves in TMPDIR is no escape."""
    (house.workspace / "tmp").mkdir()
    script = "echo $TMPDIR > output.md; touch $TMPDIR/x"
    done = house.run(script, env={"TMPDIR": str(house.workspace / "tmp")})

    assert (done.status, done.document["escapes"]) == (0, [])
    path = (house.workspace / "output.md").read_text()
    assert path.startswith(str(house.state))


@pytest.mark.parametrize(
    "trick",
    [
        "echo forged > execution.log",
        "mkdir -p execution.log/full/of; touch execution.log/full/of/files",
        "ln -s ../../PLAN.md execution.log",
        "mkfifo execution.log",
    ],
)
def test_log_when_the_command_takes_its_name_then_is_whole_all_the_same(
    house: House, trick: str
) -> None:
    """All output is kept, out of the command's reach."""
    script = f"echo first; {trick}; echo last >&2; {GOOD}"
    contract = Contract.of(no_promote=True)
    with house.unchanged():
        record = house.door.run_step(["sh", "-c", script], contract)
    log = house.workspace / "tasks/run_1/execution.log"

    assert (record.exit_status, record.warnings) == (0, ())
    assert log.is_file()
    assert not log.is_symlink()
    assert log.read_bytes() == b"first\nlast\n"
    kept = house.folder / "runs" / record.run_id / "execution.log"
    assert kept.read_bytes() == b"first\nlast\n"


@pytest.mark.slow
def test_log_when_output_is_large_then_has_all_of_it(house: House) -> None:
    """No list is cut, and no log either."""
    done = house.run(f"head -c 3000000 /dev/zero; {GOOD}")
    log = house.workspace / "tasks/run_1/execution.log"

    assert (done.status, log.stat().st_size) == (0, 3_000_000)


# --- Ways to end ----------------------------------------------------------------------


@pytest.mark.slow
def test_step_when_removed_after_promotion_then_is_gone(house: House) -> None:
    """`--rm` takes the folder of a promoted step away, and keeps that of a bad one."""
    good = house.run(GOOD, "--rm")
    bad = house.run("false", "--rm", "--name", "bad")

    assert (good.status, bad.status) == (0, 20)
    assert house.steps == ["01_draft", "03_review", "bad"]


@pytest.mark.slow
def test_candidate_when_not_promoted_then_stays_in_its_step(house: House) -> None:
    """`--no-promote` leaves the good work where it is."""
    with house.unchanged():
        done = house.run(GOOD, "--no-promote")

    assert (done.status, done.document["verdict"]) == (0, "accepted")
    assert done.document["promotion"] == []
    assert (house.workspace / "tasks/run_1/output.md").read_bytes() == b"done\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "status", "verdict"),
    [
        ("grep -q done output.md", 0, "promoted"),
        ("grep -q 'not done' output.md", 43, "rejected"),
    ],
)
def test_check_when_given_then_has_the_last_word(
    house: House, check: str, status: int, verdict: str
) -> None:
    """`--verify` is split as a shell would, and runs without one."""
    done = house.run(GOOD, "--verify", check)
    document = (house.workspace / "output.md").read_bytes()

    assert (done.status, done.document["verdict"]) == (status, verdict)
    assert document == (b"done\n" if status == 0 else OLD)


@pytest.mark.slow
def test_command_when_not_found_then_its_name_and_the_verdict(house: House) -> None:
    """A program that is not there is the step's failure, not the guard's."""
    with house.unchanged():
        done = house.call(
            "run", "-w", house.workspace, "--json", "--", "no-such-program"
        )

    assert (done.status, done.document["runner"]["error"]) == (20, "not_found")
    assert "no-such-program" in done.document["reason"]


@pytest.mark.slow
def test_command_when_it_lies_beside_the_caller_then_the_report_says_so(
    house: House, place: Path
) -> None:
    """The command runs in the step: a program of one's own is given by whole path."""
    (place / "agent.sh").write_text("echo never\n")
    words = ["run", "-w", house.workspace, "--json", "--", "sh", "agent.sh"]
    done = house.call(*words, cwd=place)

    assert done.status == 20
    assert done.document["warnings"][0].startswith("agent.sh is a file in your working")


@pytest.mark.slow
def test_command_when_none_is_given_then_refused(house: House) -> None:
    """Nothing to run is told at once."""
    with house.unchanged(without=()):
        done = house.call("run", "-w", house.workspace, "--json")

    assert done.error == (10, "contract-invalid")
    assert done.said == ("no command was given", "name it after --")


# --- Names of all kinds ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.case("E11")
@pytest.mark.parametrize(
    "name", [b"a:b,c", "会议 (1) [x]".encode(), b"-rf", b"bad\xff", b"two\nlines"]
)
def test_workspace_when_its_name_is_odd_then_works(
    place: Path, workspace: Path, name: bytes
) -> None:
    """No name of a folder is special."""
    require("undecodable-names")
    odd = os.path.join(os.fsencode(place), name)
    os.rename(workspace, odd)
    house = House(place / os.fsdecode(name), place / "state")
    done = house.run(f"{GOOD}; echo mine > ../../PLAN.md", "--on-escape", "report")

    assert (done.status, done.document["verdict"]) == (0, "promoted")
    assert [e["path"] for e in done.document["escapes"]] == ["PLAN.md"]
    listed = house.call_here("runs", "list", "--json").document["runs"]
    assert [row["verdict"] for row in listed] == ["promoted"]


@pytest.mark.case("E10")
@pytest.mark.parametrize(
    "name", ["会议 纪要.md", "(a) [b].md", "two\nlines.md", "./-rf", "a=b.md"]
)
def test_target_when_its_name_is_odd_then_is_promoted(house: House, name: str) -> None:
    """Unicode, spaces, brackets, dashes, newlines and equals signs all work."""
    target = name.replace("=", "\\=").removeprefix("./")
    script = f"printf x > '{name}'"
    contract = Contract.of(target=[target])
    record = house.door.run_step(["sh", "-c", script], contract)

    assert record.verdict.value == "promoted"
    assert (house.workspace / name).read_bytes() == b"x"


# --- The live watch -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.case("S20")
def test_watch_when_it_may_not_watch_all_then_says_so_and_finds_everything(
    house: House,
) -> None:
    """A limit on watches is a gap of evidence; the comparison finds the escape."""
    require("user-namespaces")
    require("inotify")
    limit = 'echo 3 > /proc/sys/user/max_inotify_watches && exec "$@"'
    before = ["unshare", "--user", "--map-root-user", "sh", "-c", limit, "limited"]
    script = f"{GOOD}; echo mine > ../../data/private/inner/new"
    words = ["run", "-w", house.workspace, "--json", "--", "sh", "-c", script]
    with house.unchanged():
        done = house.call(*words, before=before)

    assert (done.status, done.document["verdict"]) == (30, "escaped")
    assert [gap["could_hide_escape"] for gap in done.document["gaps"]] == [False]
    assert "comparison" in done.document["gaps"][0]["message"]


BURST = """
import os, signal, sys
guard, count = int(sys.argv[1]), int(sys.argv[2])
os.chdir("../../data/empty")
os.kill(guard, signal.SIGSTOP)
for number in range(count):
    os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY))
    os.unlink(str(number))
os.mkdir("left")
os.kill(guard, signal.SIGCONT)
"""


@pytest.mark.slow
@pytest.mark.case("S19")
@pytest.mark.case("E64")
def test_watch_when_its_queue_overflows_then_says_so_and_finds_everything(
    house: House,
) -> None:
    """Lost events are a gap of evidence; the comparison finds what is left."""
    require("inotify")
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 20_000:
        pytest.skip(f"a queue of {limit} events is too long to fill")
    # Each is made and removed: twice as many events as there is room for.
    script = f"read _ _ _ guard _ < /proc/$PPID/stat; {sys.executable} -I -S -c"
    with house.unchanged():
        done = house.run(f"{script} '{BURST}' $guard {limit}; {GOOD}")
    document = done.document

    assert (done.status, document["verdict"]) == (30, "escaped")
    assert [e["path"] for e in document["escapes"]] == ["data/empty/left"]
    assert [(gap["kind"], gap["could_hide_escape"]) for gap in document["gaps"]] == [
        ("events_lost", False)
    ]
