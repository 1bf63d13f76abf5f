"""The `os` calls of the files room: counted, traced, and meddled with.

The room calls `os.open`, `os.fsync` and so on by their names in `os`. Here these names
are replaced for a while, so that a test can see each call before it is made, refuse
it, die in its place, or change the disk under it. Everything else is the real thing.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

WATCHED = (
    "chmod",
    "chown",
    "close",
    "fchmod",
    "fchown",
    "fstat",
    "fsync",
    "ftruncate",
    "getxattr",
    "link",
    "listdir",
    "listxattr",
    "lseek",
    "lstat",
    "mkdir",
    "open",
    "read",
    "readlink",
    "removexattr",
    "rename",
    "replace",
    "rmdir",
    "scandir",
    "setxattr",
    "stat",
    "symlink",
    "truncate",
    "unlink",
    "utime",
    "write",
)
_TWO_NAMES = frozenset({"link", "rename", "replace", "symlink"})
_STAGED = re.compile(r"\.wsguard-.+-[0-9a-f]{12}\.tmp")


@dataclass(frozen=True, slots=True)
class Call:
    """One call that is about to be made."""

    number: int
    """From 1, in the order of the calls."""
    name: str
    what: str
    """The file or files, by their last names; a staged one is `staged`."""

    def __str__(self) -> str:
        return f"{self.name} {self.what}"


@dataclass(slots=True)
class Calls:
    """The calls that were made so far."""

    made: list[Call] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.made)

    def lines(self, *names: str) -> list[str]:
        """The calls as texts: all, or those of some names."""
        return [str(call) for call in self.made if not names or call.name in names]


class _Labels:
    """What a descriptor stands for, learned from the calls that opened it."""

    def __init__(self, known: Mapping[int, str]) -> None:
        self._known = dict(known)

    def of(self, name: str, args: tuple[object, ...]) -> str:
        shown = args[:2] if name in _TWO_NAMES else args[:1]
        return " ".join(self._one(arg) for arg in shown)

    def _one(self, arg: object) -> str:
        if isinstance(arg, int):
            return self._known.get(arg, "?")
        if isinstance(arg, (str, bytes, os.PathLike)):
            last = os.path.basename(os.fsdecode(arg))
            return "staged" if _STAGED.fullmatch(last) else last
        return "?"

    def learn(self, name: str, what: str, result: object) -> None:
        if name == "open" and isinstance(result, int):
            self._known[result] = what


class _Watch:
    """Stands between the callers and the real calls."""

    def __init__(
        self, before: Callable[[Call], object], labels: _Labels, at_most: int | None
    ) -> None:
        self.calls = Calls()
        self._before = before
        self._labels = labels
        self._at_most = at_most
        self._busy = False

    def over(self, name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call_it(*args: object, **keywords: object) -> object:
            if self._busy:
                return real(*args, **keywords)
            call = Call(len(self.calls) + 1, name, self._labels.of(name, args))
            self.calls.made.append(call)
            if name == "close":
                real(*args, **keywords)
                self._tell(call)
                return None
            self._tell(call)
            result = real(*_shortened(name, args, self._at_most), **keywords)
            self._labels.learn(name, call.what, result)
            return result

        return call_it

    def _tell(self, call: Call) -> None:
        self._busy = True
        try:
            self._before(call)
        finally:
            self._busy = False


@contextlib.contextmanager
def each_call(
    before: Callable[[Call], object] = lambda _call: None,
    *,
    descriptors: Mapping[int, str] | None = None,
    at_most: int | None = None,
) -> Generator[Calls]:
    """Be told of every watched call while the block runs.

    Args:
        before: called before each; may raise, die, or change the disk. Its own calls
            go through untold. For `close` it is called afterwards, since no failure
            of close leaves a descriptor open.
        descriptors: what those that are open already stand for.
        at_most: where given, no read or write moves more bytes than this.

    Yields:
        The calls; they are all there when the block has ended.
    """
    watch = _Watch(before, _Labels(descriptors or {}), at_most)
    reals = {name: getattr(os, name) for name in WATCHED if hasattr(os, name)}
    for name, real in reals.items():
        setattr(os, name, watch.over(name, real))
    try:
        yield watch.calls
    finally:
        for name, real in reals.items():
            setattr(os, name, real)


def _shortened(
    name: str, args: tuple[object, ...], at_most: int | None
) -> tuple[object, ...]:
    if at_most is None:
        return args
    match name, args:
        case "write", (fd, bytes() | memoryview() as chunk):
            return fd, chunk[:at_most]
        case "read", (fd, int() as size):
            return fd, min(size, at_most)
        case _:
            return args


@contextlib.contextmanager
def meddle(at: str, action: Callable[[], object], *, later: int = 0) -> Generator[None]:
    """Do something once, just before the first call that reads `at`.

    Args:
        at: the call, as `Call` spells it.
        action: what somebody else does in that moment.
        later: how many calls later than that one it is done.

    Raises:
        AssertionError: there was no such call; the text lists those that were made.
    """
    first = done = 0

    def before(call: Call) -> None:
        nonlocal first, done
        if not first and str(call) == at:
            first = call.number
        if first and not done and call.number == first + later:
            done = call.number
            action()

    calls = Calls()
    try:
        with each_call(before) as calls:
            yield
    finally:
        assert done, f"no call {at!r}, or none after it, among {calls.lines()}"
