"""Be the ordinary user for a few lines, in this process.

Root may do everything, so what permissions do is seen only by somebody else. Where the
tests run as root, the effective user is another one for the length of the block; else
we are ordinary already.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from accounts import ORDINARY_UID, is_root

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@contextlib.contextmanager
def ordinary_user(*own: Path, groups: tuple[int, ...] = ()) -> Generator[int]:
    """Run the block as an ordinary user.

    Args:
        own: folders that are given to that user first.
        groups: of which the user is a member besides.

    Yields:
        The user's id.
    """
    if not is_root():
        yield os.geteuid()
        return
    for folder in own:
        os.chown(folder, ORDINARY_UID, ORDINARY_UID)
    before = os.getgroups()
    os.setgroups(list(groups))
    os.setegid(ORDINARY_UID)
    os.seteuid(ORDINARY_UID)
    try:
        yield ORDINARY_UID
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)
