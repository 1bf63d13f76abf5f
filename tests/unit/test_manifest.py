"""The manifest: rows that compare as bytes, and a file of which no byte is free."""

from __future__ import annotations

import hashlib
import marshal
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspace_guard.errors import StoreDamaged
from workspace_guard.snapshot.manifest import (
    GRANULARITY_NS,
    NO_EXTRA,
    SCHEMA,
    Entry,
    FolderRecord,
    Gap,
    Head,
    Manifest,
    Row,
    Stored,
    decode,
    decode_head,
    encode,
    is_young,
)

MOMENT_NS = 1_800_000_000_000_000_000
OLD_NS = MOMENT_NS - 10**12
DIGEST = bytes(range(32))
HEAD = Head(created_ns=MOMENT_NS, files=3, size_bytes=12, packs=("aa", "bb"))


def row(mode: int, *, inode: int = 1, ctime_ns: int = OLD_NS, size: int = 4) -> Row:
    """A row of an entry that root owns."""
    return (mode, inode, 7, 1, 0, 0, size, OLD_NS, ctime_ns)


FILE: Stored = (row(stat.S_IFREG | 0o4755, inode=2), DIGEST, NO_EXTRA)
MARKED: Stored = (
    row(stat.S_IFREG | 0o600, inode=3),
    None,
    (None, None, ((b"user.a", b"\0\xff"), (b"user.b", b""))),
)
FOLDER: Stored = (row(stat.S_IFDIR | 0o700, inode=4), None, NO_EXTRA)
LINK: Stored = (row(stat.S_IFLNK | 0o777, inode=5), None, (b"to\xff", None, ()))
DEVICE: Stored = (row(stat.S_IFCHR | 0o666, inode=6), None, (None, 259, ()))


def record(**stored: Stored) -> FolderRecord:
    """A folder's record with entries by name."""
    names = b"\0".join(name.encode() for name in stored)
    return FolderRecord.of(names, list(stored.values()), moment_ns=MOMENT_NS)


def sample() -> Manifest:
    """A manifest with every kind of thing in it."""
    odd = FolderRecord.of(b"two\nlines\0bad\xff", [FILE, MARKED], moment_ns=MOMENT_NS)
    return Manifest(
        moment_ns=MOMENT_NS,
        top=(row(stat.S_IFDIR | 0o755), None, (None, None, ((b"user.t", b"1"),))),
        folders={
            b"": record(file=FILE, sub=FOLDER, link=LINK, null=DEVICE, shut=FOLDER),
            b"sub": odd,
        },
        links=((b"file", b"sub/two\nlines"),),
        gaps=(
            Gap(
                kind="unreadable",
                path=b"shut",
                could_hide_escape=True,
                message="the folder: Permission denied",
            ),
        ),
        skip=frozenset({b"tasks/repair_1"}),
    )


def file_of(manifest: Manifest) -> bytes:
    """The bytes of a manifest's file."""
    return b"".join(encode(manifest, HEAD)[1])


def test_file_when_read_back_then_is_the_same_manifest() -> None:
    """Nothing is lost in the file, odd names and attributes least of all."""
    digest, head, manifest = decode(file_of(sample()), b"somewhere")
    assert (encode(sample(), HEAD)[0], HEAD, sample()) == (digest, head, manifest)


def test_file_when_looked_at_then_starts_with_schema_and_its_digest() -> None:
    """The digest is of all that follows the second line."""
    schema, digest, rest = file_of(sample()).split(b"\n", 2)
    assert schema == b"workspace-guard/manifest/1"
    assert hashlib.sha256(rest).hexdigest().encode() == digest


def test_file_when_any_byte_is_changed_then_is_refused() -> None:
    """No byte of the file is beyond its digest."""
    whole = file_of(sample())
    accepted = list[int]()
    for position in range(len(whole)):
        broken = bytearray(whole)
        broken[position] ^= 0x01
        try:
            decode(bytes(broken), b"somewhere")
        except StoreDamaged:
            continue
        accepted.append(position)
    assert accepted == []


@pytest.mark.parametrize("length", [0, 5, 27, 60, 95, 300, -1])
def test_file_when_cut_short_then_is_refused(length: int) -> None:
    """A torn file is no manifest."""
    with pytest.raises(StoreDamaged):
        decode(file_of(sample())[:length], b"somewhere")


def test_file_when_of_another_version_then_is_refused_by_name() -> None:
    """A later version is not guessed at, and the message names the file."""
    later = file_of(sample()).replace(SCHEMA, b"workspace-guard/manifest/2", 1)
    with pytest.raises(StoreDamaged, match="store/x: is no manifest of this version"):
        decode(later, b"store/x")


def test_body_when_digest_is_wrong_then_is_never_decoded() -> None:
    """Marshal sees no byte that the digest does not vouch for."""
    bomb = marshal.dumps([[[]]])[:-2]
    lines = SCHEMA + b"\n" + b"0" * 64 + b"\n{}\n"
    with pytest.raises(StoreDamaged, match="does not agree with its digest"):
        decode(lines + bomb, b"x")


