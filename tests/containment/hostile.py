"""One small program per way of changing a file of the parent workspace.

Run as `python3 hostile.py NAME` inside a step of the sample workspace, so that the
parent is `../..`. Each first writes a good local `output.md` (but for the one whose
point is that it does not), so that nothing but its escape stands between it and
promotion, and ends with exit status 0. Standard library only: an ordinary user may run
it with another interpreter.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable

Program = Callable[[], None]
PROGRAMS: dict[str, Program] = {}
PARENT = "../.."
GOOD_OUTPUT = "# 会话日志数据保留改造方案\n\n## 阻塞信息\n\n- 无。\n".encode()
OUTSIDE = "../../../outside"
"""A folder beside the workspace that belongs to the same user."""


def program(body: Program) -> Program:
    """Enter a function in the table under its own name."""
    PROGRAMS[body.__name__] = body
    return body


def parent(path: str) -> str:
    """Spell a path of the parent workspace."""
    return f"{PARENT}/{path}"


def put(path: str | bytes, content: bytes) -> None:
    """Write a file the usual way."""
    with open(path, "wb") as file:
        file.write(content)


def remove_all(path: str) -> None:
    """Delete a tree the way a script does."""
    shutil.rmtree(path)


def times_of(path: str) -> tuple[int, int]:
    """The access and modification time of a file."""
    found = os.stat(path)
    return found.st_atime_ns, found.st_mtime_ns


# --- Controls: nothing wrong is done --------------------------------------------------


@program
def innocent() -> None:
    """Read the parent, write only in the step."""
    with open(parent("template.md"), "rb") as file:
        put("notes.txt", file.read())
    os.makedirs("scratch/deep", exist_ok=True)
    os.chmod("notes.txt", 0o600)


@program
def open_without_writing() -> None:
    """Open a parent file for writing and close it again."""
    with open(parent("output.md"), "r+b"):
        pass


@program
def mode_to_the_same() -> None:
    """Touch only the ctime: the mode set is the mode that was."""
    os.chmod(parent("output.md"), 0o644)


@program
def edits_its_inputs() -> None:
    """Change the copies of the inputs, which are the step's own."""
    for name in os.listdir("inputs"):
        os.chmod(f"inputs/{name}", 0o600)
        put(f"inputs/{name}", b"scribbled over\n")


# --- Targets that must not be promoted ------------------------------------------------


@program
def leaves_nothing() -> None:
    """End well without the output."""
    os.unlink("output.md")


@program
def fails_after_writing() -> None:
    """Leave a good output and fail all the same."""
    sys.exit(3)


@program
def target_is_a_link() -> None:
    """Leave as the output a link to a file of the parent."""
    os.unlink("output.md")
    os.symlink(parent("blackboard.json"), "output.md")


@program
def target_is_a_dangling_link() -> None:
    """Leave as the output a link that leads nowhere."""
    os.unlink("output.md")
    os.symlink("/nowhere/at/all", "output.md")


@program
def target_is_a_fifo() -> None:
    """Leave as the output a FIFO, which would block whoever opens it."""
    os.unlink("output.md")
    os.mkfifo("output.md")


@program
def target_is_a_second_name() -> None:
    """Make the output a second name of the parent's, and write it."""
    os.unlink("output.md")
    os.link(parent("output.md"), "output.md")
    with open("output.md", "ab") as file:
        file.write(b"through the target\n")


# --- Content --------------------------------------------------------------------------


@program
def write() -> None:
    """Overwrite a file."""
    put(parent("output.md"), b"overwritten\n")


@program
def absolute_path() -> None:
    """Overwrite a file by its absolute path, and leave no local output."""
    os.unlink("output.md")
    put(os.path.abspath(parent("output.md")), b"overwritten by absolute path\n")


@program
def append() -> None:
    """Append to a file."""
    with open(parent("PLAN.md"), "ab") as file:
        file.write(b"4. celebrate\n")


@program
def truncate() -> None:
    """Empty a file."""
    os.truncate(parent("output.md"), 0)


@program
def in_place_mtime_back() -> None:
    """Change a byte in place, then put the times back."""
    before = times_of(parent("PLAN.md"))
    with open(parent("PLAN.md"), "r+b") as file:
        file.write(b"9")
    os.utime(parent("PLAN.md"), ns=before)


