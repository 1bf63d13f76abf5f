"""What a destination keeps when new bytes are put in its place."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from capabilities import ACL_ATTRIBUTE, access_list, require
from listing import tree_state

if TYPE_CHECKING:
    from pathlib import Path

    from accounts import Account

GROUP_OF_NOBODY = 54321
NEW = b"new bytes\n"


@pytest.mark.slow
@pytest.mark.mode("detect")
@pytest.mark.case("S56")
def test_destination_when_promoted_then_keeps_mode_owner_acl_and_attributes(
    user: Account, workspace: Path, state_dir: Path
) -> None:
    """Only the bytes and the times of a replaced file are new."""
    require("xattr")
    require("acl")
    document = workspace / "output.md"
    document.chmod(0o664)
    os.setxattr(document, "user.origin", b"written by hand")
    os.setxattr(document, ACL_ATTRIBUTE, access_list(reader_uid=12345))
    if user.uid == 0:
        os.chown(document, -1, GROUP_OF_NOBODY)
    old = tree_state(workspace)[b"output.md"]
    done = user.wsguard(
        *("run", "-w", workspace, "--mode", "detect", "--"),
        *("sh", "-c", "echo new bytes > output.md; chmod 600 output.md"),
        cwd=workspace,
        env={"WORKSPACE_GUARD_STATE_DIR": str(state_dir)},
    )
    new = tree_state(workspace)[b"output.md"]
    assert (done.returncode, document.read_bytes()) == (0, NEW)
    assert (new.mode, new.owner, new.xattrs) == (old.mode, old.owner, old.xattrs)
