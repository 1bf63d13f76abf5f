"""What this machine can do, found by trying it, and how a test asks for it.

A test that needs something calls `require("xattr")`. Where the machine lacks it the
test is skipped; where WORKSPACE_GUARD_TEST_REQUIRE names it the test fails instead, so
that a machine which must have it (the one of `.ci/run`) cannot pass by skipping.
"""

from __future__ import annotations

import functools
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from accounts import find_interpreter, is_root

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "WORKSPACE_GUARD_TEST_REQUIRE"


ACL_ATTRIBUTE = "system.posix_acl_access"


def access_list(*, reader_uid: int) -> bytes:
    """A POSIX ACL as the kernel keeps it: rw-rw-r--, and one more user who may read.

    Source: acl(5); linux/posix_acl_xattr.h.
    """
    nobody, version = 0xFFFFFFFF, 2
    owner, user, group, mask, other = 0x01, 0x02, 0x04, 0x10, 0x20
    entries = (
        (owner, 6, nobody),
        (user, 4, reader_uid),
        (group, 6, nobody),
        (mask, 6, nobody),
        (other, 4, nobody),
    )
    rows = (struct.pack("<HHI", *entry) for entry in entries)
    return struct.pack("<I", version) + b"".join(rows)


def _in_scratch(attempt: Callable[[Path], object]) -> bool:
    """Tell whether something works in a fresh folder of the temporary file system."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            attempt(Path(folder))
        except (OSError, AttributeError, NotImplementedError):
            return False
    return True


def _set_xattr(folder: Path) -> None:
    os.setxattr(folder, "user.probe", b"1")


def _link(folder: Path) -> None:
    (folder / "one").touch()
    os.link(folder / "one", folder / "two")


def _symlink(folder: Path) -> None:
    (folder / "link").symlink_to("nowhere")


def _fifo(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def _undecodable_name(folder: Path) -> None:
    os.mkdir(os.fsencode(folder) + b"/bad\xff")


def _set_acl(folder: Path) -> None:
    os.setxattr(folder, ACL_ATTRIBUTE, access_list(reader_uid=12345))


def _run(*command: str | Path) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def _make_immutable(folder: Path) -> None:
    file = folder / "fixed"
    file.touch()
    if not _run("chattr", "+i", file):
        raise NotImplementedError
    if not _run("chattr", "-i", file):
        raise RuntimeError(f"{file} stays immutable")


FACILITIES: dict[str, Callable[[], bool]] = {
    "root": is_root,
    "ordinary-user": lambda: find_interpreter() is not None,
    "xattr": lambda: _in_scratch(_set_xattr),
    "acl": lambda: _in_scratch(_set_acl),
    "immutable-files": lambda: _in_scratch(_make_immutable),
    "hard-links": lambda: _in_scratch(_link),
    "symlinks": lambda: _in_scratch(_symlink),
    "fifo": lambda: _in_scratch(_fifo),
    "mounts": lambda: _run("unshare", "--mount", "mount", "-t", "tmpfs", "x", "/mnt"),
    "undecodable-names": lambda: _in_scratch(_undecodable_name),
    "inotify": lambda: os.path.exists("/proc/sys/fs/inotify/max_user_watches"),
    "procfs": lambda: os.path.exists("/proc/self/fd"),
    "user-namespaces": lambda: _run("unshare", "--user", "--map-root-user", "true"),
    "git": lambda: shutil.which("git") is not None,
    "strace": lambda: shutil.which("strace") is not None,
    "npm": lambda: shutil.which("npm") is not None,
}


@functools.cache
def has(facility: str) -> bool:
    """Tell whether this machine has a facility; tried once a session."""
    return FACILITIES[facility]()


def demanded() -> frozenset[str]:
    """The facilities that the environment says must be there.

    Raises:
        pytest.UsageError: the variable names one that nobody knows.
    """
    names = os.environ.get(VARIABLE, "").replace(",", " ").split()
    unknown = sorted(set(names) - set(FACILITIES))
    if unknown:
        raise pytest.UsageError(
            f"{VARIABLE} names {', '.join(unknown)}; known: {', '.join(FACILITIES)}"
        )
    return frozenset(names)


def require(facility: str) -> None:
    """Go on only where the machine has a facility; else skip, or fail if demanded."""
    if has(facility):
        return
    if facility in demanded():
        pytest.fail(f"{VARIABLE} demands {facility}, and this machine lacks it")
    pytest.skip(f"this machine lacks {facility}")


def header() -> list[str]:
    """What the machine has and lacks, for the head of the test report."""
    there = [name for name in FACILITIES if has(name)]
    lacking = [name for name in FACILITIES if not has(name)]
    lines = [f"machine: {sys.platform}; has {', '.join(there)}"]
    if lacking:
        lines.append(f"machine: lacks {', '.join(lacking)}")
    if demanded():
        lines.append(f"demanded: {', '.join(sorted(demanded()))}")
    return lines
