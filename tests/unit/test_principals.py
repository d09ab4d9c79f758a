"""Permissions that follow from the key (interface E9, K5)."""

import pytest

from agentpay_server.platform.errors import Problem
from agentpay_server.platform.principals import Principal

OPERATOR = Principal(operator_id="op_a", key_id="key_a")
AGENT = Principal(operator_id="op_a", key_id="key_b", account_id="acct_a")


def refusal(check, *arguments):
    with pytest.raises(Problem) as raised:
        check(*arguments)
    assert raised.value.http_status == 403
    return raised.value.message


def test_an_operator_key_may_do_everything():
    OPERATOR.require_operator("PUT /x")
    OPERATOR.require_account("acct_any", "GET /x")
    assert not OPERATOR.is_agent


def test_an_agent_key_may_reach_its_own_account():
    AGENT.require_account("acct_a", "GET /x")
    assert AGENT.is_agent


@pytest.mark.parametrize("account_id", ["acct_b", "", "ACCT_A", "acct_a ", "acct_ab"])
def test_an_agent_key_may_reach_no_other_account(account_id):
    message = refusal(AGENT.require_account, account_id, "GET /x")

    assert "GET /x" in message
    assert "an operator key, or an agent key of that account" in message


def test_a_refusal_names_the_operation_and_the_required_key():
    message = refusal(AGENT.require_operator, "PUT /v1/accounts/{account_id}/policy")

    assert message.startswith("PUT /v1/accounts/{account_id}/policy is not allowed")
    assert "an operator key" in message
