"""The store: what a snapshot takes in, and what of it can be trusted afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from snapshots import Ground, as_ordinary, deep_tree, wait_for

from workspace_guard.errors import (
    SnapshotTooLarge,
    StateWriteFailed,
    StoreDamaged,
    StoreIncomplete,
)
from workspace_guard.files.tree import CHUNK_BYTES
from workspace_guard.snapshot.manifest import Entry, Gap
from workspace_guard.snapshot.store import Snapshot, Store, Summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LARGE = CHUNK_BYTES + 17


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """An empty tree."""
    return Ground.make(tmp_path)


@pytest.fixture
def ordinary(place: Path) -> Ground:
    """An empty tree of an ordinary user."""
    return Ground.make_for_ordinary(place)


def entry_of(snapshot: Snapshot, path: bytes) -> Entry:
    """What stood at a path."""
    entry = snapshot.manifest.entry(path)
    assert entry is not None
    return entry


def content_of(store: Store, snapshot: Snapshot, path: bytes) -> bytes:
    """Read a content back the way a restore does."""
    sha256 = entry_of(snapshot, path).sha256
    assert sha256 is not None
    out = store.folder.parent / "content"
    with out.open("wb") as file:
        store.copy_content(sha256, file.fileno())
    return out.read_bytes()


def files_of(store: Store, suffix: str = "") -> list[Path]:
    """The files of the store with a suffix."""
    return sorted(store.folder.glob(f"*{suffix}"))


def only(store: Store, suffix: str) -> Path:
    """The one file of the store with a suffix."""
    [found] = files_of(store, suffix)
    return found


# --- What is taken in -----------------------------------------------------------------


@pytest.mark.case("S37")
def test_create_when_loaded_by_another_then_gives_manifest_and_bytes(
    ground: Ground,
) -> None:
    """A snapshot outlives the process that made it; content is kept to the byte."""
    ground.put(".gitattributes", b"* text=auto\n")
    ground.put("sub/a", b"line\r\nline\n\0\xff")
    taken = ground.take()
    store = Store(ground.store.folder)
    loaded = store.load(taken.id)
    assert taken == loaded
    assert content_of(store, loaded, b"sub/a") == b"line\r\nline\n\0\xff"


def test_create_when_done_then_all_is_for_its_owner_only(ground: Ground) -> None:
    """Nobody else can read what a workspace holds."""
    ground.put("a", b"secret")
    ground.take()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in files_of(ground.store)}
    folder = stat.S_IMODE(ground.store.folder.stat().st_mode)
    assert (folder, modes) == (0o700, {0o600})


@pytest.mark.case("S17", "S38")
def test_create_when_git_has_rules_then_takes_all_and_runs_nothing(
    ground: Ground,
) -> None:
    """No ignore file leaves anything out, and nothing of the project is executed."""
    canary = ground.outside / "canary"
    ground.put(".gitignore", b"*\n")
    ground.put(".gitattributes", b"*.txt filter=trap\n")
    ground.put(".git/config", b'[filter "trap"]\n\tclean = touch %b\n' % bytes(canary))
    ground.put("ignored/build.txt", b"built\n")
    snapshot = ground.take()
    assert content_of(ground.store, snapshot, b"ignored/build.txt") == b"built\n"
    assert not canary.exists()


@pytest.mark.case("S14")
def test_create_when_a_link_leads_to_a_folder_then_is_a_link_and_not_entered(
    ground: Ground,
) -> None:
    """A link is its text, however often it would lead into itself."""
    (ground.top / "loop").symlink_to(".")
    (ground.top / "away").symlink_to(ground.outside)
    manifest = ground.take().manifest
    links = {path: entry.link for path, entry in manifest.entries() if path}
    assert links == {b"loop": b".", b"away": bytes(ground.outside)}


@pytest.mark.case("S13", "E16", "E17")
def test_create_when_no_regular_file_then_has_its_type_and_is_never_opened(
    ground: Ground,
) -> None:
    """A FIFO without a writer does not hold up the walk; sockets are named as such."""
    os.mkfifo(ground.top / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(ground.top / "sock"))
        manifest = ground.take().manifest
    types = {path: entry.type for path, entry in manifest.entries() if path}
    assert types == {b"pipe": "fifo", b"sock": "socket"}


@pytest.mark.case("E17")
def test_create_when_a_device_node_then_has_its_number(ground: Ground) -> None:
    """A device is kept by its number, of which nothing is read."""
    require("root")
    os.mknod(ground.top / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    entry = entry_of(ground.take(), b"null")
    assert (entry.type, entry.rdev) == ("character_device", os.makedev(1, 3))


@pytest.mark.case("S40")
def test_create_when_a_folder_is_empty_then_is_an_entry(ground: Ground) -> None:
    """An empty folder is part of the tree."""
    (ground.top / "empty" / "inner").mkdir(parents=True)
    paths = [path for path, _ in ground.take().manifest.entries()]
    assert paths == [b"", b"empty", b"empty/inner"]


@pytest.mark.case("S16", "E10", "E11")
def test_create_when_names_are_odd_then_has_them_byte_for_byte(ground: Ground) -> None:
    """A name is what the kernel gave, whatever it does to a terminal."""
    require("undecodable-names")
    names = [b"two\nlines", b"esc\x1b[2J\r", b"bad\xff", b"-rf", b" "]
    for name in names:
        ground.put(name, name)
    snapshot = ground.take()
    kept = {name: content_of(ground.store, snapshot, name) for name in names}
    assert {name: name for name in names} == kept


def test_create_when_attributes_are_there_then_has_them(ground: Ground) -> None:
    """Extended attributes are kept of files and of folders, the top included."""
    require("xattr")
    for path in (ground.top, ground.put("sub/a").parent, ground.top / "sub/a"):
        os.setxattr(path, "user.origin", path.name.encode())
    snapshot = ground.take()
    kept = [entry_of(snapshot, path).xattrs for path in (b"", b"sub", b"sub/a")]
    assert kept == [
        ((b"user.origin", b"top"),),
        ((b"user.origin", b"sub"),),
        ((b"user.origin", b"a"),),
    ]


def test_create_when_content_repeats_then_keeps_it_once(ground: Ground) -> None:
    """The same bytes lie in the store once, small or large."""
    for number in range(3):
        ground.put(f"small-{number}", b"small")
        ground.put(f"large-{number}", b"L" * LARGE)
    snapshot = ground.take()
    assert only(ground.store, ".pack").stat().st_size == 5 + LARGE
    assert content_of(ground.store, snapshot, b"small-2") == b"small"
    assert content_of(ground.store, snapshot, b"large-2") == b"L" * LARGE


def test_create_when_a_file_has_two_names_then_they_are_one_group(
    ground: Ground,
) -> None:
    """Hard links of the tree are known as such, and counted once."""
    ground.put("a", b"shared")
    os.link(ground.top / "a", ground.top / "b")
    ground.put("c", b"alone")
    os.link(ground.top / "c", ground.outside / "c")
    snapshot = ground.take()
    groups = [sorted(group) for group in snapshot.manifest.links]
    assert groups == [[b"a", b"b"]]
    assert (snapshot.head.files, snapshot.head.size_bytes) == (3, 11)


def test_create_when_a_file_has_many_names_then_reads_it_once(ground: Ground) -> None:
    """Names cost nothing but their entries."""
    require("procfs")
    ground.put("name-0", b"n" * 4 * CHUNK_BYTES)
    for number in range(1, 8):
        os.link(ground.top / "name-0", ground.top / f"name-{number}")
    before = bytes_read()
    ground.take()
    assert bytes_read() - before < 5 * CHUNK_BYTES


def bytes_read() -> int:
    """How much this process has read since it was started."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line[7:]) for line in lines if line.startswith("rchar: "))


