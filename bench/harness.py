"""Measure things side by side, in one run, and write down what was seen.

Absolute times on shared machines mean nothing: what counts is the ratio of medians of
subjects that took turns. A subject is a function of no arguments that does the thing
once; what it needs before each round is a function too, and is not timed.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

RESULTS = Path(__file__).parent / "results"


def nothing() -> None:
    """Needs no preparation."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One way of doing a thing."""

    name: str
    run: Callable[[], object]
    before: Callable[[], object] = nothing


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one figure has shown."""

    figure: str
    what: str
    n: int
    medians: Mapping[str, float]
    """Subject to median, in the unit of the figure."""
    unit: str = "s"
    goals: Sequence[Goal] = ()
    notes: str = ""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A ratio that a figure should not exceed."""

    of: str
    to: str | None
    """None: the goal is a number in the unit of the figure."""
    at_most: float

    def seen(self, medians: Mapping[str, float]) -> float | None:
        """The ratio, or the number; None where a subject was not there."""
        if self.of not in medians or (self.to is not None and self.to not in medians):
            return None
        return medians[self.of] / (medians[self.to] if self.to is not None else 1.0)

    def verdict(self, medians: Mapping[str, float], unit: str) -> str:
        """One line for the table."""
        seen = self.seen(medians)
        against = f"{self.to}" if self.to is not None else unit
        if seen is None:
            return f"{self.of} / {against}: not measured ({self.to} is not here)"
        met = "met" if seen <= self.at_most else "NOT met"
        return f"{self.of} / {against} = {seen:.2f} (goal {self.at_most:g}): {met}"


def take_turns(subjects: Sequence[Subject], rounds: int) -> dict[str, float]:
    """Time every subject once a round; give each one's median in seconds."""
    times: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for _ in range(rounds):
        for subject in subjects:
            subject.before()
            began = time.perf_counter()
            subject.run()
            times[subject.name].append(time.perf_counter() - began)
    return {name: statistics.median(found) for name, found in times.items()}


def command(*words: str | Path, cwd: Path | None = None) -> Callable[[], object]:
    """A subject's function that runs a program and sees that it succeeded."""

    def run() -> None:
        subprocess.run(
            [str(word) for word in words], cwd=cwd, check=True, capture_output=True
        )

    return run


def child(code: str, *arguments: str | Path) -> Callable[[], object]:
    """A subject's function that runs Python code in a process of its own."""
    return command(sys.executable, "-c", code, *arguments)


def have(program: str) -> bool:
    """Whether a peer is installed; one that is not is left out and named."""
    return shutil.which(program) is not None


@dataclass
class Report:
    """All rows of one run, with what they were seen on."""

    place: Path
    rows: list[Row] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Keep a row, and print it at once."""
        self.rows.append(row)
        print(f"\n{row.figure} {row.what} (n = {row.n})")
        for name, median in row.medians.items():
            print(f"  {name:<44} {_number(median, row.unit)}")
        for goal in row.goals:
            print(f"  -> {goal.verdict(row.medians, row.unit)}")
        if row.notes:
            print(f"  {row.notes}")

    def write(self) -> tuple[Path, Path]:
        """Write the results as JSON and as Markdown."""
        RESULTS.mkdir(exist_ok=True)
        stem = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"
        facts = machine(self.place)
        as_json = RESULTS / f"{stem}.json"
        as_json.write_text(
            json.dumps(
                {
                    "schema": "workspace-guard/bench/1",
                    "machine": facts,
                    "missing": self.missing,
                    "rows": [asdict(row) for row in self.rows],
                },
                indent=1,
            )
            + "\n"
        )
        as_table = RESULTS / f"{stem}.md"
        as_table.write_text(self._markdown(facts))
        return as_json, as_table

    def _markdown(self, facts: Mapping[str, str]) -> str:
        lines = ["# Results", "", "Medians of subjects that took turns in one run. "]
        lines[-1] += "Only the ratios mean anything elsewhere."
        lines += ["", *(f"- {key}: {value}" for key, value in facts.items())]
        if self.missing:
            lines.append(f"- not here, so not compared: {', '.join(self.missing)}")
        lines += [
            "",
            "| figure | what | n | subject | median |",
            "| --- | --- | ---: | --- | ---: |",
        ]
        for row in self.rows:
            for name, median in row.medians.items():
                cell = _number(median, row.unit)
                lines.append(
                    f"| {row.figure} | {row.what} | {row.n} | {name} | {cell} |"
                )
        lines += ["", "| figure | goal |", "| --- | --- |"]
        lines += [
            f"| {row.figure} | {goal.verdict(row.medians, row.unit)} |"
            for row in self.rows
            for goal in row.goals
        ]
        notes = [f"- {row.figure}: {row.notes}" for row in self.rows if row.notes]
        return "\n".join([*lines, "", *notes, ""])


def _number(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value * 1000:,.1f} ms" if value < 1 else f"{value:,.2f} s"
    return f"{value:,.1f} {unit}"


def machine(place: Path) -> dict[str, str]:
    """What a number was seen on."""
    return {
        "date": f"{dt.datetime.now(dt.UTC):%Y-%m-%d}",
        "processor": f"{os.cpu_count()} x {_processor()}",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": file_system(place),
        "python": platform.python_version(),
        "user": "root" if os.getuid() == 0 else "ordinary",
        **{name: version for name in _PEERS if (version := _version(name))},
    }


_PEERS = ("git", "restic", "borg", "cp", "find", "bwrap")


def _version(program: str) -> str | None:
    if not have(program):
        return None
    flag = "version" if program == "restic" else "--version"
    done = subprocess.run([program, flag], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0] if done.stdout else "?"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def file_system(place: Path) -> str:
    """The type of the file system that holds a folder."""
    done = subprocess.run(
        ["stat", "-f", "-c", "%T", str(place)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def make_tree(top: Path, files: int, *, per_folder: int = 98) -> None:
    """Make a tree of small files, the same for the same numbers."""
    sizes = (200, 1_000, 2_000, 4_000, 10_000)
    block = os.urandom(16_384)
    for number in range(files):
        folder, place = divmod(number, per_folder)
        where = top / f"d{folder // 32:03d}" / f"e{folder % 32:02d}"
        if place == 0:
            where.mkdir(parents=True, exist_ok=True)
        size = sizes[number * 7919 % len(sizes)]
        # No two alike, or a store that keeps equal content once would have it easy.
        (where / f"f{place:02d}.txt").write_bytes(
            number.to_bytes(8, "big") + block[number % 4_096 :][: size - 8]
        )
