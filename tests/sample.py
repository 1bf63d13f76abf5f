"""A small realistic workspace with everything in it that a tree may hold.

The names, bytes and times are literals: the tables of the containment suite rest on
them. Every entry is old, so that a moved mtime cannot pass for the right one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from capabilities import has

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENT = "# 会话日志数据保留改造方案\n\n## 背景\n\n日志保留期现为 365 天。\n"
OLD_NS = 1_700_000_000_123_456_789
MINUTE_NS = 60 * 10**9

FILES: dict[bytes, tuple[int, bytes]] = {
    b"output.md": (0o644, DOCUMENT.encode()),
    b"template.md": (0o644, "## 背景\n\n## 方案\n\n## 阻塞信息\n".encode()),
    b"blackboard.json": (0o600, b'{"retention_days": 365}\n'),
    b"PLAN.md": (0o644, b"1. draft\n2. review\n3. repair\n"),
    b".gitattributes": (0o644, b"* text=auto\n"),
    b"bin/check.sh": (0o755, b"#!/bin/sh\nexit 0\n"),
    b"bin/lib/colours.sh": (0o644, b"red=31\r\ngreen=32\r\n"),
    b"data/table.csv": (0o640, b"level,days\nA,30\nB,180\n"),
    b"data/empty.csv": (0o644, b""),
    "notes/会议 纪要.md".encode(): (0o664, "保留期待定。\n".encode()),
    b"notes/two\nlines.md": (0o644, b"a name of two lines\n"),
    b"notes/-rf": (0o644, b"a name like an option\n"),
    b"notes/.hidden": (0o600, b"hidden\n"),
    b"tasks/01_draft/TASK.md": (0o644, b"Write the draft.\n"),
    b"tasks/01_draft/output.md": (0o644, DOCUMENT.encode()),
    b"tasks/03_review/TASK.md": (0o644, b"Review the draft.\n"),
    b"tasks/03_review/execution.log": (0o644, b"Outcome: SUCCESS\n"),
}
UNDECODABLE = b"notes/bad\xff.md"
EMPTY_FOLDERS = (b"data/empty", b"data/private/inner")
LINKS: dict[bytes, bytes] = {
    b"data/latest": b"table.csv",
    b"data/dangling": b"nowhere/at/all",
    b"data/loop": b".",
}
HARD_LINK = (b"data/table.csv", b"data/table-again.csv")
FIFO = b"data/pipe"
XATTR = (b"data/table.csv", "user.origin", b"export 2026-03")


def build_workspace(top: Path) -> None:
    """Build the tree in a folder that is not there yet."""
    root = os.fsencode(top)
    os.mkdir(root)
    for path, (mode, content) in FILES.items():
        _write(root, path, mode, content)
    if has("undecodable-names"):
        _write(root, UNDECODABLE, 0o644, b"a name that is no UTF-8\n")
    for path in EMPTY_FOLDERS:
        os.makedirs(os.path.join(root, path))
    os.chmod(os.path.join(root, b"data/private"), 0o700)
    _add_what_the_machine_has(root)
    _make_old(root)


def _add_what_the_machine_has(root: bytes) -> None:
    if has("symlinks"):
        for path, text in LINKS.items():
            os.symlink(text, os.path.join(root, path))
    if has("hard-links"):
        os.link(*(os.path.join(root, name) for name in HARD_LINK))
    if has("fifo"):
        os.mkfifo(os.path.join(root, FIFO), 0o622)
    if has("xattr"):
        os.setxattr(os.path.join(root, XATTR[0]), XATTR[1], XATTR[2])


def _write(root: bytes, path: bytes, mode: int, content: bytes) -> None:
    where = os.path.join(root, path)
    os.makedirs(os.path.dirname(where), exist_ok=True)
    with open(where, "wb") as file:
        file.write(content)
    os.chmod(where, mode)


def _make_old(root: bytes) -> None:
    """Give each entry a time of its own, contents before the folder that holds them."""
    when = OLD_NS
    for folder, folders, files in os.walk(root, topdown=False):
        for name in sorted((*folders, *files)):
            path = os.path.join(folder, name)
            if not os.path.isdir(path) or os.path.islink(path):
                when += MINUTE_NS
                os.utime(path, ns=(when, when), follow_symlinks=False)
        when += MINUTE_NS
        os.utime(folder, ns=(when, when))
