"""Which calls of tools a host asks a person about."""

from collections.abc import Mapping
from typing import Any

import pytest

from agentpay.tools import TOOLS
from agentpay.tools.specs import NeedsApproval, is_needed

SPENDING = [name for name, spec in TOOLS.items() if spec.moves_money]
READING = [name for name in TOOLS if name not in SPENDING]


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("rule", [True, lambda _name, _arguments: True])
def test_read_only_tools_never_need_approval(name: str, rule: NeedsApproval) -> None:
    assert not is_needed(rule, name, {})


@pytest.mark.parametrize("name", SPENDING)
@pytest.mark.parametrize("rule", [True, False])
def test_a_boolean_rule_applies_to_every_spending_tool(name: str, rule: bool) -> None:
    assert is_needed(rule, name, {}) is rule


def test_a_rule_receives_the_tool_name_and_arguments() -> None:
    def above_ten(name: str, arguments: Mapping[str, Any]) -> bool:
        return name == "pay" and float(arguments["amount_usdc"]) > 10

    assert is_needed(above_ten, "pay", {"amount_usdc": "11"})
    assert not is_needed(above_ten, "pay", {"amount_usdc": "9"})


@pytest.mark.parametrize("arguments", [{}, {"amount_usdc": "a lot"}, {"amount_usdc": None}])
def test_a_rule_that_raises_requires_approval(arguments: dict[str, Any]) -> None:
    assert is_needed(lambda _, given: float(given["amount_usdc"]) > 10, "pay", arguments)
