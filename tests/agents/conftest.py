"""The real agent program, installed in a scratch folder and wired to a script."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from accounts import is_root
from capabilities import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from accounts import Account
    from scripted_model import ScriptedModel

PACKAGE = "@mariozechner/pi-coding-agent@0.73.1"
KEPT_IN = "WORKSPACE_GUARD_TEST_AGENTS_DIR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pi:
    """The pi coding agent."""

    program: Path
    settings: Path

    def command(self, prompt: str) -> list[str]:
        """The command line for one prompt, without a session to resume."""
        model = ["--provider", "scripted", "--model", "scripted"]
        return [str(self.program), "-p", "--no-session", *model, prompt]

    def environment(self, model: ScriptedModel) -> dict[str, str]:
        """Point the agent at a model; nothing else is asked on the network."""
        provider = {
            "baseUrl": model.url,
            "api": "openai-completions",
            "apiKey": "none",
            "compat": {
                "supportsDeveloperRole": False,
                "supportsReasoningEffort": False,
            },
            "models": [{"id": "scripted"}],
        }
        self.settings.mkdir(exist_ok=True)
        (self.settings / "models.json").write_text(
            json.dumps({"providers": {"scripted": provider}}), "utf-8"
        )
        return {
            "PI_CODING_AGENT_DIR": str(self.settings),
            "PI_OFFLINE": "1",
            "PI_TELEMETRY": "0",
        }


@pytest.fixture(scope="session")
def pi_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install pi by npm, once; into the folder of the variable if there is one."""
    require("npm")
    kept = os.environ.get(KEPT_IN)
    prefix = Path(kept) if kept else tmp_path_factory.mktemp("agents")
    program = prefix / "node_modules" / ".bin" / "pi"
    if not program.exists():
        quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(
            ["npm", "install", "--prefix", prefix, *quiet, PACKAGE],
            check=True,
            timeout=600,
        )
    return program


@pytest.fixture
def me(account_named: Callable[[str], Account]) -> Account:
    """Whoever runs the tests."""
    return account_named("root" if is_root() else "ordinary")


@pytest.fixture
def pi(pi_program: Path, place: Path) -> Pi:
    """The agent with settings of the test's own."""
    return Pi(program=pi_program, settings=place / "pi")
