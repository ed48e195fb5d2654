"""A server with the messages of OpenEnv's, without the package: the game of `examples/environments/higher_lower.py`."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from aiohttp import WSMsgType, web

HINT = {
    "type": "object",
    "properties": {"metadata": {"type": "object"}, "text": {"type": "string"}},
    "required": ["text"],
}
CALL = {
    "type": "object",
    "properties": {"tool_name": {"type": "string"}, "arguments": {"type": "object"}},
    "required": ["tool_name"],
}
FIELDS = {"type": "object", "properties": {"row": {"type": "integer"}}, "required": ["row"]}
GUESS = {
    "name": "guess",
    "description": "Guess the number.",
    "inputSchema": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
}


def main() -> None:
    """Serve until the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--tools", action="store_true")
    parser.add_argument("--step-reward", type=float, default=0.0)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--fault", default="")
    options = parser.parse_args()
    Server(options).run()


class Server:
    """The game, with the faults that a test asks for."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.sessions = 0

    def run(self) -> None:
        app = web.Application()
        app.add_routes(
            [
                web.get("/health", self.health),
                web.get("/schema", self.schema),
                web.get("/ws", self.play),
            ]
        )
        web.run_app(app, host="127.0.0.1", port=self.options.port, print=None)

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"})

    async def schema(self, request: web.Request) -> web.Response:
        if self.options.fault == "schema":
            return web.Response(text="<html>")
        schema = CALL if self.options.tools else FIELDS if self.options.fault == "fields" else HINT
        return web.json_response({"action": schema, "observation": {}, "state": {}})

    async def play(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.sessions == self.options.sessions:
            await socket.send_json({"type": "error", "data": {"message": "full", "code": "CAPACITY_REACHED"}})
            await socket.close()
            return socket
        self.sessions += 1
        number = 0
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    break
                asked = json.loads(message.data)
                data = asked.get("data")
                if asked["type"] == "close":
                    break
                if asked["type"] == "reset":
                    number = data.get("number", data["seed"] % 10)
                    hint = {} if self.options.tools else {"hint": "Guess a number from 0 to 9."}
                    await socket.send_json(observation(hint, None))
                elif asked["type"] == "mcp":
                    result = (
                        {"result": {"tools": [GUESS]}} if self.options.tools else {"error": {"code": -32603}}
                    )
                    await socket.send_json({"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, **result}})
                elif not await self.step(socket, data, number):
                    break
        finally:
            self.sessions -= 1
        return socket

    async def step(self, socket: web.WebSocketResponse, action: dict[str, Any], number: int) -> bool:
        """Answer an action; returns whether the session goes on."""
        fault = self.options.fault
        if fault == "exit":
            os._exit(3)
        if fault == "hang":
            return True
        if fault == "garbage":
            await socket.send_str("garbage")
        elif fault == "error":
            broken = {"message": "the board is broken", "code": "EXECUTION_ERROR"}
            await socket.send_json({"type": "error", "data": broken})
        elif fault == "endless":
            await socket.send_str(json.dumps(observation({"hint": "x" * (40 << 20)}, 0.0)))
        elif fault == "nan":
            await socket.send_str('{"type": "observation", "data": {"observation": {}, "reward": NaN}}')
        elif fault == "fields" and not isinstance(action.get("row"), int):
            data: dict[str, Any] = {
                "message": "Invalid message",
                "code": "VALIDATION_ERROR",
                "errors": [{"loc": ["row"]}],
            }
            await socket.send_json({"type": "error", "data": data})
        elif fault == "fields":
            await socket.send_json(observation({"board": [[1]]}, float(action["row"]), done=True))
        elif self.options.tools:
            await socket.send_json(self.called(action, number))
        else:
            hint, reward = self.compare(action["text"], number)
            await socket.send_json(observation({"hint": hint}, reward, done=hint == "Right."))
        return True

    def called(self, action: dict[str, Any], number: int) -> dict[str, Any]:
        guess = action["arguments"].get("number")
        if not isinstance(guess, int):
            error = {"error_type": "execution_error", "message": "number must be an integer"}
            return observation({"tool_name": "guess", "result": None, "error": error}, None)
        hint, reward = self.compare(str(guess), number)
        content = {"content": [{"type": "text", "text": hint}]}
        return observation(
            {"tool_name": "guess", "result": content, "error": None}, reward, done=hint == "Right."
        )

    def compare(self, text: str, number: int) -> tuple[str, float]:
        digits = [character for character in text if character.isdigit()]
        reward = self.options.step_reward
        if not digits:
            return "That is no number.", reward
        if (guess := int(digits[-1])) == number:
            return "Right.", 1.0
        return ("Higher." if guess < number else "Lower."), reward


def observation(shown: dict[str, Any], reward: float | None, *, done: bool = False) -> dict[str, Any]:
    """A message with an observation."""
    return {
        "type": "observation",
        "data": {"observation": {**shown, "metadata": {}}, "reward": reward, "done": done},
    }


if __name__ == "__main__":
    main()