@program
def map_memory() -> None:
    """Change a byte through a shared mapping."""
    with (
        open(parent("PLAN.md"), "r+b") as file,
        mmap.mmap(file.fileno(), 0) as memory,
    ):
        memory[0:1] = b"8"


@program
def rename_over() -> None:
    """Save as an editor does: a new file, renamed over the old."""
    put(parent(".output.md.new"), b"saved by rename\n")
    os.rename(parent(".output.md.new"), parent("output.md"))


@program
def twin_renamed_over() -> None:
    """Rename over a file its twin: equal size, mode and times, one byte different."""
    shutil.copy2(parent("PLAN.md"), "twin")
    before = times_of(parent("PLAN.md"))
    with open("twin", "r+b") as file:
        file.write(b"7")
    os.utime("twin", ns=before)
    os.rename("twin", parent("PLAN.md"))


@program
def exchange() -> None:
    """Exchange two files in one call."""
    libc = ctypes.CDLL(None, use_errno=True)
    at_fdcwd, rename_exchange = -100, 2
    one, two = parent("PLAN.md").encode(), parent("template.md").encode()
    if libc.renameat2(at_fdcwd, one, at_fdcwd, two, rename_exchange):
        raise OSError(ctypes.get_errno(), "renameat2")


@program
def one_of_two_names() -> None:
    """Append through one name of a file that has two."""
    with open(parent("data/table.csv"), "ab") as file:
        file.write(b"C,365\n")


@program
def link_in_the_step() -> None:
    """Write through a link in the step that leads to the parent."""
    os.symlink(parent("output.md"), "doorway.md")
    put("doorway.md", b"through the link\n")


@program
def hard_link_in_the_step() -> None:
    """Write through a second name in the step of a parent's file."""
    os.link(parent("PLAN.md"), "inside.md")
    put("inside.md", b"through the second name\n")


@program
def outside_file_linked_in() -> None:
    """Put in a file's place a second name of a file that lies outside."""
    os.unlink(parent("PLAN.md"))
    os.link(f"{OUTSIDE}/precious.md", parent("PLAN.md"))


# --- Names ----------------------------------------------------------------------------


@program
def unlink() -> None:
    """Delete a file."""
    os.unlink(parent("template.md"))


@program
def rmdir() -> None:
    """Delete an empty folder."""
    os.rmdir(parent("data/empty"))


@program
def rename_away() -> None:
    """Give a file another name."""
    os.rename(parent("PLAN.md"), parent("PLAN-old.md"))


@program
def rename_storm() -> None:
    """Move a file to and fro a thousand times, and end elsewhere."""
    for _ in range(1000):
        os.rename(parent("PLAN.md"), parent("bin/PLAN.md"))
        os.rename(parent("bin/PLAN.md"), parent("PLAN.md"))
    os.rename(parent("PLAN.md"), parent("bin/PLAN.md"))


@program
def rename_folder() -> None:
    """Give a folder another name, with all that it holds."""
    os.rename(parent("bin"), parent("tools"))


@program
def hard_link() -> None:
    """Give a file a second name elsewhere in the parent."""
    os.link(parent("PLAN.md"), parent("notes/PLAN-again.md"))


@program
def link_text() -> None:
    """Let a link lead elsewhere."""
    os.unlink(parent("data/latest"))
    os.symlink("empty.csv", parent("data/latest"))


@program
def whiteout_name() -> None:
    """Make an ordinary file whose name means a deletion to some layered tools."""
    put(parent(".wh.output.md"), b"an ordinary file\n")


@program
def created_tree() -> None:
    """Make folders and files, an empty folder and a link among them."""
    os.makedirs(parent("build/deep/empty"))
    put(parent("build/deep/artefact.bin"), bytes(range(256)))
    os.symlink("artefact.bin", parent("build/deep/latest"))


@program
def odd_names() -> None:
    """Make files whose names could hide them or break a report."""
    for name in (b"a\nb", b"esc\x1b[2Jape", b"-rf", b" ", b"bad\xff.md"):
        put(parent("").encode() + name, b"odd: " + name)


@program
def deep_delete() -> None:
    """Delete a folder with all below it."""
    remove_all(parent("data"))


# --- Types ----------------------------------------------------------------------------


@program
def symlink_swap() -> None:
    """Swap a folder for a link to an outside one, and write through it."""
    remove_all(parent("bin"))
    os.symlink("../outside", parent("bin"))
    put(parent("bin/written-through.txt"), b"through the swapped folder\n")


