"""How a target is written down, what it matches, and which contradict each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspace_guard.errors import ContractError, TargetPathError
from workspace_guard.files.relpath import RelPath
from workspace_guard.step.targets import Target, lawful_path, require_distinct


def path(text: str) -> RelPath:
    """A path below a root, of lawful parts."""
    return RelPath(tuple(part.encode() for part in text.split("/") if part))


# --- One path -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("output.md", "output.md"),
        ("a/b/output.md", "a/b/output.md"),
        ("./output.md", "output.md"),
        ("a/./b", "a/b"),
        ("会议 纪要.md", "会议 纪要.md"),
        ("report (final) [v2].md", "report (final) [v2].md"),
        ("-rf", "-rf"),
        ("--help/-x", "--help/-x"),
        ("two\nlines.md", "two\nlines.md"),
        ("a\tb\x1b[31m.md", "a\tb\x1b[31m.md"),
        ("~/notes", "~/notes"),
        ("$HOME", "$HOME"),
        ("...", "..."),
        ("..hidden", "..hidden"),
        ("a..b", "a..b"),
        (".hidden", ".hidden"),
        ("*.md", "*.md"),
        ("./glob:x", "glob:x"),
        ("inputs.md", "inputs.md"),
        ("a/inputs/b", "a/inputs/b"),
        ("a/TASK.md", "a/TASK.md"),
        ("a/execution.log", "a/execution.log"),
        ("x" * 255, "x" * 255),
    ],
)
def test_target_when_its_path_is_lawful_then_is_a_file_of_that_name(
    text: str, expected: str
) -> None:
    """Every name that a file can have works, and goes to the same place."""
    target = Target.parse(text)

    assert ("file", path(expected), path(expected)) == (
        target.kind,
        target.path,
        target.destination,
    )


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "is empty"),
        ("/etc/passwd", "is absolute; it must be relative"),
        ("/", "is absolute; it must be relative"),
        ("//a", "is absolute; it must be relative"),
        ("..", "leads upwards with '..'"),
        ("../output.md", "leads upwards with '..'"),
        ("a/../b", "leads upwards with '..'"),
        ("a/..", "leads upwards with '..'"),
        ("a/../../../b", "leads upwards with '..'"),
        ("a//b", "has an empty part (two slashes in a row)"),
        ("a//", "has an empty part (two slashes in a row)"),
        ("a\0b", "holds a NUL character"),
        ("\0", "holds a NUL character"),
        ("\ud800", "holds a character that no file name has"),
        (".", "is the folder itself"),
        ("./", "is the folder itself"),
        ("./.", "is the folder itself"),
        ("inputs", "lies below inputs/, which holds read-only copies"),
        ("inputs/", "lies below inputs/, which holds read-only copies"),
        ("inputs/a.md", "lies below inputs/, which holds read-only copies"),
        ("./inputs/a.md", "lies below inputs/, which holds read-only copies"),
        ("TASK.md", "is a file that the step itself writes"),
        ("./TASK.md", "is a file that the step itself writes"),
        ("TASK.md/", "is a file that the step itself writes"),
        ("execution.log", "is a file that the step itself writes"),
        ("execution.log/a", "is a file that the step itself writes"),
        ("glob:", "is empty"),
        ("glob:/tmp/*", "is absolute; it must be relative"),
        ("glob:../*", "leads upwards with '..'"),
        ("glob:a/../*", "leads upwards with '..'"),
        ("glob:inputs/*", "lies below inputs/, which holds read-only copies"),
        ("glob:TASK.md", "is a file that the step itself writes"),
        ("glob:out/*/", "is a pattern of folders"),
        ("a=b=c", "has more than one '='"),
        ("=b", "is empty"),
        ("a=", "is empty"),
        ("a=/b", "is absolute; it must be relative"),
        ("a=../b", "leads upwards with '..'"),
        ("a=b/../../c", "leads upwards with '..'"),
        ("a=b\0", "holds a NUL character"),
        ("a=b//c", "has an empty part (two slashes in a row)"),
        ("a=.", "is the folder itself"),
        ("out/=/b", "is absolute; it must be relative"),
        ("out/=../b", "leads upwards with '..'"),
        ("glob:*.md=..", "leads upwards with '..'"),
    ],
)
def test_target_when_its_path_is_unlawful_then_is_refused_with_the_rule(
    text: str, fact: str
) -> None:
    """A target is below the step and none of the names that the step itself uses."""
    with pytest.raises(TargetPathError) as caught:
        Target.parse(text)

    assert caught.value.message.endswith(f": {fact}")
    assert (
        caught.value.exit_status,
        caught.value.msgid,
    ) == (10, "target-path-invalid")


def test_target_when_its_refused_name_is_hostile_then_the_message_is_one_line() -> None:
    """A name can neither hide a line of the message nor move the cursor."""
    with pytest.raises(TargetPathError) as caught:
        Target.parse("../a\nb\x1b[2K\r")

    expected = r"target '../a\\nb\\x1b[2K\\r': leads upwards with '..'"
    assert expected == caught.value.message


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("C:/a", "holds a character that Windows does not allow in a name"),
        ("C:\\a", "holds a character that Windows does not allow in a name"),
        ("\\\\server\\share", "is absolute; it must be relative"),
        ("a\\..\\b", "leads upwards with '..'"),
        ("a:stream", "holds a character that Windows does not allow in a name"),
        ("nul", "has a part that is a device name on Windows"),
        ("a/Com1.txt", "has a part that is a device name on Windows"),
        ("a.", "has a part that ends in a dot or a space"),
        ("inputs\\a", "lies below inputs/, which holds read-only copies"),
    ],
)
def test_target_when_unlawful_on_windows_then_is_refused_there(
    text: str, fact: str
) -> None:
    """Windows has more ways out of a folder; each is known by its spelling."""
    with pytest.raises(TargetPathError) as caught:
        lawful_path(text, "windows")

    assert caught.value.message.endswith(f": {fact}")


@given(st.text(max_size=30) | st.text(alphabet="./a\\-", max_size=12))
def test_target_when_it_is_read_at_all_then_stays_below_the_step(text: str) -> None:
    """Whatever is written, no part of a target or destination leads out."""
    try:
        target = Target.parse(text)
    except TargetPathError:
        return

    for parts in (target.path.parts, target.destination.parts):
        assert not {b"", b".", b".."} & set(parts)
        assert not any(b"/" in part or b"\0" in part for part in parts)


# --- Kinds and destinations -----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "at", "destination"),
    [
        ("a.md=docs/b.md", "file", "a.md", "docs/b.md"),
        ("a.md=docs/", "file", "a.md", "docs/a.md"),
        ("out/a.md=docs/", "file", "out/a.md", "docs/a.md"),
        ("out/a.md=./", "file", "out/a.md", "a.md"),
        ("a.md=inputs/a.md", "file", "a.md", "inputs/a.md"),
        ("a.md=tasks/03_review/TASK.md", "file", "a.md", "tasks/03_review/TASK.md"),
        (r"a\=b.md", "file", "a=b.md", "a=b.md"),
        (r"a\=b.md=c\=d.md", "file", "a=b.md", "c=d.md"),
        (r"\==\=", "file", "=", "="),
        ("figures/", "folder", "figures", "figures"),
        ("figures/=docs/figures/", "folder", "figures", "docs/figures"),
        ("figures/=docs/figures", "folder", "figures", "docs/figures"),
        ("figures/=./", "folder", "figures", ""),
        ("a/b/", "folder", "a/b", "a/b"),
        ("glob:*.md", "glob", "*.md", ""),
        ("glob:out/*.md", "glob", "out/*.md", "out"),
        ("glob:out/*/x/*.md", "glob", "out/*/x/*.md", "out"),
        ("glob:out/[ab]/c.md", "glob", "out/[ab]/c.md", "out"),
        ("glob:out/a.md", "glob", "out/a.md", "out"),
        ("glob:out/*.md=docs", "glob", "out/*.md", "docs"),
        ("glob:out/*.md=./", "glob", "out/*.md", ""),
        ("glob:**/*.md", "glob", "**/*.md", ""),
    ],
)
def test_target_when_it_is_written_then_has_that_kind_and_destination(
    text: str, kind: str, at: str, destination: str
) -> None:
    """`PATH[=DESTINATION]`: a slash marks a folder, `glob:` a pattern."""
    target = Target.parse(text)

    assert (kind, path(at), path(destination)) == (
        target.kind,
        target.path,
        target.destination,
    )


@pytest.mark.parametrize(
    ("text", "found", "expected"),
    [
        ("a.md=docs/b.md", "a.md", "docs/b.md"),
        ("figures/", "figures/x/a.png", "figures/x/a.png"),
        ("figures/=docs", "figures/x/a.png", "docs/x/a.png"),
        ("figures/=./", "figures/a.png", "a.png"),
        ("glob:out/*/a.md=docs", "out/x/a.md", "docs/x/a.md"),
        ("glob:*.md=docs/", "a.md", "docs/a.md"),
    ],
)
def test_destination_when_a_file_is_found_then_keeps_the_folders_below_the_top(
    text: str, found: str, expected: str
) -> None:
    """A file of a folder or a pattern goes where its own part of the path says."""
    assert path(expected) == Target.parse(text).destination_of(path(found))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb.md", r"a\nb.md"),
        ("figures/", "figures/"),
        ("glob:*.md", "glob:*.md"),
    ],
)
def test_target_when_it_is_shown_then_is_as_it_was_written(
    text: str, shown: str
) -> None:
    """A person sees the spelling that the command line takes, made safe."""
    assert shown == str(Target.parse(text))


# --- What a target matches ------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.md", "a.md"),
        ("*", "a"),
        ("?.md", "a.md"),
        ("?.md", "版.md"),
        ("[会版].md", "版.md"),
        ("out/*.md", "out/a.md"),
        ("out/*.md", "out/-.md"),
        ("a*b", "a\nb"),
        ("out/*/a.md", "out/x/a.md"),
        ("**/*.md", "a.md"),
        ("**/*.md", "x/y/a.md"),
        ("out/**", "out/a"),
        ("out/**", "out/x/y/a"),
        ("out/**/a.md", "out/a.md"),
        ("out/**/a.md", "out/x/y/a.md"),
        ("[ab].md", "a.md"),
        ("[!ab].md", "c.md"),
        ("[[]x].md", "[x].md"),
        (".*", ".hidden"),
        ("out/.h*", "out/.hidden"),
        (".cache/**", ".cache/x"),
        ("A*.md", "Ab.md"),
        ("会*", "会议.md"),
    ],
)
def test_glob_when_a_file_fits_then_matches(pattern: str, found: str) -> None:
    """`*` and `?` stay within a part, `**` takes in any number of folders."""
    assert Target.parse(f"glob:{pattern}").matches(path(found))


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.md", "x/a.md"),
        ("*", "x/a"),
        ("out/*.md", "out/x/a.md"),
        ("out/*.md", "a.md"),
        ("*/a.md", "a.md"),
        ("**/a", "xa"),
        ("*.md", "a.MD"),
        ("*", ".hidden"),
        ("?hidden", ".hidden"),
        ("[.]hidden", ".hidden"),
        ("**", ".hidden"),
        ("**/*.md", ".cache/a.md"),
        ("out/**", "out/x/.git/config"),
        ("*.md", "TASK.md"),
        ("**", "TASK.md"),
        ("**", "execution.log"),
        ("*.log", "execution.log"),
        ("*/*.md", "inputs/output.snapshot.md"),
        ("**/*.md", "inputs/a/output.snapshot.md"),
    ],
)
def test_glob_when_a_file_does_not_fit_then_does_not_match(
    pattern: str, found: str
) -> None:
    """Hidden names have to be asked for; what the step itself wrote is no target."""
    assert not Target.parse(f"glob:{pattern}").matches(path(found))


@pytest.mark.parametrize(
    ("text", "found", "expected"),
    [
        ("report [v2].md", "report [v2].md", True),
        ("report [v2].md", "report v.md", False),
        ("*.md", "*.md", True),
        ("*.md", "a.md", False),
        ("figures/", "figures/a", True),
        ("figures/", "figures/.hidden/a", True),
        ("figures/", "figures", False),
        ("figures/", "figures2/a", False),
    ],
)
def test_literal_when_it_has_pattern_characters_then_they_mean_themselves(
    text: str, found: str, *, expected: bool
) -> None:
    """Without `glob:` before it a path is a name and nothing else."""
    assert expected == Target.parse(text).matches(path(found))


@pytest.mark.parametrize(
    ("pattern", "folder", "expected"),
    [
        ("*.md", "x", False),
        ("out/*.md", "out", True),
        ("out/*.md", "out/x", False),
        ("out/*/a.md", "out/x", True),
        ("**/*.md", "x/y", True),
        ("**/*.md", ".git", False),
        ("**", "inputs", False),
        ("out/**", "out/x/y", True),
    ],
)
def test_glob_when_a_folder_can_hold_no_match_then_is_not_walked(
    pattern: str, folder: str, *, expected: bool
) -> None:
    """A pattern is looked for where it can match, and nowhere else."""
    assert expected == Target.parse(f"glob:{pattern}").may_hold(path(folder))


_NAMES = st.lists(st.sampled_from(["a", "b", ".c", "a.md"]), min_size=1, max_size=4)
_PATTERNS = st.lists(
    st.sampled_from(["a", "*", "**", "?", "*.md", ".*"]), min_size=1, max_size=4
)


@given(_PATTERNS, _NAMES)
def test_glob_when_it_matches_then_every_folder_above_may_hold_it(
    pattern: list[str], names: list[str]
) -> None:
    """Not walking a folder never loses a match."""
    target = Target.parse("glob:" + "/".join(pattern))
    if not target.matches(path("/".join(names))):
        return

    above = [path("/".join(names[:depth])) for depth in range(1, len(names))]
    assert all(target.may_hold(folder) for folder in above)


# --- Targets among each other ---------------------------------------------------------


def distinct(*texts: str, fold_case: bool = False) -> None:
    """Check these targets together."""
    require_distinct(tuple(map(Target.parse, texts)), fold_case=fold_case)


@pytest.mark.parametrize(
    ("texts", "how"),
    [
        (("a.md", "a.md"), "are one: a.md, a.md"),
        (("a.md", "./a.md"), "are one: a.md, a.md"),
        (("a.md", "b.md=a.md"), "are one: a.md, a.md"),
        (("a.md", "c.md", "b.md=a.md"), "are one: a.md, a.md"),
        (("figures/", "figures/"), "are one: figures, figures"),
        (("figures/", "b/=figures"), "are one: figures, figures"),
        (("a", "b/=a"), "are one: a, a"),
        (("a", "glob:a/*"), "are one: a, a"),
        (("a", "a/b"), "lie inside one another: a, a/b"),
        (("a/b", "a"), "lie inside one another: a/b, a"),
        (("a/", "a/b/"), "lie inside one another: a, a/b"),
        (("a/b/c.md", "a/"), "lie inside one another: a/b/c.md, a"),
        (("a/=./", "b.md"), "lie inside one another: ., b.md"),
        (("a", "glob:x/*=a/b"), "lie inside one another: a, a/b"),
        (("a/", "glob:x/*=a/b"), "lie inside one another: a, a/b"),
    ],
)
def test_targets_when_they_want_one_place_then_are_refused(
    texts: tuple[str, ...], how: str
) -> None:
    """Two targets with one destination are refused, and one within another's folder."""
    with pytest.raises(ContractError) as caught:
        distinct(*texts)

    assert caught.value.message.endswith(f"their destinations {how}")
    assert caught.value.hint == "give one another place with --target PATH=DESTINATION"


