"""Watch a workspace while a command runs: when, and in which order, things happened.

Room: containment; the only place that imports watchdog. What it sees is evidence and a
reason to wake early; it may lose events, says so as a gap, and never decides anything:
the comparison with the snapshot does.

Source: inotify(7), "Limitations and caveats".
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import os
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Self

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer

from workspace_guard.containment.base import Gap

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path
    from types import TracebackType

    from watchdog.observers.api import BaseObserver

_TELLING: list[type[FileSystemEvent]] = [
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
]
_MOST_PATHS = 100_000
_READ_OUT_S = 1.0
_READ_OUT_LOOK_S = 0.002


class Monitor:
    """A watch on a workspace, from `start` until the `with` block ends."""

    def __init__(self, workspace: Path, step: bytes | None) -> None:
        self._handler = _Handler(os.fsencode(workspace) + b"/", step)
        self._observer: BaseObserver | None = None
        self._gaps: list[Gap] = []
        self._warnings = _Warnings()
        self._workspace = workspace

    @classmethod
    def start(
        cls, workspace: Path, step: bytes | None, folders: Collection[bytes] = ()
    ) -> Self:
        """Begin to watch.

        Args:
            workspace: the folder to watch with all below it.
            step: a path below it (relative) whose events are the command's own
                business.
            folders: those (relative) of which it is to be seen that they are watched.

        Returns:
            The monitor; where watching could not begin it says so in `gaps`.
        """
        monitor = cls(workspace, step)
        _watch_threads()
        logging.getLogger("watchdog").addHandler(monitor._warnings)
        # It meets a folder twice that is made while its parent is being watched, and
        # would say so on somebody's terminal; it is watched all the same.
        warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning)
        observer = Observer()
        try:
            observer.schedule(
                monitor._handler,
                os.fsdecode(workspace),
                recursive=True,
                event_filter=_TELLING,
            )
            observer.start()
            monitor._gaps += _unwatched(observer, workspace, folders)
        except Exception as error:  # noqa: BLE001  # it may fail in any way, at no harm
            monitor._gaps.append(_gap("monitor_failed", _fact(error)))
        monitor._observer = observer
        return monitor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._observer is not None:
            self._gaps += _read_out(self._observer)
        self._warnings.over = True  # what it says of its own end is no news
        if self._observer is not None:
            try:
                _stop(self._observer)
            except Exception as failure:  # noqa: BLE001  # as above
                self._gaps.append(_gap("monitor_failed", _fact(failure)))
        self._gaps += [_gap("monitor_failed", text) for text in _take_failures()]
        logging.getLogger("watchdog").removeHandler(self._warnings)
        self._handler.close()

    @property
    def wake_fd(self) -> int:
        """Readable from the first change outside the step on."""
        return self._handler.wake_fd

    @property
    def count(self) -> int:
        """How many paths outside the step have been seen to change."""
        return len(self._handler.first_seen)

    def first_seen(self, path: bytes) -> str | None:
        """When a path (relative to the workspace) was first seen to change."""
        moment = self._handler.first_seen.get(path)
        return None if moment is None else moment.isoformat().replace("+00:00", "Z")

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What was not seen; none of it can hide an escape from the comparison."""
        found = list(self._gaps)
        # One overflow is told more than once, and its first words are enough.
        found += [_gap("events_lost", text) for text in self._warnings.texts[:1]]
        if self._handler.full:
            found.append(
                _gap("events_lost", f"more than {_MOST_PATHS:,} paths changed")
            )
        return tuple(found)


def _unwatched(
    observer: BaseObserver, workspace: Path, folders: Collection[bytes]
) -> list[Gap]:
    """Tell of folders that are not watched; watchdog 7 passes over them in silence.

    Where the system's limit on watches is reached it goes on without an error, and
    has no public way to ask what it watches.
    """
    watched: Collection[bytes] | None = None
    for emitter in observer.emitters:
        group: object = getattr(emitter, "_inotify", None)
        watched = getattr(group, "_active_callbacks_by_path", None)
    if watched is None:
        return []
    top = os.fsencode(workspace)
    paths = (os.path.join(top, folder) if folder else top for folder in folders)
    missing = sum(path not in watched for path in paths)
    if not missing:
        return []
    fact = f"{missing:,} of {len(folders):,} folders are not watched"
    return [_gap("watch_limit", fact)]


