"""P5 to P8, P11, P13's share of the snapshot store: taking, comparing, putting back.

    python bench/bench_snapshot.py [--files N] [--rounds N] [--large MIB] [--million]

Beside cp, find, git and restic where they are installed. Caches are warm; whatever
writes ends with its own flush, or with `sync -f` where it has none.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import (
    Goal,
    Report,
    Row,
    Subject,
    child,
    command,
    file_system,
    have,
    make_tree,
    take_turns,
)

STORE = """
import sys
from pathlib import Path
from workspace_guard.files.tree import Folder
from workspace_guard.snapshot.compare import compare
from workspace_guard.snapshot.restore import restore
from workspace_guard.snapshot.store import Store
store = Store(Path(sys.argv[2]))
top = Folder.open(sys.argv[1])
"""
CREATE = STORE + "print(store.create(top).id)"
EMPTY = "import sys"


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", type=int, default=1_024, help="MiB of one file")
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.place, prefix="wsguard-bench-") as made:
        place = Path(made)
        report = Report(place)
        report.missing += [name for name in ("git", "restic") if not have(name)]
        tree = place / "tree"
        make_tree(tree, chosen.files)
        first_snapshot(report, place, tree, chosen.rounds)
        again(report, place, tree, chosen.rounds)
        put_back(report, place, tree, chosen.rounds)
        one_large_file(report, place, chosen.large, chosen.rounds)
        memory(report, place, (chosen.files // 4, chosen.files // 2, chosen.files))
        if chosen.million:
            memory(report, place, (250_000, 500_000, 1_000_000))
        print("\nwritten:", *report.write())


def wipe(*paths: Path) -> None:
    """Remove what an earlier round has left."""
    subprocess.run(["rm", "-rf", *map(str, paths)], check=True)


def peers(place: Path, tree: Path) -> list[Subject]:
    """The peers that are installed, each taking everything for the first time."""
    copy, repository, restic = place / "copy", place / "git", place / "restic"
    found = [
        Subject(
            name="cp -a, sync -f",
            run=lambda: (
                command("cp", "-a", tree, copy)(),
                command("sync", "-f", copy)(),
            ),
            before=lambda: wipe(copy),
        )
    ]
    if have("restic"):
        found.append(
            Subject(
                name="restic backup",
                run=command(*restic_of(restic), "backup", "-q", tree),
                before=lambda: (
                    wipe(restic),
                    command(*restic_of(restic), "init")(),
                ),
            )
        )
    if have("git"):
        found.append(
            Subject(
                name="git add -A",
                run=command(
                    "git", f"--git-dir={repository}", f"--work-tree={tree}", "add", "-A"
                ),
                before=lambda: (
                    wipe(repository),
                    command("git", "init", "-q", "--bare", repository)(),
                ),
            )
        )
    return found


def restic_of(repository: Path) -> tuple[str, ...]:
    """Restic with a repository of its own and no password to ask for."""
    return (
        "restic",
        "--insecure-no-password",
        "--no-cache",
        "-r",
        str(repository),
    )


def first_snapshot(report: Report, place: Path, tree: Path, rounds: int) -> None:
    """P5."""
    store = place / "store"
    ours = Subject(
        name="snapshot", run=child(CREATE, tree, store), before=lambda: wipe(store)
    )
    files = sum(1 for path in tree.rglob("*") if path.is_file())
    report.add(
        Row(
            figure="P5",
            what=f"first snapshot of {files:,} files, synced",
            n=rounds,
            medians=take_turns([ours, *peers(place, tree)], rounds),
            goals=[
                Goal(of="snapshot", to="cp -a, sync -f", at_most=0.25),
                Goal(of="snapshot", to="restic backup", at_most=0.3),
                Goal(of="snapshot", to="git add -A", at_most=0.12),
            ],
        )
    )


COMPARE = (
    STORE
    + """
import time
snapshot = store.load(sys.argv[3])
times = []
for _ in range(5):
    began = time.perf_counter()
    found = compare(snapshot.manifest, top)
    times.append(time.perf_counter() - began)
assert not found.changes
print(sorted(times)[2])
"""
)


def seconds_of(code: str, *arguments: object) -> float:
    """Run Python code in a process of its own that prints the seconds it took."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def again(report: Report, place: Path, tree: Path, rounds: int) -> None:
    """P6."""
    store, restic = place / "store", place / "restic"
    wipe(store)
    snapshot_id = _create(tree, store)
    found = Subject(name="find -printf", run=command("find", tree, "-printf", FORMAT))
    medians = take_turns([found], max(rounds, 7))
    medians["compare, one process"] = seconds_of(COMPARE, tree, store, snapshot_id)
    report.add(
        Row(
            figure="P6",
            what="comparison, nothing changed",
            n=max(rounds, 5),
            medians=medians,
            goals=[
                Goal(of="compare, one process", to="find -printf", at_most=1.5),
            ],
        )
    )
    subjects = [
        Subject(name="find -printf", run=command("find", tree, "-printf", FORMAT)),
        Subject(name="second snapshot, cold process", run=child(CREATE, tree, store)),
    ]
    if have("restic"):
        wipe(restic)
        command(*restic_of(restic), "init")()
        command(*restic_of(restic), "backup", "-q", tree)()
        subjects.append(
            Subject(
                name="restic again",
                run=command(*restic_of(restic), "backup", "-q", tree),
            )
        )
    report.add(
        Row(
            figure="P6",
            what="second snapshot, nothing changed",
            n=rounds,
            medians=take_turns(subjects, rounds),
            goals=[
                Goal(
                    of="second snapshot, cold process", to="find -printf", at_most=2.5
                ),
                Goal(
                    of="second snapshot, cold process", to="restic again", at_most=0.2
                ),
            ],
        )
    )


