"""A model that says what a script tells it to, for a real agent program to obey.

It answers the chat-completions protocol on loopback, streamed or whole. Each request
that offers tools gets the next turn of the script; past the end, and to requests
without tools (for a title, say), the answer is a plain "done". No model is behind it,
and nothing leaves the machine.
"""

from __future__ import annotations

import itertools
import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


@dataclass(frozen=True, slots=True)
class Call:
    """A turn in which the model uses a tool."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Say:
    """A turn in which the model only speaks, which ends the agent's work."""

    text: str


Turn = Call | Say


class ScriptedModel:
    """A server that lives as long as its `with` block."""

    def __init__(self, script: list[Turn]) -> None:
        self._server = _Server(("127.0.0.1", 0), _Conversation)
        self._server.turns = iter(script)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        """The base URL to configure in the agent."""
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    @property
    def requests(self) -> list[dict[str, Any]]:
        """What the agent has asked so far, in order."""
        return self._server.requests

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    turns: Iterator[Turn]

    def __init__(self, *args: Any) -> None:  # noqa: ANN401 - handed on as they are
        super().__init__(*args)
        self.requests: list[dict[str, Any]] = []
        self.numbers = itertools.count()
        self.lock = threading.Lock()

    def next_turn(self, request: dict[str, Any]) -> tuple[int, Turn]:
        with self.lock:
            self.requests.append(request)
            turn = next(self.turns, Say("done")) if request.get("tools") else None
            return next(self.numbers), turn or Say("done")


class _Conversation(BaseHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        """Say nothing: the test's output is not the place."""

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        request = json.loads(self.rfile.read(length) or b"{}")
        number, turn = cast("_Server", self.server).next_turn(request)
        head = {
            "id": f"chatcmpl-{number}",
            "created": 0,
            "model": request.get("model", "scripted"),
        }
        message, finish = _message(number, turn)
        if request.get("stream"):
            self._send("text/event-stream", _stream(head, message, finish))
            return
        choice = {"index": 0, "message": message, "finish_reason": finish}
        whole = {**head, "object": "chat.completion", "choices": [choice], **_USAGE}
        self._send("application/json", json.dumps(whole))

    def _send(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


_USAGE = {"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}


def _message(number: int, turn: Turn) -> tuple[dict[str, Any], str]:
    """The assistant's message of a turn, and why it ends there."""
    if isinstance(turn, Say):
        return {"role": "assistant", "content": turn.text}, "stop"
    call = {
        "index": 0,
        "id": f"call-{number}",
        "type": "function",
        "function": {"name": turn.tool, "arguments": json.dumps(turn.arguments)},
    }
    return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"


def _stream(head: dict[str, Any], message: dict[str, Any], finish: str) -> str:
    """The same as server-sent events: the message, the reason, the usage."""
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {"choices": [], **_USAGE},
    ]
    kind = {"object": "chat.completion.chunk"}
    lines = [json.dumps({**head, **kind, **chunk}) for chunk in chunks]
    return "".join(f"data: {line}\n\n" for line in (*lines, "[DONE]"))
