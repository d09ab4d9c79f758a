"""The tools in the Claude Agent SDK: its real client, and a stand-in for the program that it starts.

The stand-in speaks the SDK's control protocol, as the program does: it starts the MCP server of the options,
calls tools, and asks for permission where the options do not give it.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    PermissionResultAllow,
    PermissionResultDeny,
    Transport,
)
from scripted import World

from agentpay.integrations.claude_agent_sdk import sdk_server
from agentpay.tools import TOOLS


class Program(Transport):
    """Calls what the world says next through the control protocol, then ends the turn."""

    def __init__(self, world: World, *, calls: int = 10**6, is_asking: bool = False) -> None:
        self._world, self._calls, self._is_asking = world, calls, is_asking
        self._out: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._replies: dict[str, dict[str, Any]] = {}
        self._replied = asyncio.Condition()
        self._ids = 0
        self.results: list[dict[str, Any]] = []
        self.listed: list[str] = []

    async def connect(self) -> None: ...

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None: ...

    async def close(self) -> None:
        self._out.put_nowait(None)

    async def write(self, data: str) -> None:
        message = json.loads(data)
        if message["type"] == "control_request":
            answer = {"subtype": "success", "request_id": message["request_id"], "response": {}}
            self._out.put_nowait({"type": "control_response", "response": answer})
        elif message["type"] == "control_response":
            async with self._replied:
                self._replies[message["response"]["request_id"]] = message["response"]
                self._replied.notify_all()
        elif message["type"] == "user":
            self._out.put_nowait({"type": "turn"})

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        async with anyio.create_task_group() as tasks:
            while (message := await self._out.get()) is not None:
                if message["type"] == "turn":
                    tasks.start_soon(self._turn)
                else:
                    yield message

    async def _ask(self, **request: Any) -> dict[str, Any]:
        self._ids += 1
        name = f"ask-{self._ids}"
        self._out.put_nowait({"type": "control_request", "request_id": name, "request": request})
        async with self._replied:
            while name not in self._replies:
                await self._replied.wait()
        answer = self._replies[name]
        assert answer["subtype"] == "success", answer
        return dict(answer["response"])

    async def _mcp(self, method: str, **params: Any) -> dict[str, Any]:
        message = {"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}
        answer = await self._ask(subtype="mcp_message", server_name="agentpay", message=message)
        return dict(answer["mcp_response"])

    async def _turn(self) -> None:
        info = {"name": "claude-code", "version": "2"}
        await self._mcp("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=info)
        notice = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await self._ask(subtype="mcp_message", server_name="agentpay", message=notice)
        self.listed = [tool["name"] for tool in (await self._mcp("tools/list"))["result"]["tools"]]
        while self._calls and (call := self._world.next_call()) is not None:
            self._calls -= 1
            if await self._may(*call):
                answer = await self._mcp("tools/call", name=call[0], arguments=call[1])
                self.results.append(answer["result"]["structuredContent"])
        done = {
            "subtype": "success",
            "duration_ms": 1,
            "duration_api_ms": 1,
            "is_error": False,
            "num_turns": 1,
        }
        self._out.put_nowait({"type": "result", "session_id": "s", "result": "Done", **done})

    async def _may(self, name: str, arguments: dict[str, Any]) -> bool:
        tool = f"mcp__agentpay__{name}"
        if not self._is_asking:
            return True
        answer = await self._ask(
            subtype="can_use_tool",
            tool_name=tool,
            input=arguments,
            permission_suggestions=[],
            tool_use_id="1",
        )
        return bool(answer["behavior"] == "allow")


async def run(world: World, program: Program, **options: Any) -> None:
    servers: Any = {"agentpay": sdk_server(world.tools())}
    given = ClaudeAgentOptions(mcp_servers=servers, **options)
    async with ClaudeSDKClient(given, transport=program) as client:
        await client.query("Buy the report")
        async for _message in client.receive_response():
            pass


async def story(world: World) -> list[dict[str, Any]]:
    program = Program(world)
    await run(world, program)
    assert program.listed == list(TOOLS)
    return program.results


async def payment(world: World, *, is_approved: bool) -> None:
    asked = []

    async def decide(name: str, arguments: dict[str, Any], _context: Any) -> Any:
        asked.append((name, arguments["amount_usdc"]))
        return PermissionResultAllow() if is_approved else PermissionResultDeny(message="Not now")

    await run(world, Program(world, calls=1, is_asking=True), can_use_tool=decide)
    assert asked == [("mcp__agentpay__pay", "1.5")]
