"""workspace-guard: an agent's work counts only when it can be verified.

The map of the house, ground first; a module imports only from floors below its own:

    errors        every way in which the guard itself can fail
    kernel        what the standard library does not say to the kernel
    files         careful hands: paths, digests, durable replacement, journal, lock
    snapshot      what is there, and the bytes to put it back
    containment   run a command so that its writes stay in, or are put back
    step          one step: contract, stage, contain, judge, promote, record
    cli           the command line

The public names below are loaded when they are first used, so that the small programs
of this package start fast.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would cost the supervisor its start time
    from workspace_guard.errors import GuardError as GuardError
    from workspace_guard.step.contract import Contract as Contract
    from workspace_guard.step.judge import Verdict as Verdict
    from workspace_guard.step.record import RunRecord as RunRecord
    from workspace_guard.step.targets import Target as Target
    from workspace_guard.step.workspace import Workspace as Workspace

__version__ = "0.1.0"

_HOME_OF = {
    "Contract": "workspace_guard.step.contract",
    "GuardError": "workspace_guard.errors",
    "RunRecord": "workspace_guard.step.record",
    "Target": "workspace_guard.step.targets",
    "Verdict": "workspace_guard.step.judge",
    "Workspace": "workspace_guard.step.workspace",
}
__all__ = ["Contract", "GuardError", "RunRecord", "Target", "Verdict", "Workspace"]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(home), name)
