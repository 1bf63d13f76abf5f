"""Which spellings are a path below a root, and how odd names are spelled."""

from __future__ import annotations

import json
import ntpath
import posixpath
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workspace_guard.errors import show_path
from workspace_guard.files.relpath import (
    RelPath,
    UnlawfulPath,
    path_fields,
    path_from_fields,
)

if TYPE_CHECKING:
    from workspace_guard.files.relpath import Flavour

BOTH: tuple[Flavour, ...] = ("posix", "windows")
both_flavours = pytest.mark.parametrize("flavour", BOTH)


# --- What is lawful -------------------------------------------------------------------


@both_flavours
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (".", ()),
        ("./", ()),
        ("././.", ()),
        ("a", (b"a",)),
        ("a/", (b"a",)),
        ("./a/./b/.", (b"a", b"b")),
        ("...x", (b"...x",)),
        ("..x/y..z", (b"..x", b"y..z")),
        ("-rf", (b"-rf",)),
        (" a", (b" a",)),
        ("~", (b"~",)),
        ("会议 纪要.md", ("会议 纪要.md".encode(),)),
        ("console/command/nullable", (b"console", b"command", b"nullable")),
        ("com/lpt/com10", (b"com", b"lpt", b"com10")),
    ],
)
def test_parse_when_lawful_everywhere_then_gives_the_parts(
    text: str, parts: tuple[bytes, ...], flavour: Flavour
) -> None:
    """`.` parts and one trailing slash are dropped, all else stands."""
    assert parts == RelPath.parse(text, flavour).parts


@both_flavours
@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "is empty"),
        ("/", "is absolute"),
        ("//", "is absolute"),
        ("/etc/passwd", "is absolute"),
        ("//host/share/x", "is absolute"),
        ("..", "leads upwards"),
        ("../x", "leads upwards"),
        ("a/..", "leads upwards"),
        ("a/../b", "leads upwards"),
        ("./../x", "leads upwards"),
        ("a//b", "has an empty part"),
        ("a//", "has an empty part"),
        ("a\0b", "holds a NUL"),
        ("\0", "holds a NUL"),
    ],
)
def test_parse_when_unlawful_everywhere_then_says_which_rule(
    text: str, rule: str, flavour: Flavour
) -> None:
    """What could leave the root, or name nothing, is refused on every platform."""
    with pytest.raises(UnlawfulPath, match=rule):
        RelPath.parse(text, flavour)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("C:", "does not allow"),
        ("C:x", "does not allow"),
        ("C:\\x", "does not allow"),
        ("c:/x", "does not allow"),
        ("\\x", "is absolute"),
        ("\\\\host\\share\\x", "is absolute"),
        ("\\\\?\\C:\\x", "is absolute"),
        ("\\\\.\\pipe\\x", "is absolute"),
        ("..\\x", "leads upwards"),
        ("a\\..\\..\\x", "leads upwards"),
        ("a/..\\x", "leads upwards"),
        ("a\\\\b", "has an empty part"),
        ("output.md:stream", "does not allow"),
        ("output.md::$DATA", "does not allow"),
        ("what?", "does not allow"),
        ("*.md", "does not allow"),
        ('say "x"', "does not allow"),
        ("a|b", "does not allow"),
        ("<a>", "does not allow"),
        ("two\nlines", "does not allow"),
        ("bell\x07", "does not allow"),
        ("a.", "ends in a dot or a space"),
        ("a ", "ends in a dot or a space"),
        ("a./b", "ends in a dot or a space"),
        (".. /x", "ends in a dot or a space"),
        ("...", "ends in a dot or a space"),
        (" ", "ends in a dot or a space"),
        ("con", "device name"),
        ("CON", "device name"),
        ("Con.txt", "device name"),
        ("con .txt", "device name"),
        ("con.tar.gz", "device name"),
        ("a/NUL/b", "device name"),
        ("a\\aux.c", "device name"),
        ("prn", "device name"),
        ("COM1", "device name"),
        ("lpt9.md", "device name"),
        ("com\N{SUPERSCRIPT ONE}", "device name"),
        ("LPT\N{SUPERSCRIPT THREE}.md", "device name"),
        ("CONIN$", "device name"),
        ("conout$", "device name"),
    ],
)
def test_parse_when_unlawful_on_windows_then_is_refused_there_only(
    text: str, rule: str
) -> None:
    """Drives, streams, devices and names that Windows would bend are refused there."""
    with pytest.raises(UnlawfulPath, match=rule):
        RelPath.parse(text, "windows")


@pytest.mark.parametrize(
    "text",
    ["C:x", "a\\b", "..\\x", "output.md:stream", "two\nlines", "a.", " ", "con", "*"],
)
def test_parse_when_only_windows_minds_then_is_one_part_on_posix(text: str) -> None:
    """On POSIX a name is any bytes but `/` and NUL."""
    assert (text.encode(),) == RelPath.parse(text, "posix").parts


def test_parse_when_windows_separators_are_mixed_then_both_part() -> None:
    r"""On Windows `\` parts as `/` does."""
    assert RelPath.parse("a\\b/c\\", "windows").parts == (b"a", b"b", b"c")


@both_flavours
def test_parse_when_half_a_surrogate_pair_then_is_unlawful(flavour: Flavour) -> None:
    """A text that JSON can hold and no file name can is refused by the usual error."""
    with pytest.raises(UnlawfulPath, match="holds a character that no file name has"):
        RelPath.parse("a\ud800", flavour)


