"""The words of a contract, from keywords and from TOML, and what is wrong with them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from workspace_guard.errors import ContractError, TargetPathError
from workspace_guard.files.relpath import RelPath
from workspace_guard.step.contract import (
    OPTIONS,
    Contract,
    lawful_step_name,
    parse_bytes,
)
from workspace_guard.step.targets import Target

if TYPE_CHECKING:
    from pathlib import Path


def refusal(**options: object) -> str:
    """The message with which these options are refused."""
    with pytest.raises(ContractError) as caught:
        Contract.of(**options)
    return caught.value.message


def from_toml(folder: Path, text: str | bytes) -> Contract:
    """The contract of a TOML file with this text."""
    file = folder / "contract.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return Contract.from_toml(file)


# --- Options --------------------------------------------------------------------------


def test_contract_when_nothing_is_said_then_has_the_defaults_of_the_spec() -> None:
    """The defaults that scripts rest on stand still."""
    contract = Contract()

    assert dataclasses.asdict(contract) == {
        "task": "",
        "name": None,
        "name_prefix": "run",
        "step_dir": None,
        "inputs": (),
        "default_inputs": True,
        "targets": (),
        "no_target": False,
        "mode": "auto",
        "timeout_s": None,
        "grace_s": 1.0,
        "on_escape": "fail",
        "require_change": False,
        "allow_empty": False,
        "verify": (),
        "promote": True,
        "accept_gaps": False,
        "verify_content": False,
        "environment": {},
        "clean_env": False,
        "max_snapshot_bytes": 2147483648,
        "keep_snapshot": False,
        "remove_step": False,
    }


@pytest.mark.parametrize(
    ("option", "value", "field", "expected"),
    [
        ("name", "repair_1", "name", "repair_1"),
        ("task", "补上两节", "task", "补上两节"),
        ("input", "a.md", "inputs", (RelPath((b"a.md",)),)),
        ("input", ["a/b.md"], "inputs", (RelPath((b"a", b"b.md")),)),
        ("no_default_inputs", True, "default_inputs", False),
        ("target", "a.md", "targets", (Target.parse("a.md"),)),
        (
            "target",
            ["a.md", "b/=c"],
            "targets",
            (Target.parse("a.md"), Target.parse("b/=c")),
        ),
        ("no_target", True, "no_target", True),
        ("mode", "detect", "mode", "detect"),
        ("mode", "deny", "mode", "deny"),
        ("mode", "absorb", "mode", "absorb"),
        ("timeout", 600, "timeout_s", 600.0),
        ("timeout", 0.5, "timeout_s", 0.5),
        ("grace", 0, "grace_s", 0.0),
        ("on_escape", "fail-on-attempt", "on_escape", "fail-on-attempt"),
        ("on_escape", "stop", "on_escape", "stop"),
        ("on_escape", "report", "on_escape", "report"),
        ("require_change", True, "require_change", True),
        ("allow_empty", True, "allow_empty", True),
        ("verify", "make check", "verify", ("make", "check")),
        ("no_promote", True, "promote", False),
        ("accept_gaps", True, "accept_gaps", True),
        ("verify_content", True, "verify_content", True),
        ("env", ["A=1"], "environment", {"A": "1"}),
        ("clean_env", True, "clean_env", True),
        ("max_snapshot", "1G", "max_snapshot_bytes", 1073741824),
        ("keep_snapshot", True, "keep_snapshot", True),
        ("rm", True, "remove_step", True),
    ],
)
def test_option_when_it_is_given_then_sets_its_field_alone(
    option: str, value: object, field: str, expected: object
) -> None:
    """Each long option of `run` is one field of the contract."""
    contract = Contract.of(**{option: value})

    assert contract == dataclasses.replace(Contract(), **{field: expected})


def test_options_when_listed_then_are_those_of_the_step() -> None:
    """The table holds each option of `run` that is a matter of the contract."""
    assert set(OPTIONS) == {
        "name",
        "task",
        "input",
        "no_default_inputs",
        "target",
        "no_target",
        "mode",
        "timeout",
        "grace",
        "on_escape",
        "require_change",
        "allow_empty",
        "verify",
        "no_promote",
        "accept_gaps",
        "verify_content",
        "env",
        "clean_env",
        "max_snapshot",
        "keep_snapshot",
        "rm",
    }


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("name", 5, "option 'name': must be text, not 5"),
        ("task", ["a"], "option 'task': must be text, not ['a']"),
        ("task", "a\0b", "option 'task': holds a NUL character"),
        ("input", 5, "option 'input': must be a list of texts, not 5"),
        ("input", ["a", 5], "option 'input': must be text, not 5"),
        ("no_target", "yes", "option 'no_target': must be true or false, not 'yes'"),
        ("rm", 1, "option 'rm': must be true or false, not 1"),
        (
            "mode",
            "Deny",
            "option 'mode': must be one of auto, deny, absorb, detect, not 'Deny'",
        ),
        (
            "mode",
            ["deny"],
            "option 'mode': must be one of auto, deny, absorb, detect, not ['deny']",
        ),
        (
            "on_escape",
            "ignore",
            (
                "option 'on_escape': must be one of fail, fail-on-attempt, stop, "
                "report, not 'ignore'"
            ),
        ),
        ("timeout", 0, "option 'timeout': must be more than 0 seconds"),
        (
            "timeout",
            -1,
            "option 'timeout': must be a number of seconds from 0 on, not -1",
        ),
        (
            "timeout",
            float("nan"),
            "option 'timeout': must be a number of seconds from 0 on, not nan",
        ),
        (
            "timeout",
            float("inf"),
            "option 'timeout': must be a number of seconds from 0 on, not inf",
        ),
        ("timeout", "5", "option 'timeout': must be a number of seconds, not '5'"),
        ("timeout", True, "option 'timeout': must be a number of seconds, not True"),
        ("timeout", 10**400, "option 'timeout': int too large to convert to float"),
        (
            "grace",
            -0.1,
            "option 'grace': must be a number of seconds from 0 on, not -0.1",
        ),
        (
            "max_snapshot",
            "much",
            "option 'max_snapshot': must be a number of bytes such as 500M, not 'much'",
        ),
        ("verify", "", "option 'verify': holds no command"),
        ("verify", [], "option 'verify': holds no command"),
        ("verify", "''", "option 'verify': holds no command"),
        ("verify", "'a", "option 'verify': No closing quotation"),
        ("verify", "a\0", "option 'verify': holds a NUL character"),
        ("env", "=1", "option 'env': '' is no name of a variable"),
        ("env", {"A=B": "1"}, "option 'env': 'A=B' is no name of a variable"),
        ("env", {"A": 1}, "option 'env': must be text, not 1"),
        ("env", "A=\0", "option 'env': holds a NUL character"),
        ("env", 5, "option 'env': must be a list of texts, not 5"),
        ("input", "", "input '': is empty"),
        (
            "input",
            "/etc/passwd",
            "input '/etc/passwd': is absolute; it must be relative",
        ),
        ("input", "../a", "input '../a': leads upwards with '..'"),
        ("input", "a\0", "option 'input': holds a NUL character"),
        ("input", ".", "input '.': is the workspace itself"),
        ("target", "../a", "target '../a': leads upwards with '..'"),
    ],
)
def test_option_when_its_value_is_unlawful_then_the_message_says_which_and_why(
    option: str, value: object, message: str
) -> None:
    """A refusal names the option, the rule and the value."""
    assert message == refusal(**{option: value})


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("targets", "unknown option 'targets' (did you mean 'target'?)"),
        ("no-target", "unknown option 'no-target' (did you mean 'no_target'?)"),
        ("time_out", "unknown option 'time_out' (did you mean 'timeout'?)"),
        ("zzz", "unknown option 'zzz'"),
        ("step_dir", "unknown option 'step_dir'"),
    ],
)
def test_option_when_it_is_unknown_then_the_nearest_is_guessed(
    option: str, message: str
) -> None:
    """A slip of the pen is told from a thing that cannot be."""
    assert message == refusal(**{option: "x"})


def test_options_when_several_are_wrong_then_all_are_named_at_once() -> None:
    """Nobody has to start a run again for each mistake in its contract."""
    assert refusal(
        tmeout=5, mode="x", target="/a", input="..", no_target=True, rm=True
    ).split("; ") == [
        "unknown option 'tmeout' (did you mean 'timeout'?)",
        "option 'mode': must be one of auto, deny, absorb, detect, not 'x'",
        "target '/a': is absolute",
        "it must be relative",
        "input '..': leads upwards with '..'",
    ]


def test_options_when_several_are_wrong_then_each_next_step_is_kept() -> None:
    """What to do about it is not lost because there is more than one mistake."""
    with pytest.raises(ContractError) as caught:
        Contract.of(input="..", target="a=b=c")

    assert caught.value.hint == (
        r"inputs are named relative to the workspace; write an '=' in a name as \="
    )


def test_option_when_it_alone_is_wrong_then_its_own_error_is_raised() -> None:
    """A caller can tell an unlawful target from any other mistake."""
    with pytest.raises(TargetPathError) as caught:
        Contract.of(target="a=b=c", timeout=5)

    assert caught.value.msgid == "target-path-invalid"
    assert caught.value.hint == r"write an '=' in a name as \="


def test_target_when_no_target_is_said_too_then_is_refused() -> None:
    """A step that must leave something cannot be one that need not."""
    expected = "options 'no_target' and 'target' exclude each other"
    assert expected == refusal(no_target=True, target="a.md")


# --- Numbers of bytes -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (2147483648, 2147483648),
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("1K", 1024),
        ("1k", 1024),
        ("1KB", 1024),
        ("1KiB", 1024),
        ("500M", 524288000),
        ("500 MiB", 524288000),
        (" 2G ", 2147483648),
        ("2gib", 2147483648),
        ("1T", 1099511627776),
    ],
)
def test_bytes_when_spelled_lawfully_then_are_counted(
    value: object, expected: int
) -> None:
    """A number, or one with a unit of powers of two."""
    assert expected == parse_bytes(value)


@pytest.mark.parametrize(
    "value",
    ["", "G", "-1", "1.5G", "1 000", "1P", "1GG", "0x10", "1e9", -1, 1.5, True, None],
)
def test_bytes_when_spelled_otherwise_then_are_refused(value: object) -> None:
    """What is no whole number of bytes is not guessed at."""
    with pytest.raises(ValueError, match="must be a number of bytes such as 500M"):
        parse_bytes(value)


# --- Names of steps -------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "run_1",
        "03_review",
        "修订 第一轮",
        "a b",
        "a(1)[2]",
        ".hidden",
        "...",
        "a..b",
        "a-b",
        "x" * 200,
        "两" * 66,
        "\udcff",
    ],
)
def test_step_name_when_lawful_then_is_kept_as_it_is(name: str) -> None:
    """A step may have any name that a folder can have."""
    assert name == lawful_step_name(name)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "step name '': names no folder of its own"),
        (".", "step name '.': names no folder of its own"),
        ("..", "step name '..': names no folder of its own"),
        ("a/b", "step name 'a/b': holds a path separator"),
        ("../a", "step name '../a': holds a path separator"),
        ("/a", "step name '/a': holds a path separator"),
        ("a\\b", "step name 'a\\\\b': holds a path separator"),
        ("-a", "step name '-a': starts with a dash"),
        ("a\0b", "step name 'a\\\\x00b': holds a NUL character"),
        ("x" * 201, f"step name '{'x' * 201}': is longer than 200 bytes"),
        ("两" * 67, f"step name '{'两' * 67}': is longer than 200 bytes"),
        (
            "\ud800",
            "step name '\\\\ud800': holds a character that no file name has",
        ),
    ],
)
def test_step_name_when_unlawful_then_is_refused_with_the_rule(
    name: str, problem: str
) -> None:
    """A step is one folder of its own below `tasks/`, and no option of a program."""
    with pytest.raises(ContractError) as caught:
        lawful_step_name(name)

    assert problem == caught.value.message


# --- Environment and check ------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("A=1", {"A": "1"}),
        ("A", {"A": None}),
        ("A=", {"A": ""}),
        ("A=b=c", {"A": "b=c"}),
        (["A=1", "B", "A=2"], {"A": "2", "B": None}),
        (("A=1",), {"A": "1"}),
        ([], {}),
        ({"A": "1", "B": ""}, {"A": "1", "B": ""}),
        ("A=two\nlines", {"A": "two\nlines"}),
        ("naïve=é", {"naïve": "é"}),
    ],
)
def test_environment_when_given_in_any_form_then_is_names_and_values(
    value: object, expected: dict[str, str | None]
) -> None:
    """`NAME=VALUE` sets, `NAME` alone passes the caller's own on."""
    assert expected == Contract.of(env=value).environment


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("python3 check.py", ("python3", "check.py")),
        ("  a   b  ", ("a", "b")),
        ("grep -q '## 阻塞信息' output.md", ("grep", "-q", "## 阻塞信息", "output.md")),
        ('a "b c" d', ("a", "b c", "d")),
        (r"a b\ c", ("a", "b c")),
        ("a '' b", ("a", "", "b")),
        ("a 'it'\"'\"'s'", ("a", "it's")),
        ("a\nb", ("a", "b")),
        ("a # b", ("a", "#", "b")),
        ("a | b && c > d; e", ("a", "|", "b", "&&", "c", ">", "d;", "e")),
        ("echo $HOME *", ("echo", "$HOME", "*")),
        (["a b", "c"], ("a b", "c")),
    ],
)
def test_verify_when_it_is_one_text_then_is_split_as_a_shell_would_without_one(
    value: object, expected: tuple[str, ...]
) -> None:
    """Quotes and backslashes count; variables, patterns and pipes mean nothing."""
    assert expected == Contract.of(verify=value).verify