def test_create_when_a_file_is_large_then_streams_it(ground: Ground) -> None:
    """Content never lies in memory whole."""
    size = 24 * CHUNK_BYTES
    with ground.put("large").open("wb") as file:
        for number in range(24):
            file.write(bytes([number]) * CHUNK_BYTES)
    tracemalloc.start()
    try:
        snapshot = ground.take()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * CHUNK_BYTES
    kept = content_of(ground.store, snapshot, b"large")
    assert (size, True) == (len(kept), kept == (ground.top / "large").read_bytes())


def test_create_when_something_is_skipped_then_is_not_in_it(ground: Ground) -> None:
    """What the caller leaves out is left out with all below it, and nothing else."""
    ground.put("tasks/repair_1/output.md")
    ground.put("tasks/repair_10/output.md")
    snapshot = ground.take(skip=frozenset({b"tasks/repair_1"}))
    assert [path for path, _ in snapshot.manifest.entries()] == [
        b"",
        b"tasks",
        b"tasks/repair_10",
        b"tasks/repair_10/output.md",
    ]
    assert snapshot.manifest.skip == {b"tasks/repair_1"}


@pytest.mark.slow
def test_create_when_a_tree_is_very_deep_then_takes_all_of_it(ground: Ground) -> None:
    """Depth costs neither descriptors nor the interpreter's stack."""
    with deep_tree(ground.top, 1_500), few_descriptors(300):
        manifest = ground.take().manifest
        changes = ground.compare(manifest).changes
    assert sum(1 for _ in manifest.entries()) == 1_501
    assert manifest.gaps == ()
    assert changes == ()


