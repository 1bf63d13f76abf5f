"""The hostile programs against `detect`: seen by comparison, and put back."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest
from sample import DOCUMENT, FILES
from suite import PROMOTED, ContainmentSuite, Expected, refused

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAN = FILES[b"PLAN.md"][1]
TEMPLATE = FILES[b"template.md"][1]
TABLE = FILES[b"data/table.csv"][1]

EXPECTED: dict[str, Expected] = {
    "innocent": PROMOTED,
    "open_without_writing": PROMOTED,
    "mode_to_the_same": PROMOTED,
    "edits_its_inputs": PROMOTED,
    "git_by_discovery": PROMOTED,
    "leaves_nothing": refused("target_missing", 40),
    "fails_after_writing": refused("runner_failed", 20),
    "target_is_a_link": refused("target_invalid", 41),
    "target_is_a_dangling_link": refused("target_invalid", 41),
    "target_is_a_fifo": refused("target_invalid", 41),
    "target_is_a_second_name": Expected(
        escapes={b"output.md": "changed"},
        kept={b"output.md": DOCUMENT.encode() + b"through the target\n"},
    ),
    "write": Expected(
        escapes={b"output.md": "changed"}, kept={b"output.md": b"overwritten\n"}
    ),
    "absolute_path": Expected(
        escapes={b"output.md": "changed"},
        kept={b"output.md": b"overwritten by absolute path\n"},
    ),
    "append": Expected(
        escapes={b"PLAN.md": "changed"}, kept={b"PLAN.md": PLAN + b"4. celebrate\n"}
    ),
    "truncate": Expected(escapes={b"output.md": "changed"}, kept={b"output.md": b""}),
    "in_place_mtime_back": Expected(
        escapes={b"PLAN.md": "changed"}, kept={b"PLAN.md": b"9" + PLAN[1:]}
    ),
    "map_memory": Expected(
        escapes={b"PLAN.md": "changed"}, kept={b"PLAN.md": b"8" + PLAN[1:]}
    ),
    "rename_over": Expected(
        escapes={b"output.md": "changed"}, kept={b"output.md": b"saved by rename\n"}
    ),
    "twin_renamed_over": Expected(
        escapes={b"PLAN.md": "changed"}, kept={b"PLAN.md": b"7" + PLAN[1:]}
    ),
    "exchange": Expected(
        escapes={b"PLAN.md": "changed", b"template.md": "changed"},
        kept={b"PLAN.md": TEMPLATE, b"template.md": PLAN},
    ),
    "one_of_two_names": Expected(
        escapes={b"data/table.csv": "changed", b"data/table-again.csv": "changed"},
        kept={b"data/table.csv": TABLE + b"C,365\n"},
    ),
    "link_in_the_step": Expected(
        escapes={b"output.md": "changed"}, kept={b"output.md": b"through the link\n"}
    ),
    "hard_link_in_the_step": Expected(
        escapes={b"PLAN.md": "changed"},
        kept={b"PLAN.md": b"through the second name\n"},
    ),
    "outside_file_linked_in": Expected(
        escapes={b"PLAN.md": "changed"}, kept={b"PLAN.md": b"precious\n"}
    ),
    "unlink": Expected(escapes={b"template.md": "deleted"}),
    "rmdir": Expected(escapes={b"data/empty": "deleted"}),
    "rename_away": Expected(
        escapes={b"PLAN.md": "deleted", b"PLAN-old.md": "created"},
        kept={b"PLAN-old.md": PLAN},
    ),
    "rename_storm": Expected(
        escapes={b"PLAN.md": "deleted", b"bin/PLAN.md": "created"},
        kept={b"bin/PLAN.md": PLAN},
    ),
    "rename_folder": Expected(
        escapes={
            b"bin": "deleted",
            b"bin/check.sh": "deleted",
            b"bin/lib": "deleted",
            b"bin/lib/colours.sh": "deleted",
            b"tools": "created",
            b"tools/check.sh": "created",
            b"tools/lib": "created",
            b"tools/lib/colours.sh": "created",
        },
        kept={b"tools/lib/colours.sh": b"red=31\r\ngreen=32\r\n"},
    ),
    "hard_link": Expected(
        escapes={b"PLAN.md": "metadata", b"notes/PLAN-again.md": "created"},
        kept={b"notes/PLAN-again.md": PLAN},
    ),
    "link_text": Expected(escapes={b"data/latest": "changed"}),
    "whiteout_name": Expected(
        escapes={b".wh.output.md": "created"},
        kept={b".wh.output.md": b"an ordinary file\n"},
    ),
    "created_tree": Expected(
        escapes={
            b"build": "created",
            b"build/deep": "created",
            b"build/deep/empty": "created",
            b"build/deep/artefact.bin": "created",
            b"build/deep/latest": "created",
        },
        kept={b"build/deep/artefact.bin": bytes(range(256))},
    ),
    "odd_names": Expected(
        escapes={
            b"a\nb": "created",
            b"esc\x1b[2Jape": "created",
            b"-rf": "created",
            b" ": "created",
            b"bad\xff.md": "created",
        },
        kept={
            b"a\nb": b"odd: a\nb",
            b"esc\x1b[2Jape": b"odd: esc\x1b[2Jape",
            b"-rf": b"odd: -rf",
            b" ": b"odd:  ",
            b"bad\xff.md": b"odd: bad\xff.md",
        },
    ),
    "deep_delete": Expected(
        escapes={
            b"data": "deleted",
            b"data/table.csv": "deleted",
            b"data/table-again.csv": "deleted",
            b"data/empty.csv": "deleted",
            b"data/empty": "deleted",
            b"data/private": "deleted",
            b"data/private/inner": "deleted",
            b"data/latest": "deleted",
            b"data/dangling": "deleted",
            b"data/loop": "deleted",
            b"data/pipe": "deleted",
        }
    ),
    "symlink_swap": Expected(
        escapes={
            b"bin": "replaced",
            b"bin/check.sh": "deleted",
            b"bin/lib": "deleted",
            b"bin/lib/colours.sh": "deleted",
        },
        outside=(b"written-through.txt",),
    ),
    "folder_for_file": Expected(
        escapes={b"PLAN.md": "replaced", b"PLAN.md/inside.txt": "created"},
        kept={b"PLAN.md/inside.txt": b"in the folder that was a file\n"},
    ),
    "file_for_folder": Expected(
        escapes={
            b"bin": "replaced",
            b"bin/check.sh": "deleted",
            b"bin/lib": "deleted",
            b"bin/lib/colours.sh": "deleted",
        },
        kept={b"bin": b"a file that was a folder\n"},
    ),
    "link_for_file": Expected(escapes={b"PLAN.md": "replaced"}),
    "fifo": Expected(
        escapes={b"PLAN.md": "replaced", b"new-pipe": "created"},
        types={b"PLAN.md": "fifo", b"new-pipe": "fifo"},
    ),
    "bound_socket": Expected(
        escapes={b"agent.sock": "created"}, types={b"agent.sock": "socket"}
    ),
    "device": Expected(
        escapes={b"null": "created"}, types={b"null": "character_device"}
    ),
    "chmod": Expected(escapes={b"PLAN.md": "metadata"}),
    "chmod_folder": Expected(escapes={b"data/private": "metadata"}),
    "chown": Expected(escapes={b"PLAN.md": "metadata"}),
    "utime": Expected(escapes={b"PLAN.md": "metadata"}),
    "changed_and_changed_back": Expected(escapes={b"PLAN.md": "metadata"}),
    "xattr": Expected(
        escapes={
            b"PLAN.md": "metadata",
            b"data/table.csv": "metadata",
            b"data/table-again.csv": "metadata",
        }
    ),
    "locked_folder": Expected(
        escapes={
            b"locked": "created",
            b"locked/hidden.txt": "created",
            b"notes": "metadata",
        },
        kept={b"locked/hidden.txt": b"behind a locked door\n"},
    ),
    "daemon": Expected(
        escapes={b"PLAN.md": "changed"},
        kept={b"PLAN.md": PLAN + b"written late\n"},
        leftovers=("terminated",),
    ),
    "late_writer": Expected(
        escapes={b"PLAN.md": "changed"},
        kept={b"PLAN.md": PLAN + b"written late\n"},
        leftovers=("killed",),
    ),
    "git_commit": Expected(
        escapes={
            b".git/COMMIT_EDITMSG": "changed",
            b".git/index": "changed",
            b".git/logs/HEAD": "changed",
            b".git/logs/refs/heads/trunk": "changed",
            b".git/refs/heads/trunk": "changed",
            b".git/objects/*": "created",
        }
    ),
}


@pytest.mark.mode("detect")
class TestDetect(ContainmentSuite):
    """Everything that a program changes in the parent is found and put back."""

    mode: ClassVar[str] = "detect"
    expected: ClassVar[Mapping[str, Expected]] = EXPECTED
