"""Error messages name what is wrong: the identifier that is unknown, the parameter that differs."""

import httpx
import pytest

from agentpay import (
    AccountPausedError,
    AgentPay,
    APIConnectionError,
    APIError,
    InsufficientBalanceError,
    NotFoundError,
    PermissionDeniedError,
)
from agentpay.contract.errors import ErrorCode
from agentpay_server import AgentPayServer

UNKNOWN = "acct_01kdvdna0049bdrk9b68rp8kma"


def test_an_inbox_refuses_to_wait_for_what_cannot_arrive() -> None:
    with AgentPayServer() as server:
        inbox = server.webhook_inbox(events=["transfer.settled"])
        with pytest.raises(ValueError, match="did you mean"):
            inbox.wait_for("transfer.setled", timeout=600)
        with pytest.raises(ValueError, match=r"subscribes to transfer\.settled"):
            inbox.wait_for("session.opened", timeout=600)


def test_https_on_a_port_that_speaks_http_says_so() -> None:
    with AgentPayServer() as server:
        url = server.listen().replace("http://", "https://")
        with AgentPay(base_url=url, api_key=server.operator_key) as client:
            with pytest.raises(APIConnectionError, match="let base_url begin with http://") as caught:
                client.accounts.get(UNKNOWN)
            assert (caught.value.retryable, caught.value.retries_made) == (False, 0)


def test_a_refusal_says_what_to_do_once_and_only_what_its_reader_can_do() -> None:
    with AgentPayServer() as server:
        client = server.client()
        bot, shop = (client.accounts.create(name=name).account_id for name in ("bot", "shop"))
        agent = server.client(api_key=client.agent_keys.create(account_id=bot).key)
        caught: list[APIError] = []
        for kind, call in (
            (NotFoundError, lambda: client.accounts.get(server.operator_key)),
            (PermissionDeniedError, lambda: agent.policies.get(bot)),
            (InsufficientBalanceError, lambda: agent.transfers.create(from_=bot, to=shop, amount="1")),
            (AccountPausedError, lambda: agent.transfers.create(from_=bot, to=shop, amount="1")),
        ):
            if kind is AccountPausedError:
                client.policies.pause(bot)
            with pytest.raises(kind) as error:
                call()
            caught.append(error.value)
        assert server.operator_key not in str(caught[0])
    for error in caught:
        assert str(error).count(error.advice.partition(" with the same")[0]) == 1
    for error in caught[2:]:
        assert not any(word in error.message for word in ("Fund", "etry", "Use ", "resume"))
    assert "policies.resume" not in str(caught[3])


def test_a_program_without_the_client_reads_what_to_do_in_the_message() -> None:
    with AgentPayServer() as server:
        client = server.client()
        bot, shop = (client.accounts.create(name=name).account_id for name in ("bot", "shop"))
        server.sandbox.fund(bot, "10")
        order = {"from": bot, "to": shop, "amount": "1", "idempotency_key": "order-7"}
        bearer = {"Authorization": f"Bearer {server.operator_key}"}
        with httpx.Client(base_url=server.listen(), headers=bearer, timeout=60) as http:

            def post(**changed: str) -> tuple[int, str]:
                response = http.post("/v1/transfers", json={**order, **changed})
                return response.status_code, response.json().get("message", "")

            assert post()[0] == 200
            conflict = "This idempotency_key was used with another amount."
            assert post(amount="2") == (409, f"{conflict} {ErrorCode.IDEMPOTENCY_CONFLICT.advice}.")
            status, invalid = post(amount="-1")
            assert (status, invalid.count(ErrorCode.INVALID_REQUEST.advice)) == (400, 1)
            client.policies.update(bot, max_single_transfer=1)
            status, refused = post(amount="3", idempotency_key="order-8")
            shown = client.transfers.list(account_id=bot, idempotency_key="order-8").data[0]
            assert (status, refused) == (402, shown.message)
            missing = http.get("/v1/transfers/txn_1").json()["message"]
            assert missing.endswith(f"{ErrorCode.NOT_FOUND.advice}.")
            assert http.get("/v1/nothing").json()["message"].endswith("list all paths.")
            for sent in ("Bearer no", ""):
                nobody = http.get("/v1/accounts", headers={"Authorization": sent}).json()["message"]
                assert "Authorization: Bearer" in nobody
