"""Two process settings of Linux that the standard library cannot make: prctl(2).

Room: kernel. Knows the numbers and the C library; loaded by the supervisor, so it
imports nothing but ctypes, and only Linux loads it.
"""

from __future__ import annotations

import ctypes

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_prctl = ctypes.CDLL(None, use_errno=True).prctl
_prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
_prctl.restype = ctypes.c_int


def adopt_orphans() -> bool:
    """Become the parent of every descendant whose own parent ends.

    Returns:
        Whether it took: kernels before 3.4 and some sandboxes refuse it.

    Source: PR_SET_CHILD_SUBREAPER(2const).
    """
    return bool(_prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def die_with_parent(signum: int) -> bool:
    """Have this process sent a signal when the thread that forked it ends.

    It holds across exec, but not of a program that changes credentials. The parent may
    be gone already: compare `getppid()` afterwards.

    Returns:
        Whether it took.

    Source: PR_SET_PDEATHSIG(2const).
    """
    return bool(_prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0) == 0)