@pytest.mark.case("E11")
def test_parse_when_bytes_are_no_utf8_then_keeps_them() -> None:
    """A name that is no UTF-8 comes through, as bytes and as Python's own text."""
    assert RelPath.parse(b"bad\xff", "posix").parts == (b"bad\xff",)
    assert RelPath.parse("bad\udcff", "posix").parts == (b"bad\xff",)


# --- What stays below the root --------------------------------------------------------

_PIECES = st.sampled_from(
    (*"/\\.:~ \n", "..", "a", "C:", "con", "\0", "//", "./", "../", "é", "\udcff")
)
_SPELLINGS = st.one_of(st.text(), st.lists(_PIECES, max_size=12).map("".join))


@example("a/./..\\../x")
@example("C:../x")
@example(".. /..")
@given(_SPELLINGS)
def test_parse_when_it_accepts_then_the_path_stays_below_its_root(text: str) -> None:
    """Joined to a root and normalised, an accepted path is the root or inside it."""
    for flavour, rules, root in (
        ("posix", posixpath, "/root"),
        ("windows", ntpath, "C:\\root"),
    ):
        try:
            path = RelPath.parse(text, flavour)
        except UnlawfulPath:
            continue
        whole = rules.normpath(rules.join(root, str(path)))
        inside = whole.startswith(root + rules.sep)
        assert inside or whole == root
        assert inside == bool(path.parts)


@given(_SPELLINGS)
def test_parse_when_read_again_then_is_the_same(text: str) -> None:
    """What `bytes` spells, `parse` reads back."""
    for flavour in BOTH:
        try:
            path = RelPath.parse(text, flavour)
        except UnlawfulPath:
            continue
        assert path == RelPath.parse(bytes(path) or b".", flavour)


# --- Parts ----------------------------------------------------------------------------


def test_path_when_taken_apart_then_has_name_and_parent() -> None:
    """The name is the last part, the parent what stands before it."""
    path = RelPath.parse("a/b/c.md", "posix")
    assert path.name == b"c.md"
    assert RelPath((b"a", b"b")) == path.parent
    assert RelPath((b"a", b"b", b"c.md", b"d")) == path / "d"
    assert RelPath((b"a", b"b", b"c.md", b"d\xff")) == path / b"d\xff"
    assert bytes(path) == b"a/b/c.md"
    assert str(path) == "a/b/c.md"


def test_path_when_it_is_the_root_then_has_no_parts() -> None:
    """The root is spelled `.`, has no name, and is its own parent."""
    root = RelPath.of(b"")
    assert RelPath() == root
    assert root.name == b""
    assert root == root.parent
    assert bytes(root) == b""
    assert str(root) == "."
    assert root.shown == "."


@pytest.mark.parametrize(
    ("path", "other", "expected"),
    [
        ("a/b", "a", True),
        ("a", "a", True),
        ("a", ".", True),
        ("a", "a/b", False),
        ("ab", "a", False),
        ("A/b", "a", False),
    ],
)
def test_is_below_when_asked_then_compares_whole_parts(
    path: str, other: str, expected: bool
) -> None:
    """A common beginning of characters is no common folder."""
    below = RelPath.parse(path, "posix").is_below(RelPath.parse(other, "posix"))
    assert expected == below


# --- How odd names are spelled --------------------------------------------------------


@pytest.mark.case("S16", "E10")
@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain.md", "plain.md"),
        ("会议 纪要.md".encode(), "会议 纪要.md"),
        (b"two\nlines", "two\\nlines"),
        (b"\rover", "\\rover"),
        (b"\x1b[2Jgone", "\\x1b[2Jgone"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}dm.exe".encode(), "\\u202edm.exe"),
        (b"bad\xff.md", "bad\\xff.md"),
    ],
)
def test_shown_when_a_name_is_odd_then_is_one_plain_line(
    raw: bytes, shown: str
) -> None:
    """A hostile name can neither break a line nor move the cursor."""
    assert shown == RelPath.of(raw).shown
    assert shown == show_path(raw)


@pytest.mark.case("E10", "E11")
@pytest.mark.parametrize(
    ("raw", "fields"),
    [
        (b"plain.md", {"path": "plain.md"}),
        (b"two\nlines", {"path": "two\nlines"}),
        ("纪要".encode(), {"path": "纪要"}),
        (b"bad\xff.md", {"path": "bad\\xff.md", "path_bytes": "YmFk/y5tZA=="}),
        (b"bad\\xff.md", {"path": "bad\\xff.md"}),
        (b"\xed\xa0\x80", {"path": "\\xed\\xa0\\x80", "path_bytes": "7aCA"}),
        (b"", {"path": ""}),
    ],
)
def test_path_fields_when_a_name_is_odd_then_has_its_exact_bytes_beside(
    raw: bytes, fields: dict[str, str]
) -> None:
    """Where the text cannot hold the bytes, base64 does; and only there."""
    assert fields == path_fields(raw)


@given(st.binary(), st.sampled_from(("path", "destination")))
def test_path_fields_when_read_back_from_json_then_are_the_same_bytes(
    raw: bytes, key: str
) -> None:
    """Any name comes through JSON unchanged."""
    document = json.loads(json.dumps(path_fields(raw, key)))
    assert raw == path_from_fields(document, key)


@given(st.binary())
def test_shown_when_given_any_bytes_then_is_printable(raw: bytes) -> None:
    """Whatever the name, what is shown can be printed anywhere."""
    assert show_path(raw).isprintable()