def _stop(observer: BaseObserver) -> None:
    """End an observer and its threads, also where it has lost count of its watches.

    After folders have changed places its own stop may fail half-way and leave a
    reader waiting for ever. What wakes that reader is let go by hand; a second stop
    then finds nothing left to fail at.
    """
    groups = [getattr(emitter, "_inotify", None) for emitter in observer.emitters]
    try:
        observer.stop()
    except Exception:
        for group in groups:
            grouper = getattr(group, "_move_event_grouper", None)
            if grouper is not None:
                grouper.close()
        observer.stop()
        raise
    finally:
        if observer.is_alive():
            observer.join()


def _fact(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return text or f"{type(error).__name__} {error}".strip()


_failures: list[str] = []
"""What threads of watchdog have died of; told once, by whichever monitor ends next."""


def _take_failures() -> list[str]:
    found, _failures[:] = list(_failures), []
    return found


def _watch_threads() -> None:
    """Keep what kills a thread of watchdog off the terminal, and remember it."""
    before = threading.excepthook
    if getattr(before, "of_wsguard", False):
        return

    def hook(args: threading.ExceptHookArgs) -> None:
        if type(args.thread).__module__.startswith("watchdog."):
            _failures.append(_fact(args.exc_value or args.exc_type()))
        else:
            before(args)

    hook.of_wsguard = True  # type: ignore[attr-defined]  # so that it is put there once
    threading.excepthook = hook


def _read_out(observer: BaseObserver) -> list[Gap]:
    """Wait a moment for watchdog to take in what the kernel has told.

    At the end of it the kernel says whether its queue has overflowed.
    """
    until = time.monotonic() + _READ_OUT_S
    while _is_behind(observer):
        if time.monotonic() > until:
            return [_gap("events_lost", "the run ended before all had been read")]
        time.sleep(_READ_OUT_LOOK_S)
    return []


def _is_behind(observer: BaseObserver) -> bool:
    """Whether watchdog has events to read or to look at; False where nobody can tell.

    It has no public way to ask.
    """
    if sys.platform != "linux":
        return False
    import fcntl  # noqa: PLC0415  # not on Windows
    import termios  # noqa: PLC0415  # not on Windows

    for emitter in observer.emitters:
        reader: object = getattr(emitter, "_inotify_fd", None)
        fd = getattr(reader, "_inotify_fd", None)
        if isinstance(fd, int):
            with contextlib.suppress(OSError):
                unread = fcntl.ioctl(fd, termios.FIONREAD, bytes(4))
                return any(unread) or not getattr(reader, "_is_reading", True)
    return False


def _gap(kind: str, fact: str) -> Gap:
    return Gap(
        kind=kind,
        path=None,
        could_hide_escape=False,
        message=f"the live watch is not complete ({fact}); the comparison is",
    )


class _Handler(FileSystemEventHandler):
    """Notes the first time of each path; runs in watchdog's thread."""

    def __init__(self, prefix: bytes, step: bytes | None) -> None:
        self._prefix = prefix
        self._step = step
        self.first_seen: dict[bytes, dt.datetime] = {}
        self.full = False
        self._lock = threading.Lock()
        self.wake_fd, self._ring_fd = os.pipe()

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Note every path that an event names, but those of the step."""
        now = dt.datetime.now(dt.UTC)
        for where in (event.src_path, event.dest_path):
            path = os.fsencode(where)
            if path.startswith(self._prefix):
                self._note(path.removeprefix(self._prefix), now)

    def _note(self, path: bytes, now: dt.datetime) -> None:
        step = self._step
        if step is not None and (path == step or path.startswith(step + b"/")):
            return
        with self._lock:
            if len(self.first_seen) >= _MOST_PATHS:
                self.full = True
                return
            if not self.first_seen and self._ring_fd >= 0:
                os.write(self._ring_fd, b"!")
            self.first_seen.setdefault(path, now)

    def close(self) -> None:
        with self._lock:
            for fd in (self.wake_fd, self._ring_fd):
                with contextlib.suppress(OSError):
                    os.close(fd)
            self._ring_fd = -1


class _Warnings(logging.Handler):
    """Keeps what watchdog says of lost events, since its handlers are not told."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        self.over = False

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self.texts and not self.over:
            self.texts.append(text)