@pytest.mark.parametrize(
    "texts",
    [
        (),
        ("a.md",),
        ("a.md", "b.md"),
        ("a.md", "a.md=b.md"),
        ("a", "ab"),
        ("a/b", "a/bc"),
        ("a/", "b/"),
        ("a/x.md", "b/x.md"),
        ("A.md", "a.md"),
        ("glob:out/*.md", "glob:out/*.csv"),
        ("glob:*.md", "a.csv"),
        ("glob:*.md", "a/"),
        ("glob:a/*.md=docs", "glob:b/*.md=docs"),
    ],
)
def test_targets_when_they_want_several_places_then_are_lawful(
    texts: tuple[str, ...],
) -> None:
    """Patterns may share a folder: their files are compared once they are there."""
    assert distinct(*texts) is None


@pytest.mark.case("E14")
@pytest.mark.parametrize(
    "texts",
    [
        ("A.md", "a.md"),
        ("figures/", "FIGURES/"),
        ("A/b.md", "a/"),
        ("Ä.md", "ä.md"),
        ("STRASSE", "straße"),
        ("a.md", "b.md=A.MD"),
    ],
)
def test_targets_when_case_does_not_count_then_those_that_differ_in_it_are_one(
    texts: tuple[str, ...],
) -> None:
    """On a case-insensitive file system two that differ only in case are refused."""
    with pytest.raises(ContractError, match=r"are one|lie inside one another"):
        distinct(*texts, fold_case=True)


@pytest.mark.case("E14")
@pytest.mark.parametrize("text", ["task.MD", "Inputs/a.md", "Execution.log"])
def test_target_when_case_does_not_count_then_the_steps_own_names_are_refused(
    text: str,
) -> None:
    """A name that is the step's own but for its case is the step's own there."""
    distinct(text)

    with pytest.raises(TargetPathError):
        distinct(text, fold_case=True)


def test_targets_when_a_name_is_no_utf8_then_case_is_folded_around_it() -> None:
    """Stray bytes in a name break nothing and are compared as they are."""
    one = Target(path=RelPath((b"A\xff",)), destination=RelPath((b"A\xff",)))
    other = Target(path=RelPath((b"a\xff",)), destination=RelPath((b"a\xff",)))

    with pytest.raises(ContractError, match="are one"):
        require_distinct((one, other), fold_case=True)
