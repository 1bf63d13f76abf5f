"""The documents say what the program does: their examples are run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = "/tmp/example"
CHANGING = (
    (r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{6}", "<run>"),
    (r"\(\d+\.\d\d s\)", "(<seconds>)"),
    (r"workspace-[0-9a-f]{12}", "workspace-<hash>"),
)


def settled(text: str) -> str:
    """A text without what is different each time."""
    for pattern, word in CHANGING:
        text = re.sub(pattern, word, text)
    return text.strip()


def readme_example() -> tuple[str, str]:
    """The command of the README's example, and the output that it shows."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(
        r"^\$ (wsguard run .*?)\n(.*?)^\$ echo", readme, re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return found[1], found[2]


def test_readme_when_its_example_is_run_then_prints_what_it_shows(
    tmp_path: Path,
) -> None:
    """Every example in the documents is real output."""
    command, shown = readme_example()
    place = tmp_path / "example"
    shutil.copytree(ROOT / "examples" / "document-revision", place)
    words = shlex.split(command.replace(PLACE, str(place)))
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
    }
    environment.pop("XDG_STATE_HOME", None)
    environment.pop("WORKSPACE_GUARD_STATE_DIR", None)

    done = subprocess.run(
        words,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )

    assert done.returncode == 30
    printed = done.stdout.replace(str(place), PLACE).replace("~/example", PLACE)
    assert settled(printed) == settled(shown)


def test_links_when_a_document_names_a_file_then_it_is_there() -> None:
    """A link between the project's own pages leads somewhere."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    missing = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / link).exists()
    ]

    assert missing == []
