"""Guards around every test, the accounts and the sample workspace, and the report."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import capabilities
import psutil
import pytest
from accounts import (
    ORDINARY_UID,
    USERS,
    Account,
    copy_library,
    find_interpreter,
    is_root,
)
from hypothesis import HealthCheck, settings
from sample import build_workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.register_assert_rewrite("suite")
# A limit for each example would fail where the machine is busy, and tell nothing.
settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

AGENTS = Path(__file__).parent / "agents"
MODES = ("detect",)
SETTLE_DEADLINE_S = 5.0
PROOF_OF_USER = {"root": "root", "ordinary": "ordinary-user"}

Tally = dict[tuple[str, str], int]
_TALLY = pytest.StashKey[Tally]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks of this suite and refuse a demand that nobody knows."""
    config.addinivalue_line("markers", "mode(name): the containment mode of the test")
    config.addinivalue_line("markers", "user(name): who runs the test's command")
    config.stash[_TALLY] = {(mode, user): 0 for mode in MODES for user in USERS}
    capabilities.demanded()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave `tests/agents` out unless it is named: it installs programs by npm."""
    if collection_path != AGENTS:
        return None
    named = (Path(argument.partition("::")[0]).resolve() for argument in config.args)
    return None if any(path.is_relative_to(AGENTS) for path in named) else True


def pytest_report_header() -> list[str]:
    """Say what this machine can do."""
    return capabilities.header()


# --- The table of what was run, mode by user ------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Count a test that names a mode, once its body has run."""
    report = yield
    if report.when == "call" and not report.skipped:
        cell = _declared(item, "mode", ""), _declared(item, "user", _own_name())
        tally = item.config.stash[_TALLY]
        if cell in tally:
            tally[cell] += 1
    return report


def _declared(item: pytest.Item, what: str, otherwise: str) -> str:
    """The mode or user of a test: its parameter of that name, else its mark."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if what in parameters:
        return str(parameters[what])
    mark = item.get_closest_marker(what)
    return str(mark.args[0]) if mark is not None else otherwise


def _own_name() -> str:
    return "root" if is_root() else "ordinary"


def _empty_cells(config: pytest.Config) -> list[str]:
    """The cells that the environment demands and where no test was run."""
    demanded = capabilities.demanded()
    return [
        f"{mode} as {user}"
        for (mode, user), count in config.stash[_TALLY].items()
        if count == 0 and PROOF_OF_USER[user] in demanded
    ]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run in which a demanded combination was never tested."""
    finished = (
        exitstatus == pytest.ExitCode.OK and not session.config.option.collectonly
    )
    if finished and _empty_cells(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Show how many tests ran in each mode as each user."""
    if config.option.collectonly:
        return
    write = terminalreporter.write_line
    terminalreporter.section("containment tests run, mode by user")
    write("".join(f"{title:>12}" for title in ("", *USERS)))
    for mode in MODES:
        counts = (str(config.stash[_TALLY][mode, user]) for user in USERS)
        write("".join(f"{cell:>12}" for cell in (mode, *counts)))
    for cell in _empty_cells(config):
        write(f"FAILED: no test ran in {cell}, and {capabilities.VARIABLE} demands it")


# --- Guards ---------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Restore environment and working folder; fail a test that leaves a thing behind.

    What is looked for: child processes, threads, open descriptors, mounts.
    """
    environment, folder = dict(os.environ), os.getcwd()
    before = _possessions()
    yield
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    left = _wait_for(lambda: _possessions() - before)
    assert not left, f"the test has left behind: {', '.join(sorted(left))}"


def _wait_for(look: Callable[[], set[str]]) -> set[str]:
    """What is left once things have had time to end by themselves."""
    deadline = time.monotonic() + SETTLE_DEADLINE_S
    left = look()
    if left:
        gc.collect()
    while left and time.monotonic() < deadline:
        threading.Event().wait(0.02)
        left = look()
    return left


def _possessions() -> set[str]:
    """What this process holds, each as a text that names it."""
    return {*_children(), *_threads(), *_descriptors(), *_mounts()}


def _children() -> Iterator[str]:
    for child in psutil.Process().children(recursive=True):
        try:
            yield f"process {child.pid} ({child.name()}, {child.status()})"
        except psutil.NoSuchProcess:
            continue


def _threads() -> Iterator[str]:
    for thread in threading.enumerate():
        yield f"thread {thread.name} ({thread.ident})"


def _descriptors() -> Iterator[str]:
    if not capabilities.has("procfs"):
        return
    for name in os.listdir("/proc/self/fd"):
        try:
            yield f"descriptor {name} on {os.readlink(f'/proc/self/fd/{name}')}"
        except FileNotFoundError:
            continue  # the one that listed the folder


def _mounts() -> Iterator[str]:
    if not capabilities.has("procfs"):
        return
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as table:
        for line in table:
            yield f"mount {line.split()[4]}"


# --- Accounts and places --------------------------------------------------------------


@pytest.fixture(scope="session")
def public_base() -> Iterator[Path]:
    """A folder that any account can enter; gone when the session ends."""
    with tempfile.TemporaryDirectory(prefix="wsguard-tests-") as name:
        base = Path(name)
        base.chmod(0o755)
        yield base


@pytest.fixture(scope="session")
def library(public_base: Path) -> Path:
    """The package and its requirements, where any account can read them."""
    to = public_base / "library"
    copy_library(to)
    return to


@pytest.fixture(scope="session")
def account_named(public_base: Path, library: Path) -> Callable[[str], Account]:
    """Get the account of a name; skips (or fails) where this machine has no such."""

    def get(name: str) -> Account:
        capabilities.require(PROOF_OF_USER[name])
        stranger = name == "ordinary" and is_root()
        uid = ORDINARY_UID if stranger else getattr(os, "geteuid", lambda: 0)()
        gid = ORDINARY_UID if stranger else getattr(os, "getegid", lambda: 0)()
        home = public_base / f"home-{name}"
        account = Account(
            name=name,
            uid=uid,
            gid=gid,
            python=find_interpreter() if stranger else sys.executable,
            library=library,
            home=home,
        )
        if not home.exists():
            home.mkdir(mode=0o700)
            account.own(home)
        return account

    return get


@pytest.fixture(params=USERS)
def user(
    request: pytest.FixtureRequest, account_named: Callable[[str], Account]
) -> Account:
    """Run the test once as root and once as an ordinary user."""
    return account_named(request.param)


@pytest.fixture
def place(request: pytest.FixtureRequest, public_base: Path) -> Iterator[Path]:
    """A scratch folder that belongs to the test's user and that this one can reach.

    Unlike `tmp_path`, whose parents only their owner can enter.
    """
    with tempfile.TemporaryDirectory(dir=public_base, prefix="test-") as name:
        folder = Path(name)
        if "user" in request.fixturenames:
            request.getfixturevalue("user").own(folder)
        yield folder


@pytest.fixture
def state_dir(place: Path) -> Path:
    """A state folder of the test's own; the program makes it."""
    return place / "state"


@pytest.fixture
def workspace(request: pytest.FixtureRequest, place: Path) -> Path:
    """The sample workspace of `sample.py`, owned by the test's user."""
    top = place / "workspace"
    build_workspace(top)
    if "user" in request.fixturenames:
        request.getfixturevalue("user").own(top)
    return top