def test_head_when_only_the_start_is_there_then_can_be_read() -> None:
    """Listing snapshots needs no body."""
    assert decode_head(file_of(sample())[:400], b"x") == HEAD


def test_head_when_no_manifest_then_is_refused() -> None:
    """A file that is no manifest has no head."""
    with pytest.raises(StoreDamaged):
        decode_head(b"something else\n\n\n", b"x")


def test_entry_when_asked_by_path_then_is_spelled_out() -> None:
    """An entry has its permission bits, digest, link text and attributes."""
    manifest = sample()
    assert manifest.entry(b"file") == Entry(
        type="file",
        mode=0o4755,
        uid=0,
        gid=0,
        size=4,
        mtime_ns=OLD_NS,
        ctime_ns=OLD_NS,
        inode=2,
        device=7,
        nlink=1,
        sha256=DIGEST.hex(),
    )
    link = manifest.entry(b"link")
    device = manifest.entry(b"null")
    assert link is not None
    assert device is not None
    assert (link.type, link.link) == ("link", b"to\xff")
    assert (device.type, device.rdev) == ("character_device", 259)


@pytest.mark.parametrize(
    "path", [b"none", b"sub/none", b"file/in a file", b"shut/unknown", b"/", b"sub/"]
)
def test_entry_when_nothing_stood_there_then_is_none(path: bytes) -> None:
    """A path that the tree did not have gives nothing, also below a file."""
    assert sample().entry(path) is None


@pytest.mark.case("E10", "E11")
def test_entry_when_name_is_odd_then_is_found_by_its_exact_bytes() -> None:
    """Names are bytes, with newlines and what is no UTF-8."""
    marked = sample().entry(b"sub/bad\xff")
    assert marked is not None
    assert marked.xattrs == ((b"user.a", b"\0\xff"), (b"user.b", b""))
    assert marked.sha256 is None


def test_entries_when_listed_then_a_folder_comes_before_what_it_holds() -> None:
    """The whole tree is listed, the top first."""
    assert [path for path, _ in sample().entries()] == [
        b"",
        b"file",
        b"sub",
        b"link",
        b"null",
        b"shut",
        b"sub/two\nlines",
        b"sub/bad\xff",
    ]


@pytest.mark.parametrize(
    ("path", "captured"),
    [
        (b"file", True),
        (b"link", True),
        (b"null", True),
        (b"sub", True),
        (b"shut", False),
        (b"sub/bad\xff", False),
    ],
)
def test_captured_when_content_was_not_read_then_is_false(
    path: bytes, captured: bool
) -> None:
    """A file without digest and a folder without record cannot be put back."""
    manifest = sample()
    entry = manifest.entry(path)
    assert entry is not None
    assert manifest.is_captured(path, entry) is captured


@pytest.mark.parametrize(
    ("ctime_ns", "young"),
    [
        (MOMENT_NS - GRANULARITY_NS, False),
        (MOMENT_NS - GRANULARITY_NS + 1, True),
        (MOMENT_NS, True),
        (MOMENT_NS + 10**12, True),
    ],
)
@pytest.mark.case("S2")
def test_row_when_changed_within_a_tick_of_the_snapshot_then_is_young(
    ctime_ns: int, young: bool
) -> None:
    """What changed just before the snapshot, or after it, is not trusted."""
    one = row(stat.S_IFREG, ctime_ns=ctime_ns)
    assert is_young(one, MOMENT_NS) is young
    packed = FolderRecord.of(b"x", [(one, None, NO_EXTRA)], moment_ns=MOMENT_NS)
    assert packed.young is young


def test_record_when_folder_is_empty_then_has_no_names() -> None:
    """An empty folder is a record of nothing."""
    empty = FolderRecord.of(b"", [], moment_ns=MOMENT_NS)
    assert (empty.all_names(), empty.decode()) == ([], {})


names = st.binary(min_size=1, max_size=20).filter(
    lambda name: b"\0" not in name and b"/" not in name
)
numbers = st.integers(min_value=0, max_value=2**64 - 1)
rows = st.tuples(
    st.sampled_from([FILE[0][0], FOLDER[0][0], LINK[0][0], DEVICE[0][0]]),
    *[numbers] * 8,
)
pairs = st.tuples(st.binary(min_size=1, max_size=8), st.binary(max_size=8))
extras = st.one_of(
    st.just(NO_EXTRA),
    st.tuples(
        st.none() | st.binary(),
        st.none() | numbers,
        st.lists(pairs, max_size=2).map(tuple),
    ),
)
digests = st.none() | st.binary(min_size=32, max_size=32).filter(any)


@given(st.dictionaries(names, st.tuples(rows, digests, extras), max_size=6))
def test_record_when_decoded_then_gives_what_was_packed(
    entries: dict[bytes, Stored],
) -> None:
    """Packing a folder loses nothing, whatever its names and numbers."""
    packed = FolderRecord.of(
        b"\0".join(entries), list(entries.values()), moment_ns=MOMENT_NS
    )
    assert entries == packed.decode()