# --- TOML -----------------------------------------------------------------------------


def test_toml_when_it_has_every_kind_of_option_then_is_the_same_contract(
    tmp_path: Path,
) -> None:
    """A file says what the keywords say."""
    text = """
        name = "repair_1"
        task = '''
        参考 ../../template.md
        '''
        input = ["notes/会议 纪要.md"]
        target = ["output.md", "figures/=docs/figures"]
        timeout = 600
        grace = 0.5
        mode = "detect"
        max_snapshot = "500M"
        verify = "python3 check.py"
        require_change = true
        clean_env = true

        [env]
        LANG = "C.UTF-8"
    """

    assert from_toml(tmp_path, text) == Contract.of(
        name="repair_1",
        task="        参考 ../../template.md\n        ",
        input=["notes/会议 纪要.md"],
        target=["output.md", "figures/=docs/figures"],
        timeout=600.0,
        grace=0.5,
        mode="detect",
        max_snapshot=524288000,
        verify=["python3", "check.py"],
        require_change=True,
        clean_env=True,
        env=["LANG=C.UTF-8"],
    )


def test_toml_when_empty_then_is_the_contract_without_words(tmp_path: Path) -> None:
    """A file with nothing in it asks for nothing special."""
    assert from_toml(tmp_path, "") == Contract()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "timeout = 'soon'",
            "option 'timeout': must be a number of seconds, not 'soon'",
        ),
        ("tagret = 'a.md'", "unknown option 'tagret' (did you mean 'target'?)"),
        ("[run]\ntarget = 'a.md'", "unknown option 'run'"),
        (
            "timeout = 12:30:00",
            "option 'timeout': must be a number of seconds, not datetime.time(12, 30)",
        ),
        ("target = [['a']]", "option 'target': must be text, not ['a']"),
        ("env = ['A=1', 2]", "option 'env': must be text, not 2"),
    ],
)
def test_toml_when_a_value_is_unlawful_then_is_refused_as_keywords_are(
    tmp_path: Path, text: str, message: str
) -> None:
    """The same table reads both, so that the same mistake has the same words."""
    with pytest.raises(ContractError) as caught:
        from_toml(tmp_path, text)

    assert message == caught.value.message