@contextlib.contextmanager
def few_descriptors(limit: int) -> Iterator[None]:
    """Allow this process few open files for a block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_create_when_another_file_system_is_mounted_then_covers_it_and_says_so(
    ground: Ground,
) -> None:
    """A mount below the workspace is part of it, and a gap that hides nothing."""
    require("root")
    (ground.top / "mnt").mkdir()
    mount = ["mount", "-t", "tmpfs", "none", str(ground.top / "mnt")]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        ground.put("mnt/inside", b"on another file system")
        snapshot = ground.take()
    finally:
        subprocess.run(["umount", str(ground.top / "mnt")], check=True)
    kept = content_of(ground.store, snapshot, b"mnt/inside")
    assert kept == b"on another file system"
    [gap] = snapshot.manifest.gaps
    assert (gap.kind, gap.path, gap.could_hide_escape) == ("mount", b"mnt", False)


# --- What cannot be read, or moves ----------------------------------------------------


def test_create_when_a_file_is_unreadable_then_is_a_gap(ordinary: Ground) -> None:
    """A file that cannot be read is in the manifest, without content, and stated."""
    require("ordinary-user")
    with as_ordinary():
        ordinary.put("shut", b"secret").chmod(0)
        snapshot = ordinary.take()
    assert snapshot.manifest.gaps == (
        Gap(
            kind="unreadable",
            path=b"shut",
            could_hide_escape=False,
            message="Permission denied",
        ),
    )
    entry = entry_of(snapshot, b"shut")
    assert (entry.size, entry.mode, entry.sha256) == (6, 0, None)


def test_create_when_a_folder_is_unreadable_then_is_a_gap_that_can_hide(
    ordinary: Ground,
) -> None:
    """Nobody can say what goes on in a folder that cannot be read."""
    require("ordinary-user")
    with as_ordinary():
        ordinary.put("shut/secret").parent.chmod(0)
        try:
            manifest = ordinary.take().manifest
        finally:
            (ordinary.top / "shut").chmod(0o700)
    assert [(gap.kind, gap.path, gap.could_hide_escape) for gap in manifest.gaps] == [
        ("unreadable", b"shut", True)
    ]


@contextlib.contextmanager
def meddling(edit: Callable[[], object]) -> Iterator[None]:
    """Do something over and over in another thread while the block runs."""
    done = threading.Event()

    def run() -> None:
        while not done.is_set():
            edit()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.case("S10")
def test_create_when_files_come_and_go_then_ends_and_has_the_others(
    ground: Ground,
) -> None:
    """A file that vanishes between listing and reading is no error."""
    for number in range(200):
        ground.put(f"steady-{number}", b"steady")

    def come_and_go() -> None:
        for number in range(20):
            path = ground.top / f"fleeting-{number}"
            path.write_bytes(b"x")
            path.unlink()

    with meddling(come_and_go):
        manifests = [ground.take().manifest for _ in range(5)]
    for manifest in manifests:
        paths = {path for path, _ in manifest.entries()}
        assert {b"steady-%d" % number for number in range(200)} <= paths
        assert {gap.kind for gap in manifest.gaps} <= {"vanished", "unstable"}


@pytest.mark.case("S11")
def test_create_when_a_file_never_holds_still_then_is_a_gap_that_can_hide(
    ground: Ground,
) -> None:
    """What was read of a moving file is no state of it, and is not kept as one."""
    moving = ground.put("moving", b"m" * 16 * CHUNK_BYTES)
    ground.put("steady", b"steady")
    with meddling(lambda: os.utime(moving)):
        snapshot = ground.take()
    assert [
        (gap.kind, gap.path, gap.could_hide_escape) for gap in snapshot.manifest.gaps
    ] == [("unstable", b"moving", True)]
    assert entry_of(snapshot, b"moving").sha256 is None
    assert content_of(ground.store, snapshot, b"steady") == b"steady"
    assert only(ground.store, ".pack").stat().st_size == 6


@pytest.mark.case("S11")
def test_create_when_a_folder_never_holds_still_then_is_a_gap_that_can_hide(
    ground: Ground,
) -> None:
    """A listing that mixes two moments is stated as one."""
    for number in range(300):
        ground.put(f"steady-{number}")

    def come_and_go() -> None:
        (ground.top / "fleeting").touch()
        (ground.top / "fleeting").unlink()

    def unsteady() -> bool:
        gaps = ground.take().manifest.gaps
        return ("unstable", b"", True) in [
            (gap.kind, gap.path, gap.could_hide_escape) for gap in gaps
        ]

    with meddling(come_and_go):
        wait_for(unsteady)


# --- Refused, or given up -------------------------------------------------------------


@pytest.mark.case("E68")
def test_create_when_too_large_then_is_refused_before_anything_is_written(
    ground: Ground,
) -> None:
    """A sparse giant is refused by its size, with the size and the option named."""
    with ground.put("giant").open("wb") as file:
        file.truncate(50 << 30)
    with pytest.raises(SnapshotTooLarge) as caught:
        ground.take(max_bytes=2 << 30)
    assert "holds 53687091200 bytes" in caught.value.message
    assert "2147483648" in caught.value.message
    assert caught.value.hint == "allow more with --max-snapshot 53687091200"
    assert not ground.store.folder.exists()


def test_create_when_exactly_as_large_as_allowed_then_is_taken(ground: Ground) -> None:
    """The bound is inclusive; two names of one file count once."""
    ground.put("a", b"12345")
    os.link(ground.top / "a", ground.top / "b")
    assert ground.take(max_bytes=5).head.size_bytes == 5


class Stop(Exception):
    """What a caller raises to interrupt."""


def test_create_when_interrupted_then_leaves_nothing_half_done(ground: Ground) -> None:
    """Whatever ends the work, the store is as it was."""
    ground.put("a", b"kept before")
    first = ground.take()
    before = files_of(ground.store)
    ground.put("b/c", b"never kept" * CHUNK_BYTES)
    calls = iter(range(100))

    def check() -> None:
        if next(calls) == 2:
            raise Stop

    with pytest.raises(Stop):
        ground.take(check=check)
    assert before == files_of(ground.store)
    assert first == ground.store.load(first.id)


WRITER = """
import resource, signal, sys
from pathlib import Path
from workspace_guard.errors import GuardError
from workspace_guard.files.tree import Folder
from workspace_guard.snapshot.store import Store

