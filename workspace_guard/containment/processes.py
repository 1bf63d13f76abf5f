"""Who is running, seen from outside: names, descendants, open files.

Room: containment; the only module that knows psutil. It looks and does not touch,
but for `end`. What it is told may be out of date when it returns: processes come and
go.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

import psutil

from workspace_guard.containment.base import ProcessName
from workspace_guard.errors import show_path

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_DEAD = frozenset({psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD})
_HAS_PROC = os.path.exists("/proc/self/fdinfo")
_FileId = tuple[int, int]
_MAP_FIELDS = 6


def show_command(words: Sequence[str | bytes]) -> str:
    """Spell a command line as one string: nothing cut, nothing that moves a cursor."""
    return " ".join(show_path(word) for word in words)


def describe(pid: int) -> ProcessName:
    """Name a process by its command line; by `[name]` where that cannot be read."""
    command = "[unknown]"
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        command = f"[{show_path(process.name())}]"
        command = show_command(process.cmdline()) or command
    return ProcessName(pid=pid, command=command)


def alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    return _status(pid) not in {None, *_DEAD}


def waits_for_disk(pid: int) -> bool:
    """Whether a process sits in the kernel, where it cannot answer anybody."""
    return _status(pid) == psutil.STATUS_DISK_SLEEP


def _status(pid: int) -> str | None:
    try:
        return str(psutil.Process(pid).status())
    except psutil.AccessDenied:
        return psutil.STATUS_RUNNING
    except psutil.Error:
        return None


def descendants(pid: int) -> tuple[ProcessName, ...]:
    """The living processes below one, which itself may have ended.

    Where a parent has ended its children have another one by now, unless the platform
    keeps the number (Windows) or the process adopts orphans, as the supervisor does.
    """
    children: dict[int, list[int]] = {}
    for process in psutil.process_iter(["ppid"]):
        children.setdefault(process.info["ppid"], []).append(process.pid)
    found: list[int] = []
    parents = [pid]
    while parents:
        below = children.pop(parents.pop(), [])
        found += below
        parents += below
    return tuple(describe(each) for each in found if alive(each))


def with_variable(name: str, value: str) -> tuple[int, ...]:
    """The living processes that were started with a variable in their environment.

    Ourselves, and those whose environment we may not read, are left out.
    """
    return tuple(
        process.pid
        for process in psutil.process_iter()
        if process.pid != os.getpid() and _variable_of(process, name) == value
    )


def _variable_of(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except psutil.Error:  # a zombie, somebody else's, or gone
        return None


def end(pids: Collection[int], *, forced: bool = False) -> None:
    """Ask processes to end, or end them; who is gone or not ours is left out."""
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if forced:
                process.kill()
            else:
                process.terminate()


# --- who can still write a file -------------------------------------------------------


def holders(paths: Collection[bytes], pids: Collection[int]) -> frozenset[int]:
    """The processes that have one of the files open or mapped for writing.

    Args:
        paths: files, compared by device and inode, so that other names count as well;
            those that are not there are left out.
        pids: whom to look at; those whose files we may not see are left out.
    """
    files = {file for path in paths if (file := _file_id(path)) is not None}
    holds = _holds if _HAS_PROC else _holds_by_name
    return frozenset(pid for pid in pids if files and holds(pid, files))


def _file_id(path: str | bytes, *, follow: bool = False) -> _FileId | None:
    try:
        found = os.stat(path, follow_symlinks=follow)
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def _holds(pid: int, files: Collection[_FileId]) -> bool:
    return any(file in files for file in _written(pid)) or any(
        file in files for file in _mapped(pid)
    )


def _written(pid: int) -> Iterator[_FileId]:
    """The files that a process has open for writing; proc_pid_fdinfo(5)."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for number in numbers:
        file = _file_id(f"/proc/{pid}/fd/{number}", follow=True)
        if file is not None and _is_for_writing(f"/proc/{pid}/fdinfo/{number}"):
            yield file


def _is_for_writing(fdinfo: str) -> bool:
    try:
        with open(fdinfo, encoding="ascii") as lines:
            for line in lines:
                key, _, text = line.partition(":")
                if key == "flags":
                    return int(text, 8) & os.O_ACCMODE != os.O_RDONLY
    except OSError:
        pass
    return False


def _mapped(pid: int) -> Iterator[_FileId]:
    """The files that a process has mapped shared and for writing; proc_pid_maps(5).

    The device in this table is not what stat says on every file system (btrfs), so
    the file is looked at by the name that stands there.
    """
    try:
        with open(f"/proc/{pid}/maps", "rb") as lines:
            for line in lines:
                fields = line.rstrip(b"\n").split(maxsplit=5)
                if len(fields) == _MAP_FIELDS and fields[1][1::2] == b"ws":
                    file = _file_id(fields[5].replace(b"\\012", b"\n"))
                    if file is not None:
                        yield file
    except OSError:
        return


def _holds_by_name(pid: int, files: Collection[_FileId]) -> bool:
    """The same where there is no /proc: any open file counts unless it is read only."""
    try:
        opened = psutil.Process(pid).open_files()
    except (psutil.Error, OSError):
        return False
    return any(
        getattr(file, "mode", "w") != "r" and _file_id(file.path) in files
        for file in opened
    )
