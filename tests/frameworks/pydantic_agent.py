"""The tools in Pydantic AI, called by a scripted model."""

from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolDenied
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from scripted import World

from agentpay.integrations.pydantic_ai import function_tools


def scripted(world: World, *, calls: int = 10**6) -> FunctionModel:
    made: list[Any] = []

    def respond(_messages: Any, _info: Any) -> ModelResponse:
        call = world.next_call() if len(made) < calls else None
        made.append(call)
        return ModelResponse(parts=[TextPart("Done") if call is None else ToolCallPart(*call)])

    return FunctionModel(respond)


async def story(world: World) -> list[Any]:
    agent = Agent(scripted(world), tools=function_tools(world.tools()))
    done = await agent.run("Buy the report")
    returned = [part for message in done.all_messages() for part in message.parts]
    return [part.content for part in returned if isinstance(part, ToolReturnPart)]


async def payment(world: World, *, is_approved: bool) -> None:
    agent = Agent(
        scripted(world, calls=1),
        tools=function_tools(world.tools(), needs_approval=True),
        output_type=[str, DeferredToolRequests],
    )
    stopped = await agent.run("Buy the report")
    assert isinstance(stopped.output, DeferredToolRequests)
    (call,) = stopped.output.approvals
    assert world.balance(world.shop) == "0.000000"
    decision = True if is_approved else ToolDenied("Not now")
    decided = DeferredToolResults(approvals={call.tool_call_id: decision})
    await agent.run(message_history=stopped.all_messages(), deferred_tool_results=decided)