top, store, limit = sys.argv[1:]
if int(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
try:
    with Folder.open(top) as folder:
        print(Store(Path(store)).create(folder).id)
except GuardError as error:
    print(type(error).__name__, error.exit_status, error.message)
"""


def write_in_a_process(ground: Ground, limit: int = 0, *, shell: str = "") -> str:
    """Take a snapshot in a process of its own, and give what it prints."""
    command = [sys.executable, "-c", WRITER]
    command += [str(ground.top), str(ground.store.folder), str(limit)]
    if shell:
        command = ["unshare", "--mount", "sh", "-c", shell, "sh", *command]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.parametrize("limit", [1, 40_000, 3 * CHUNK_BYTES])
def test_create_when_the_pack_cannot_grow_then_says_so_and_cleans_up(
    ground: Ground, limit: int
) -> None:
    """A write that fails in the middle names path and fact and leaves no litter."""
    for number in range(5):
        ground.put(f"file-{number}", bytes([number]) * CHUNK_BYTES)
    said = write_in_a_process(ground, limit)
    assert said.startswith(f"StateWriteFailed 55 {ground.store.folder}/")
    assert said.endswith(": File too large")
    assert files_of(ground.store) == []


def test_create_when_the_manifest_cannot_be_written_then_the_pack_goes_too(
    ground: Ground,
) -> None:
    """Content that no manifest names is not left behind."""
    for number in range(300):
        ground.put(f"a name that is rather long, number {number}")
    assert "File too large" in write_in_a_process(ground, 4_096)
    assert files_of(ground.store) == []


def test_create_when_the_disk_is_full_then_says_so_and_cleans_up(
    ground: Ground,
) -> None:
    """A full disk is a plain error with what to do about it."""
    require("root")
    for number in range(3):
        ground.put(f"file-{number}", bytes([number]) * 50_000)
    ground.store.folder.mkdir()
    mounted = f"mount -t tmpfs -o size=64k none '{ground.store.folder}' || exit 77"
    left = f"ls -A '{ground.store.folder}'"
    said = write_in_a_process(ground, shell=f'{mounted}; "$@"; {left}')
    assert said.startswith(f"StateWriteFailed 55 {ground.store.folder}/")
    assert said.endswith(": No space left on device")


def test_create_when_the_store_cannot_be_made_then_says_so(ground: Ground) -> None:
    """A store below a file cannot be, and the message names it."""
    ground.store.folder.write_bytes(b"")
    blocked = Store(ground.store.folder / "inner")
    with pytest.raises(StateWriteFailed, match="store/inner: Not a directory"):
        Ground(
            top=ground.top,
            store=blocked,
            quarantine=ground.quarantine,
            outside=ground.outside,
        ).take()


@pytest.mark.case("S28")
def test_load_when_the_snapshot_failed_then_is_refused(ordinary: Ground) -> None:
    """Of a store that could not be written nothing can be restored."""
    require("ordinary-user")
    with as_ordinary():
        ordinary.put("a", b"1")
        ordinary.store.folder.mkdir(mode=0o500)
        with pytest.raises(StateWriteFailed, match="Permission denied"):
            ordinary.take()
        with pytest.raises(StoreIncomplete):
            ordinary.store.load("0123456789ab")
    assert (ordinary.top / "a").read_bytes() == b"1"


# --- What can be trusted --------------------------------------------------------------


def test_load_when_a_pack_is_gone_then_is_refused(ground: Ground) -> None:
    """A manifest whose content is missing restores nothing."""
    ground.put("a", b"1")
    snapshot = ground.take()
    only(ground.store, ".pack").unlink()
    with pytest.raises(StoreIncomplete, match=snapshot.id):
        Store(ground.store.folder).load(snapshot.id)


def test_load_when_an_index_is_gone_then_is_refused(ground: Ground) -> None:
    """A pack without its index was never finished."""
    ground.put("a", b"1")
    snapshot = ground.take()
    only(ground.store, ".index").unlink()
    with pytest.raises(StoreIncomplete, match=snapshot.id):
        Store(ground.store.folder).load(snapshot.id)


@pytest.mark.parametrize("snapshot_id", ["0123456789ab", "", "../../etc/pw", "a" * 13])
def test_load_when_there_is_no_such_snapshot_then_is_refused(
    ground: Ground, snapshot_id: str
) -> None:
    """An id that is none leads nowhere, least of all out of the store."""
    ground.take()
    with pytest.raises(StoreIncomplete):
        ground.store.load(snapshot_id)


@pytest.mark.parametrize("suffix", [".manifest", ".index"])
def test_load_when_a_byte_was_changed_then_is_refused(
    ground: Ground, suffix: str
) -> None:
    """Neither manifest nor index can be changed unseen."""
    ground.put("a", b"1")
    snapshot = ground.take()
    flip_last_byte(only(ground.store, suffix))
    with pytest.raises(StoreDamaged, match="does not agree with its digest"):
        Store(ground.store.folder).load(snapshot.id)


def test_load_when_a_pack_was_cut_then_is_refused(ground: Ground) -> None:
    """A pack that is shorter than its index says is damaged."""
    ground.put("a", b"12345")
    snapshot = ground.take()
    os.truncate(only(ground.store, ".pack"), 4)
    with pytest.raises(StoreDamaged, match="its pack has 4 bytes, 5 were written"):
        Store(ground.store.folder).load(snapshot.id)


def test_load_when_named_for_another_then_is_refused(ground: Ground) -> None:
    """A manifest under another's name is not that one."""
    snapshot = ground.take()
    path = only(ground.store, ".manifest")
    path.rename(path.with_name("0123456789ab.manifest"))
    with pytest.raises(StoreDamaged, match="of another snapshot"):
        ground.store.load("0123456789ab")
    with pytest.raises(StoreIncomplete):
        ground.store.load(snapshot.id)


@pytest.mark.parametrize("size", [5, LARGE])
def test_content_when_a_byte_was_changed_then_is_refused(
    ground: Ground, size: int
) -> None:
    """What is read from the store is checked, every time."""
    ground.put("a", b"x" * size)
    snapshot = ground.take()
    flip_last_byte(only(ground.store, ".pack"))
    with pytest.raises(StoreDamaged, match=str(entry_of(snapshot, b"a").sha256)):
        content_of(ground.store, snapshot, b"a")


def test_content_when_unknown_then_is_refused(ground: Ground) -> None:
    """A content that no snapshot has is not made up."""
    ground.put("a", b"1")
    ground.take()
    with pytest.raises(StoreIncomplete), (ground.outside / "x").open("wb") as file:
        ground.store.copy_content(hashlib.sha256(b"2").hexdigest(), file.fileno())


def flip_last_byte(path: Path) -> None:
    """Damage a file without changing its length."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 0xFF
    path.write_bytes(content)


# --- Several snapshots ----------------------------------------------------------------


def test_create_when_content_is_there_already_then_adds_only_the_new(
    ground: Ground,
) -> None:
    """A second snapshot leans on the first one's content."""
    ground.put("a", b"first")
    first = ground.take()
    ground.put("b", b"second")
    second = ground.take()
    sizes = sorted(path.stat().st_size for path in files_of(ground.store, ".pack"))
    assert sizes == [5, 6]
    store = Store(ground.store.folder)
    loaded = store.load(second.id)
    assert content_of(store, loaded, b"a") == b"first"
    assert (first.id, second.id) == tuple(one.id for one in store.list())


def test_create_when_another_process_dropped_the_content_then_keeps_it_anew(
    ground: Ground,
) -> None:
    """What this process knew of the store may be gone."""
    ground.put("a", b"first")
    first = ground.take()
    Store(ground.store.folder).drop(first.id)
    second = ground.take()
    store = Store(ground.store.folder)
    assert content_of(store, store.load(second.id), b"a") == b"first"


def test_create_when_nothing_is_new_then_writes_no_pack(ground: Ground) -> None:
    """A snapshot of known content is a manifest and no more."""
    ground.put("a", b"first")
    ground.take()
    second = ground.take()
    assert len(files_of(ground.store, ".pack")) == 1
    assert content_of(ground.store, second, b"a") == b"first"


def test_drop_when_others_need_the_content_then_keeps_it(ground: Ground) -> None:
    """Only what no other snapshot needs goes."""
    ground.put("a", b"first")
    first = ground.take()
    ground.put("b", b"second")
    second = ground.take()
    ground.store.drop(first.id)
    store = Store(ground.store.folder)
    assert content_of(store, store.load(second.id), b"a") == b"first"
    store.drop(second.id)
    assert files_of(store) == []


def test_drop_when_there_is_no_such_snapshot_then_does_nothing(ground: Ground) -> None:
    """Dropping twice is no error, nor is dropping from no store at all."""
    ground.store.drop("0123456789ab")
    ground.put("a", b"1")
    before = ground.take()
    ground.store.drop("0123456789ab")
    ground.store.drop("../x")
    assert before == ground.store.load(before.id)


def test_drop_when_a_manifest_cannot_be_read_then_keeps_every_whole_pack(
    ground: Ground,
) -> None:
    """Nobody knows what a damaged manifest needs."""
    ground.put("a", b"first")
    ground.take()
    only(ground.store, ".manifest").write_bytes(b"torn")
    ground.store.drop("0123456789ab")
    assert len(files_of(ground.store, ".pack")) == 1


def test_list_when_asked_then_gives_the_oldest_first(ground: Ground) -> None:
    """A list needs no content; of no store at all it is empty."""
    assert ground.store.list() == ()
    ground.put("a", b"12345")
    first = ground.take()
    ground.put("b", b"1")
    second = ground.take()
    assert ground.store.list() == (
        Summary(id=first.id, created_ns=first.head.created_ns, files=1, size_bytes=5),
        Summary(id=second.id, created_ns=second.head.created_ns, files=2, size_bytes=6),
    )


# --- Dead writers ---------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from workspace_guard.files.tree import Folder
from workspace_guard.snapshot.store import Store

calls = iter(range(100))

def check():
    if next(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

with Folder.open(sys.argv[1]) as folder:
    Store(Path(sys.argv[2])).create(folder, check=check)
"""


@pytest.mark.case("S44")
def test_create_when_an_earlier_writer_was_killed_then_removes_its_litter(
    ground: Ground,
) -> None:
    """A writer that died leaves nothing that the next one would trip over or keep."""
    for number in range(6):
        ground.put(f"sub-{number}/a", bytes([number]) * LARGE)
    command = [sys.executable, "-c", KILLED, ground.top, ground.store.folder]
    done = subprocess.run(command, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    litter = only(ground.store, ".tmp")
    snapshot = ground.take()
    assert not litter.exists()
    assert content_of(ground.store, snapshot, b"sub-5/a") == b"\5" * LARGE


def test_create_when_a_pack_has_no_index_then_it_is_removed(ground: Ground) -> None:
    """A pack without an index is what a dead writer has left."""
    ground.put("a", b"1")
    ground.take()
    whole = {path.name for path in files_of(ground.store)}
    shutil.copy(only(ground.store, ".pack"), ground.store.folder / "dead.pack")
    (ground.store.folder / "dead too.index").write_bytes(b"")
    second = ground.take()
    left = {path.name for path in files_of(ground.store)}
    assert whole | {f"{second.id}.manifest"} == left


# --- The order of writes --------------------------------------------------------------


def test_create_when_traced_then_flushes_each_file_before_it_bears_its_name(
    ground: Ground,
) -> None:
    """Pack, index, manifest: each is flushed, then named, and then its folder flushed.

    A power cut between any two of these calls leaves the store as it was or whole.
    """
    require("strace")
    ground.put("a", b"1")
    log = ground.outside / "trace"
    calls = "fsync,rename,renameat,renameat2"
    command = ["strace", "-y", "-o", log, "-e", f"trace={calls}", sys.executable, "-c"]
    command += [WRITER, ground.top, ground.store.folder, "0"]
    subprocess.run(command, check=True, capture_output=True)
    steps = [told(line) for line in log.read_text().splitlines() if "store" in line]
    assert steps == [
        "fsync .tmp",
        "rename .tmp to .pack",
        "fsync .tmp",
        "rename .tmp to .index",
        "fsync folder",
        "fsync .tmp",
        "rename .tmp to .manifest",
        "fsync folder",
    ]


def told(line: str) -> str:
    """Shorten a line of the trace to the call and the kinds of its files."""
    call = line.partition("(")[0].rstrip("at2")
    kinds = re.findall(r"\.(?:tmp|pack|index|manifest)\b", line)
    return f"{call} {' to '.join(kinds) or 'folder'}"