FORMAT = "%s %T@ %p\\n"


def _create(tree: Path, store: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CREATE, str(tree), str(store)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


RESTORE = (
    STORE
    + """
import os, time
snapshot = store.load(sys.argv[3])
quarantine = Path(sys.argv[4])
stride = int(sys.argv[5])
paths = [p for p, e in snapshot.manifest.entries() if e.type == "file"][::stride]
for path in paths:
    with open(os.path.join(os.fsencode(sys.argv[1]), path), "ab") as file:
        file.write(b"changed")
began = time.perf_counter()
comparison = compare(snapshot.manifest, top)
compared = time.perf_counter()
assert len(comparison.changes) == len(paths), len(comparison.changes)
outcome = restore(store, snapshot, top, comparison, quarantine)
assert not outcome.unrestored
print(compared - began, time.perf_counter() - compared)
"""
)


def put_back(report: Report, place: Path, tree: Path, rounds: int) -> None:
    """P8."""
    store, quarantine, copy = place / "store", place / "quarantine", place / "copy"
    wipe(store)
    snapshot_id = _create(tree, store)
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    stride = max(len(files) // 1_000, 1)
    some = [str(path) for path in files[::stride]]
    times: dict[str, list[float]] = {"comparison": [], "restore": [], "cp": []}
    for _ in range(rounds):
        wipe(quarantine, copy)
        done = subprocess.run(
            [sys.executable, "-c", RESTORE]
            + [str(p) for p in (tree, store, snapshot_id, quarantine, stride)],
            capture_output=True,
            text=True,
            check=True,
        )
        compared, restored = map(float, done.stdout.split())
        times["comparison"].append(compared)
        times["restore"].append(restored)
        copy.mkdir()
        copying = Subject(name="cp", run=command("cp", "--parents", "-a", *some, copy))
        times["cp"].append(take_turns([copying], 1)["cp"])
    medians = {
        "restore": sorted(times["restore"])[rounds // 2],
        "cp of those files, and one comparison": sorted(times["cp"])[rounds // 2]
        + sorted(times["comparison"])[rounds // 2],
    }
    report.add(
        Row(
            figure="P8",
            what=f"restore of {len(some):,} changed files of {len(files):,}",
            n=rounds,
            medians=medians,
            goals=[
                Goal(
                    of="restore",
                    to="cp of those files, and one comparison",
                    at_most=1.5,
                )
            ],
            notes="restore saves what was changed first, and looks again afterwards.",
        )
    )


def one_large_file(report: Report, place: Path, mib: int, rounds: int) -> None:
    """P7."""
    tree, store, copy = place / "large", place / "store", place / "copy"
    tree.mkdir()
    with (tree / "one.bin").open("wb") as file:
        block = bytes(range(256)) * 4_096
        for number in range(mib):
            file.write(number.to_bytes(8, "big") + block[8:])
    ours = Subject(
        name="snapshot", run=child(CREATE, tree, store), before=lambda: wipe(store)
    )
    bare = Subject(name="bare Python", run=child(STORE, tree, store))
    copying = Subject(
        name="cp and fsync",
        run=lambda: (
            command("cp", tree / "one.bin", copy)(),
            command("sync", copy)(),
        ),
        before=lambda: wipe(copy),
    )
    report.add(
        Row(
            figure="P7",
            what=f"one file of {mib:,} MiB on {file_system(place)}",
            n=rounds,
            medians=take_turns([ours, copying, bare], rounds),
            goals=[Goal(of="snapshot", to="cp and fsync", at_most=1.35)],
        )
    )
    wipe(tree, store, copy)


PEAK = (
    STORE
    + """
import resource
snapshot = store.create(top)
assert not compare(snapshot.manifest, top).changes
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
)


def memory(report: Report, place: Path, counts: tuple[int, ...]) -> None:
    """P11, and its slope."""
    medians: dict[str, float] = {}
    for count in counts:
        tree, store = place / "counted", place / "store"
        wipe(tree, store)
        make_tree(tree, count)
        medians[f"{count:,} files"] = seconds_of(PEAK, tree, store)
    wipe(place / "counted", place / "store")
    first, last = counts[0], counts[-1]
    grown = medians[f"{last:,} files"] - medians[f"{first:,} files"]
    slope = grown * 1024 * 1024 / (last - first)
    # The goal is set for this many; other numbers show the slope.
    goals = [Goal(of="100,000 files", to=None, at_most=80)]
    report.add(
        Row(
            figure="P11",
            what="peak memory of a snapshot and a comparison",
            n=1,
            medians=medians,
            unit="MiB",
            goals=goals,
            notes=f"slope: {slope:,.0f} bytes a file",
        )
    )


if __name__ == "__main__":
    main()
