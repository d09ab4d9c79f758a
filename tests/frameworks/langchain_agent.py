"""The tools in LangChain and LangGraph, called by a scripted model."""

import json
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from scripted import World

from agentpay.integrations.langchain import function_tools
from agentpay.tools import AgentTools


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


QUESTION: Any = {"messages": [{"role": "user", "content": "Buy the report"}]}


def results(state: Any) -> list[dict[str, Any]]:
    return [json.loads(str(each.content)) for each in state["messages"] if isinstance(each, ToolMessage)]


async def story(world: World) -> list[dict[str, Any]]:
    agent = create_agent(Scripted(world=world), tools=function_tools(world.tools()))
    return results(await agent.ainvoke(QUESTION, {"recursion_limit": 100}))


def story_with_sync_tools(world: World) -> list[dict[str, Any]]:
    client = world.server.agent_client(world.account_id).with_options(max_retries=0)
    agent = create_agent(Scripted(world=world), tools=function_tools(AgentTools(client)))
    return results(agent.invoke(QUESTION, {"recursion_limit": 100}))


async def payment(world: World, *, is_approved: Any) -> None:
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
    (result,) = results(await agent.ainvoke(Command(resume=is_approved), thread))
    assert (result.get("status") or result["error"]) == (
        "settled" if is_approved is True else "rejected_by_person"
    )
