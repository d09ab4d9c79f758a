"""The tools in LangChain and LangGraph, called by a scripted model."""

import json
from typing import Any

import pytest
from scripted import World, required

required("langchain")

from langchain.agents import create_agent  # noqa: E402
from langchain_core.language_models.chat_models import BaseChatModel  # noqa: E402
from langchain_core.messages import AIMessage, ToolMessage  # noqa: E402
from langchain_core.outputs import ChatGeneration, ChatResult  # noqa: E402
from langgraph.checkpoint.memory import InMemorySaver  # noqa: E402
from langgraph.types import Command  # noqa: E402

from agentpay.integrations.langchain import function_tools  # noqa: E402
from agentpay.tools import AgentTools  # noqa: E402

pytestmark = pytest.mark.anyio


class Scripted(BaseChatModel):
    """Calls what the world says next, then ends."""

    world: Any
    calls: int = 10**6
    made: int = 0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> "Scripted":
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        call = self.world.next_call() if self.made < self.calls else None
        self.made += 1
        message = AIMessage("Done")
        if call is not None:
            made = {"name": call[0], "args": call[1], "id": f"call-{self.made}"}
            message = AIMessage("", tool_calls=[made])
        return ChatResult(generations=[ChatGeneration(message=message)])


QUESTION = {"messages": [{"role": "user", "content": "Buy the report"}]}


def results(state: Any) -> list[dict[str, Any]]:
    return [json.loads(each.content) for each in state["messages"] if isinstance(each, ToolMessage)]


async def test_a_careless_model_pays_once_within_the_policy(world: World) -> None:
    agent = create_agent(Scripted(world=world), tools=function_tools(world.tools()))
    world.assert_told(results(await agent.ainvoke(QUESTION, {"recursion_limit": 100})))


def test_a_careless_model_pays_once_with_sync_tools(world: World) -> None:
    client = world.server.agent_client(world.account_id).with_options(max_retries=0)
    agent = create_agent(Scripted(world=world), tools=function_tools(AgentTools(client)))
    world.assert_told(results(agent.invoke(QUESTION, {"recursion_limit": 100})))


@pytest.mark.parametrize("answer", [True, False, "yes", {"type": "approve"}])
async def test_a_spending_tool_needs_human_approval(world: World, answer: Any) -> None:
    world.position = 3  # one call to pay
    agent = create_agent(
        Scripted(world=world, calls=1),
        tools=function_tools(world.tools(), needs_approval=True),
        checkpointer=InMemorySaver(),
    )
    thread: Any = {"configurable": {"thread_id": "1"}}
    stopped = await agent.ainvoke(QUESTION, thread)
    (interrupt,) = stopped["__interrupt__"]
    assert interrupt.value["tool"] == "pay"
    assert world.balance(world.shop) == "0.000000"
    done = await agent.ainvoke(Command(resume=answer), thread)
    (result,) = results(done)
    assert world.balance(world.shop) == ("1.500000" if answer is True else "0.000000")
    assert (result.get("status") or result["error"]) == (
        "settled" if answer is True else "rejected_by_person"
    )
