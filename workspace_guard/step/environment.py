"""What the command of a step finds in its environment.

Room: step. Pure, but for the private temporary folder that it makes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from workspace_guard.errors import StateUnusable
from workspace_guard.files.layout import make_private
from workspace_guard.files.mounts import remove_unmounted
from workspace_guard.files.tree import Folder

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from workspace_guard.files.layout import RunFolder
    from workspace_guard.step.contract import Contract
    from workspace_guard.step.stage import StagedStep

_KEPT_WHEN_CLEAN = ("PATH", "HOME", "LANG", "TERM")


@contextlib.contextmanager
def scratch_folder(workspace: Path, run: RunFolder) -> Generator[Path]:
    """Make the private TMPDIR of a run and remove it when the block ends.

    It lies in the system's temporary folder, since programs put Unix sockets there and
    the path of a socket may have 107 bytes only; where that folder belongs to the
    workspace it lies with the run.

    Raises:
        StateUnusable: it cannot be made.

    Source: unix(7).
    """
    system = Path("/tmp")  # noqa: S108  # for the message, where there is none
    try:
        system = Path(tempfile.gettempdir()).resolve()
        if system.is_relative_to(workspace):
            make_private(run.scratch)
            scratch = run.scratch
        else:
            prefix = _scratch_prefix(run.run_id)
            scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=system))
    except OSError as error:
        fact = f"no private temporary folder: {error.strerror or error}"
        hint = "set TMPDIR to a folder that can be written"
        raise StateUnusable(system, fact, hint=hint) from error
    try:
        yield scratch
    finally:
        remove_scratch(os.fsencode(scratch))


def _scratch_prefix(run_id: str) -> str:
    """What tells whose a TMPDIR is: short, for the sake of sockets in it."""
    return f"wsguard-{hashlib.sha256(run_id.encode()).hexdigest()[:10]}-"


def remove_unnamed_scratch(run: RunFolder) -> None:
    """Remove the TMPDIR of a run that was killed before the journal named it."""
    remove_scratch(os.fsencode(run.scratch))
    prefix = os.fsencode(_scratch_prefix(run.run_id))
    with contextlib.suppress(OSError):
        system = os.fsencode(tempfile.gettempdir())
        with Folder.open(system) as folder:
            names = [name for name in folder.names() if name.startswith(prefix)]
        for name in names:
            remove_scratch(os.path.join(system, name))


def remove_scratch(scratch: bytes) -> None:
    """Remove a private TMPDIR and all that the command has left in it."""
    parent, name = os.path.split(scratch)
    # What cannot be removed there is the system's litter, not a failure of the run.
    with contextlib.suppress(OSError), Folder.open(parent) as folder:
        remove_unmounted(folder, name)


def environment(
    contract: Contract,
    caller: Mapping[str, str],
    staged: StagedStep,
    *,
    tasks: Path,
    scratch: Path,
    run_id: str,
) -> dict[str, str]:
    """Put a command's environment together.

    Args:
        contract: what it sets, and whether it starts from nothing.
        caller: the environment of whoever runs the step.
        staged: the step.
        tasks: the folder that holds the step; git must not look above it.
        scratch: the private TMPDIR.
        run_id: the run.

    Returns:
        Every variable; what the contract sets wins over all others.

    Source: git(1), GIT_CEILING_DIRECTORIES (a `git` in the step would else commit to
    the parent's repository; spec 1, trap 8).
    """
    found = dict(caller)
    if contract.clean_env:
        found = {k: caller[k] for k in _KEPT_WHEN_CLEAN if k in caller}
    found |= {
        "TMPDIR": str(scratch),
        "GIT_CEILING_DIRECTORIES": str(tasks),
        "WSGUARD_STEP": str(staged.path),
        "WSGUARD_RUN": run_id,
    }
    for name, value in contract.environment.items():
        if value is not None:
            found[name] = value
        elif name in caller:
            found[name] = caller[name]
        else:
            found.pop(name, None)
    return found