@pytest.mark.parametrize(
    "content",
    [
        b"task = ",
        b"task = 'a'\ntask = 'b'",
        b"\xff\xfe",
        b"x = " + b"[" * 100_000,
        b"timeout = " + b"9" * 5000,
    ],
    ids=["cut off", "twice", "no UTF-8", "too deep", "too long"],
)
def test_toml_when_it_cannot_be_read_then_the_file_is_named(
    tmp_path: Path, content: bytes
) -> None:
    """What is no TOML is a mistake in the contract and no crash."""
    with pytest.raises(ContractError) as caught:
        from_toml(tmp_path, content)

    head = f"contract file {tmp_path}/contract.toml: is no TOML: "
    assert caught.value.message.startswith(head)


def test_toml_when_the_file_is_missing_then_the_message_names_it(
    tmp_path: Path,
) -> None:
    """A contract that is not there is refused by its path."""
    with pytest.raises(ContractError) as caught:
        Contract.from_toml(tmp_path / "contract.toml")

    expected = f"contract file {tmp_path}/contract.toml: No such file or directory"
    assert expected == caught.value.message


def test_toml_when_the_file_is_a_folder_then_the_message_says_so(
    tmp_path: Path,
) -> None:
    """A folder in place of a contract is refused by its path."""
    with pytest.raises(ContractError) as caught:
        Contract.from_toml(tmp_path)

    assert caught.value.message == f"contract file {tmp_path}: Is a directory"
