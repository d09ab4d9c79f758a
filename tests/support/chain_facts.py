"""What the embedded chain says about itself, all of it, or changed: a public cluster, or a slower one."""

from typing import Any

import pytest
import validators
from money import Context, on_owner

from agentpay_server import AgentPayServer
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.embedded.virtual_machine import accounts_of
from agentpay_server.sandbox.faults import FaultyChain


def state(patch: pytest.MonkeyPatch, **facts: Any) -> None:
    """Let the chain state other facts: `state(patch, is_test_chain=False)`."""
    validators.embedded_only("the chain within the server states other facts")
    for name, fact in facts.items():
        patch.setattr(EmbeddedChain, name, property(lambda _, fact=fact: fact), raising=False)


def state_to_services(patch: pytest.MonkeyPatch, **facts: Any) -> None:
    """Do so to the services alone, so that the sandbox still works."""
    validators.embedded_only("the chain within the server states other facts")
    for name, fact in facts.items():
        patch.setattr(FaultyChain, name, property(lambda _, fact=fact: fact), raising=False)


def everything(server: AgentPayServer) -> tuple[Any, ...]:
    """Return all accounts of the chain, where it is, and the outcomes of its transactions."""

    async def work(context: Context) -> tuple[Any, ...]:
        chain: Any = context.chain.inner
        accounts = {str(address): bytes(account) for address, account in accounts_of(chain._svm).items()}
        return accounts, chain._slot, chain._blocks.height(), dict(chain._statuses)

    return on_owner(server, work)
