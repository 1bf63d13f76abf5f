"""The command's terminal: one of its own, or the one that it shares with the guard.

Room: containment, inside the supervisor. Knows pseudo-terminals and foregrounds; what
is typed and shown is carried by `relay`.

Source: termios(3), ioctl_tty(2), credentials(7).
"""

from __future__ import annotations

import os
import struct
import sys

from workspace_guard.containment.offspring import signal_group

if sys.platform != "win32":
    import fcntl


class Terminal:
    """A pseudo-terminal for one command.

    Our end carries what is typed and shown. The command's end is held open here too:
    else a program that closes its own would seem to have hung up.
    """

    __slots__ = ("_set_size", "command_end", "our_end")

    def __init__(self, rows: int, columns: int, set_size: int) -> None:
        self.our_end, self.command_end = os.openpty()
        self._set_size = set_size
        """The platform's number of TIOCSWINSZ, which only `termios` knows."""
        self.resize(rows, columns)

    def resize(self, rows: int, columns: int) -> None:
        """Give it another size; the kernel tells the foreground."""
        size = struct.pack("4H", rows, columns, 0, 0)
        fcntl.ioctl(self.our_end, self._set_size, size)

    def signal_foreground(self, signum: int) -> bool:
        """Signal whom its keys would reach; False where nobody is in front."""
        try:
            group = os.tcgetpgrp(self.our_end)
        except OSError:
            return False
        return group > 0 and signal_group(group, signum)

    def release(self) -> None:
        """Close the command's end, so that reading ours comes to an end."""
        os.close(self.command_end)


class Foreground:
    """Whose turn it was at the terminal that a command shares with the guard."""

    __slots__ = ("_group", "_terminal")

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._group = _foreground(terminal)

    def give_back(self) -> None:
        """Undo what a shell with job control does not: it keeps the foreground.

        Only where nobody is there any more: it may be another's by now.
        """
        now = _foreground(self._terminal)
        if self._group is None or now is None or signal_group(now, 0):
            return
        try:
            os.tcsetpgrp(self._terminal, self._group)
        except OSError:  # the terminal has gone, or that group has
            return


def _foreground(terminal: int) -> int | None:
    """The foreground's group; None where this is not the terminal of our session."""
    try:
        return os.tcgetpgrp(terminal)
    except OSError:
        return None
