"""The tools in the OpenAI Agents SDK, called by a scripted model."""

import json
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, ModelResponse, Runner, Usage, set_tracing_disabled
from agents.models.interface import Model
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from scripted import World

from agentpay.integrations.openai_agents import function_tools

set_tracing_disabled(disabled=True)


class Scripted(Model):
    """Calls what the world says next, then ends."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._calls = 0

    async def get_response(self, *_arguments: Any, **_options: Any) -> ModelResponse:
        call = self._world.next_call()
        self._calls += 1
        output: Any
        if call is None:
            text = ResponseOutputText(annotations=[], text="Done", type="output_text")
            output = ResponseOutputMessage(
                id="msg", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            output = ResponseFunctionToolCall(
                arguments=json.dumps(call[1]),
                call_id=f"call-{self._calls}",
                name=call[0],
                type="function_call",
            )
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    async def stream_response(self, *_arguments: Any, **_options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield


class Once(Scripted):
    """Makes one call, then ends."""

    async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
        if self._calls:
            self._world.position = 10**6
        return await super().get_response(*arguments, **options)


def results(items: list[Any]) -> list[dict[str, Any]]:
    return [json.loads(item.output) for item in items if item.type == "tool_call_output_item"]


async def story(world: World) -> list[dict[str, Any]]:
    agent = Agent(name="Buyer", model=Scripted(world), tools=list(function_tools(world.tools())))
    done = await Runner.run(agent, "Buy the report", max_turns=50)
    return results(done.new_items)


async def payment(world: World, *, is_approved: bool) -> None:
    asked: list[tuple[str, Any]] = []

    def rule(name: str, arguments: Any) -> bool:
        asked.append((name, arguments["amount_usdc"]))
        return float(arguments["amount_usdc"]) >= 1

    tools = function_tools(world.tools(), needs_approval=rule)
    agent = Agent(name="Buyer", model=Once(world), tools=list(tools))
    stopped = await Runner.run(agent, "Buy the report")
    (interruption,) = stopped.interruptions
    assert asked == [("pay", "1.5")]
    assert world.balance(world.shop) == "0.000000"
    state = stopped.to_state()
    if is_approved:
        state.approve(interruption)
    else:
        state.reject(interruption)
    await Runner.run(agent, state)


async def result_of(world: World, arguments: str) -> Any:
    """Return what the tool `pay` tells a model that wrote these arguments."""
    (pay,) = [tool for tool in function_tools(world.tools()) if tool.name == "pay"]
    return json.loads(await pay.on_invoke_tool(None, arguments))  # type: ignore[arg-type]
