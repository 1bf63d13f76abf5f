"""The processes below the supervisor, and how what is left of them is ended.

Room: containment, inside the supervisor. Reads /proc where there is one; elsewhere
only the command's own process group is known, and the supervisor says so.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import SIGKILL, SIGTERM
else:
    from _signal import SIGKILL, SIGTERM  # `signal` would cost start time

TERM_S = 0.3
"""How long a SIGTERM has before SIGKILL follows."""
KILL_S = 5.0
"""How long is waited for what SIGKILL does not end: it sits in the kernel."""
_LOOK_S = 0.02
_KILL_LOOK_S = 0.002


def _read(path: str) -> bytes:
    """All of a file of /proc, which gives a page a call; b"" where it is gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return b""


def _numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return []


def _state_and_parent(pid: int) -> tuple[str, int]:
    """One letter and the parent's pid; an empty letter where there is no such."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if not fields:
        return "", 0
    return fields[0].decode("ascii"), int(fields[1])


def _children(pid: int) -> list[int]:
    return [
        int(child)
        for task in _numbers(f"/proc/{pid}/task")
        for child in _read(f"/proc/{pid}/task/{task}/children").split()
    ]


def _children_by_parent(pid: int) -> list[int]:
    """The same where the kernel was built without the lists of children."""
    return [each for each in _numbers("/proc") if _state_and_parent(each)[1] == pid]


def living(root: int) -> list[int]:
    """The living descendants of a process, zombies left out.

    A process whose parent ends while this looks may be missed: look again.

    Source: proc_pid_task(5) on `children`.
    """
    listed = os.path.exists(f"/proc/{root}/task/{root}/children")
    children_of = _children if listed else _children_by_parent
    found: list[int] = []
    parents = [root]
    while parents:
        for child in children_of(parents.pop()):
            parents.append(child)
            if _state_and_parent(child)[0] not in ("", "Z", "X"):
                found.append(child)
    return found


def signal_each(pids: list[int], signum: int) -> None:
    """Send a signal; who is gone already, or is not ours to signal, is left out."""
    for pid in pids:
        try:
            os.kill(pid, signum)
        except (ProcessLookupError, PermissionError):
            continue


def signal_group(group: int, signum: int) -> bool:
    """Signal a process group; tells whether anybody is in it."""
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


class Ending:
    """Grace, then SIGTERM, then SIGKILL, until nobody is left or the time is up.

    Args:
        now: of the monotonic clock.
        grace_s: how long they may go on; None: SIGKILL at once.
        group: the command's process group, where orphans are not adopted and it is
            all that is known of the tree; else None.
    """

    __slots__ = ("_asked", "_group", "_how", "_seen", "_until", "due", "gone")

    def __init__(self, now: float, grace_s: float | None, group: int | None) -> None:
        self._group = group
        self._seen: dict[int, tuple[bytes, str]] = {}
        self._asked: set[int] = set()
        self._how = "killed" if grace_s is None else "exited"
        self._until = now + (KILL_S if grace_s is None else grace_s)
        self.due = now
        """When to step next."""
        self.gone = False
        """Whether the whole tree has ended."""

    def step(self, now: float, *, childless: bool) -> bool:
        """Look who is there, do what the time asks for.

        Args:
            now: of the monotonic clock.
            childless: whether the supervisor has no child any more: then, where
                orphans are adopted, the tree is gone.

        Returns:
            Whether it is over: all are gone, or no means is left.
        """
        alive = [] if childless else living(os.getpid())
        self._note(alive)
        self.gone = childless and not self._group_alive()
        if self.gone or (now >= self._until and not self._harden(now)):
            return True
        self._act(alive)
        self.due = now + (_KILL_LOOK_S if self._how == "killed" else _LOOK_S)
        return False

    def _note(self, alive: list[int]) -> None:
        for pid, (command, how) in self._seen.items():
            if not how and pid not in alive:
                self._seen[pid] = (command, self._how)
        for pid in alive:
            known = self._seen.get(pid)
            command = known[0] if known else _read(f"/proc/{pid}/cmdline")
            self._seen[pid] = (command, "")

    def _harden(self, now: float) -> bool:
        """Take the next means; False where there is none left."""
        if self._how == "killed":
            return False
        self._how = "terminated" if self._how == "exited" else "killed"
        self._until = now + (TERM_S if self._how == "terminated" else KILL_S)
        if self._group is not None:
            signal_group(self._group, SIGTERM)
        return True

    def _act(self, alive: list[int]) -> None:
        if self._how == "terminated":
            signal_each([pid for pid in alive if pid not in self._asked], SIGTERM)
            self._asked.update(alive)
        elif self._how == "killed":
            signal_each(alive, SIGKILL)
            if self._group is not None:
                signal_group(self._group, SIGKILL)

    def _group_alive(self) -> bool:
        return self._group is not None and signal_group(self._group, 0)

    def rows(self) -> list[tuple[int, bytes, str]]:
        """Whoever was seen: pid, command line (NUL between words), how it ended."""
        return [(pid, line, how or "alive") for pid, (line, how) in self._seen.items()]