@program
def folder_for_file() -> None:
    """Put a folder that is not empty where a file was."""
    os.unlink(parent("PLAN.md"))
    os.mkdir(parent("PLAN.md"))
    put(parent("PLAN.md/inside.txt"), b"in the folder that was a file\n")


@program
def file_for_folder() -> None:
    """Put a file where a folder was."""
    remove_all(parent("bin"))
    put(parent("bin"), b"a file that was a folder\n")


@program
def link_for_file() -> None:
    """Put a link to an outside file where a file was."""
    os.unlink(parent("PLAN.md"))
    os.symlink("../outside/precious.md", parent("PLAN.md"))


@program
def fifo() -> None:
    """Put a FIFO where a file was, and another one beside it."""
    os.unlink(parent("PLAN.md"))
    os.mkfifo(parent("PLAN.md"))
    os.mkfifo(parent("new-pipe"))


@program
def bound_socket() -> None:
    """Bind a socket in the parent."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(parent("agent.sock"))


@program
def device() -> None:
    """Make a device node (root only)."""
    os.mknod(parent("null"), stat.S_IFCHR | 0o666, os.makedev(1, 3))


# --- Metadata -------------------------------------------------------------------------


@program
def chmod() -> None:
    """Change a mode."""
    os.chmod(parent("PLAN.md"), 0o777)


@program
def chmod_folder() -> None:
    """Change the mode of a folder."""
    os.chmod(parent("data/private"), 0o755)


@program
def chown() -> None:
    """Change the owner (root only)."""
    os.chown(parent("PLAN.md"), 12345, 12345)


@program
def utime() -> None:
    """Change the modification time."""
    os.utime(parent("PLAN.md"), (1, 1))


@program
def changed_and_changed_back() -> None:
    """Change a file and put its bytes back; the modification time has moved."""
    with open(parent("PLAN.md"), "rb") as file:
        content = file.read()
    put(parent("PLAN.md"), b"something else\n")
    put(parent("PLAN.md"), content)


@program
def xattr() -> None:
    """Set one extended attribute and remove another."""
    os.setxattr(parent("PLAN.md"), "user.mark", b"seen")
    os.removexattr(parent("data/table.csv"), "user.origin")


@program
def locked_folder() -> None:
    """Take all rights from a folder, and make a locked one with something in it."""
    os.mkdir(parent("locked"))
    put(parent("locked/hidden.txt"), b"behind a locked door\n")
    os.chmod(parent("locked"), 0)
    os.chmod(parent("notes"), 0)


# --- Processes ------------------------------------------------------------------------


def _leave(then: Program, *, detached: bool) -> None:
    """Leave a process behind that acts once this one has ended.

    Its sign is the end of a pipe that only this process holds open: no clock decides.
    """
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(read_end)
        return
    os.close(write_end)
    if detached:
        os.setsid()
        if os.fork():
            os._exit(0)
    os.read(read_end, 1)
    then()
    os._exit(0)


def _append_late_and_stay() -> None:
    with open(parent("PLAN.md"), "ab") as file:
        file.write(b"written late\n")
    while True:
        signal.pause()


@program
def daemon() -> None:
    """Double fork into a session of its own; write when the command has ended."""
    _leave(_append_late_and_stay, detached=True)


@program
def late_writer() -> None:
    """Leave a child that writes when the command has ended, and will not go."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _leave(_append_late_and_stay, detached=False)


# --- Programs of others ---------------------------------------------------------------


@program
def git_commit() -> None:
    """Commit to the repository of the parent, by its own name."""
    put("draft.md", b"a draft\n")
    ours = ["git", f"--git-dir={PARENT}/.git", f"--work-tree={PARENT}"]
    who = ["-c", "user.name=agent", "-c", "user.email=agent@example.org"]
    for command in (["add", "-A", "."], [*who, "commit", "-q", "-m", "agent"]):
        subprocess.run([*ours, *command], check=True, stdin=subprocess.DEVNULL)


@program
def git_by_discovery() -> None:
    """Commit with git's own search for a repository, which must find none."""
    done = subprocess.run(["git", "add", "-A"], check=False, capture_output=True)
    put("git-said.txt", done.stderr)


def main() -> None:
    """Write a good output, then do what the table says."""
    put("output.md", GOOD_OUTPUT)
    PROGRAMS[sys.argv[1]]()


if __name__ == "__main__":
    main()
