"""What does a contained step cost before and after the command does its work?

    python3 bench/bench_start.py [--rounds N] [--sizes 100,1000,10000]

Measured: `wsguard --version` against a bare interpreter, and `wsguard run` in `detect`
mode of a command that does nothing, against that command alone, on workspaces of
several sizes. The variants take turns in every round, so that a busy machine is busy
for all of them.

Caveats: the page cache is warm, the files are small (4 KiB), and all lie on the file
system of the temporary folder, the state folder too.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

FILE_BYTES = 4096
FILES_PER_FOLDER = 50
WSGUARD = [sys.executable, "-P", "-m", "workspace_guard"]


def main() -> None:
    options = read_options()
    with tempfile.TemporaryDirectory(prefix="bench-start-") as name:
        scratch = Path(name)
        variants: dict[str, Callable[[], float]] = {
            "python -c pass": lambda: timed([sys.executable, "-c", "pass"]),
            "wsguard --version": lambda: timed([*WSGUARD, "--version"]),
            "true": lambda: timed(["true"]),
        }
        for size in options.sizes:
            workspace = build(scratch / f"files-{size}", size)
            state = scratch / f"state-{size}"
            command = contained(workspace, state)
            variants[f"wsguard run, {size:,} files"] = lambda c=command: timed(c)
        print_machine(scratch)
        print_table(measure(variants, options.rounds))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--sizes",
        type=lambda text: [int(part) for part in text.split(",")],
        default=[100, 1000, 10_000],
    )
    return parser.parse_args()


def build(workspace: Path, size: int) -> Path:
    """A workspace of so many files, no two with the same content."""
    for number in range(size):
        folder = workspace / f"part-{number // FILES_PER_FOLDER:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        seed = number.to_bytes(4, "big")
        (folder / f"file-{number:06d}.bin").write_bytes(seed * (FILE_BYTES // 4))
    return workspace


def contained(workspace: Path, state: Path) -> list[str | Path]:
    where = ["--state-dir", state, "run", "-w", workspace]
    return [*WSGUARD, *where, "--mode", "detect", "--no-target", "--", "true"]


def timed(command: list[str | Path]) -> float:
    """Seconds that a command takes; it must succeed."""
    start = time.perf_counter()
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, capture_output=True
    )
    took = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}: {done.stderr.decode()}")
    return took


def measure(
    variants: dict[str, Callable[[], float]], rounds: int
) -> dict[str, list[float]]:
    """Every variant once a round; the first round only warms the caches."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, variant in variants.items():
            took = variant()
            if number:
                times[name].append(took)
    return times


def print_machine(scratch: Path) -> None:
    print(f"machine      {cpu_model()}, {os.cpu_count()} cores, {platform.machine()}")
    print(f"kernel       {platform.system()} {platform.release()}")
    print(f"file system  {file_system(scratch)}")
    print(f"python       {platform.python_version()}")


def cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as table:
            rows = [line.partition(":") for line in table]
    except OSError:
        return platform.processor() or "unknown"
    names = [value.strip() for key, _, value in rows if key.strip() == "model name"]
    return names[0] if names else "unknown"


def file_system(path: Path) -> str:
    """The type of the file system that holds a path."""
    parts = [
        part
        for part in psutil.disk_partitions(all=True)
        if path.resolve().is_relative_to(part.mountpoint)
    ]
    return max(parts, key=lambda part: len(part.mountpoint)).fstype if parts else "?"


def print_table(times: dict[str, list[float]]) -> None:
    print(f"\n{'':28}{'median':>10}{'fastest':>10}{'slowest':>10}{'n':>4}")
    for name, took in times.items():
        cells = (statistics.median(took), min(took), max(took))
        row = "".join(f"{seconds * 1000:>7.1f} ms" for seconds in cells)
        print(f"{name:28}{row}{len(took):>4}")


if __name__ == "__main__":
    main()
