"""The tools in Pydantic AI, called by a scripted model."""

from typing import Any

import pytest
from scripted import World, required

required("pydantic_ai")

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolDenied  # noqa: E402
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart  # noqa: E402
from pydantic_ai.models.function import FunctionModel  # noqa: E402

from agentpay.integrations.pydantic_ai import function_tools  # noqa: E402

pytestmark = pytest.mark.anyio


def scripted(world: World, *, calls: int = 10**6) -> FunctionModel:
    made = []

    def respond(_messages: Any, _info: Any) -> ModelResponse:
        call = world.next_call() if len(made) < calls else None
        made.append(call)
        return ModelResponse(parts=[TextPart("Done") if call is None else ToolCallPart(*call)])

    return FunctionModel(respond)


async def test_a_careless_model_pays_once_within_the_policy(world: World) -> None:
    agent = Agent(scripted(world), tools=function_tools(world.tools()))
    done = await agent.run("Buy the report")
    returned = [part for message in done.all_messages() for part in message.parts]
    world.assert_told([part.content for part in returned if isinstance(part, ToolReturnPart)])


@pytest.mark.parametrize("is_approved", [True, False])
async def test_a_spending_tool_needs_human_approval(world: World, is_approved: bool) -> None:
    world.position = 3  # one call to pay
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
    assert world.balance(world.shop) == ("1.500000" if is_approved else "0.000000")
