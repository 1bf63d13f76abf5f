"""Which containment modes this machine has, and the strongest of them.

Room: containment. Knows the modes by name and what each needs; runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from workspace_guard.containment.base import Enforcement, Strength
from workspace_guard.errors import ModeUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

ModeName = Literal["deny", "absorb", "detect"]

DETECT_STRENGTH = Strength(
    # The parent is changed for a moment and then put back; processes are held by a
    # child subreaper, which a SIGKILL of the supervisor ends; events may be lost.
    content=Enforcement.PARTIAL,
    metadata=Enforcement.PARTIAL,
    processes=Enforcement.PARTIAL,
    evidence=Enforcement.PARTIAL,
)
_NOTHING = Strength(
    content=Enforcement.NONE,
    metadata=Enforcement.NONE,
    processes=Enforcement.NONE,
    evidence=Enforcement.NONE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeReport:
    """One mode, as this machine has it."""

    name: ModeName
    available: bool
    strength: Strength
    reason: str
    """Why it is to be had, or what is missing."""


def survey() -> tuple[ModeReport, ...]:
    """All modes, strongest first, with what is true of them here."""
    missing = "not in this version yet"
    return (
        ModeReport(name="deny", available=False, strength=_NOTHING, reason=missing),
        ModeReport(name="absorb", available=False, strength=_NOTHING, reason=missing),
        ModeReport(
            name="detect",
            available=True,
            strength=DETECT_STRENGTH,
            reason="snapshot, comparison and restore",
        ),
    )


def choose(asked: str, modes: Sequence[ModeReport]) -> ModeReport:
    """Pick the mode of a run.

    Args:
        asked: `auto`, or a mode by its name.
        modes: strongest first, as `survey` gives them.

    Returns:
        The strongest that is available, or the one that was asked for; its reason
        says why.

    Raises:
        ModeUnavailable: the one asked for by name is not to be had; never a silent
            weaker one.
    """
    if asked == "auto":
        found = next(mode for mode in modes if mode.available)
        passed = [m for m in modes[: modes.index(found)] if not m.available]
        why = "; ".join(f"{mode.name}: {mode.reason}" for mode in passed)
        reason = "strongest available" + (f" ({why})" if why else "")
        return ModeReport(
            name=found.name, available=True, strength=found.strength, reason=reason
        )
    named = next(mode for mode in modes if mode.name == asked)
    if not named.available:
        raise ModeUnavailable(f"mode {asked}: {named.reason}")
    return ModeReport(
        name=named.name,
        available=True,
        strength=named.strength,
        reason="asked for by name",
    )
