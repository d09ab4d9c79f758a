"""SDKs above a client that pays: their retries present the one payment of the call."""

from decimal import Decimal
from typing import Any

import httpx
import pytest
from scripted import required

from agentpay.errors import PaidNotDeliveredError
from agentpay.payments import PaymentAuth
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Mode, Paywall

CHAT = "/v1/chat/completions"
ANSWER = {
    "id": "chat-1",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "sunny"}, "finish_reason": "stop"}],
}


@pytest.mark.parametrize("serves_again", [True, False])
@pytest.mark.parametrize("mode", [Mode.LOSE_REPLY, Mode.FAIL_AFTER_SETTLING])
def test_a_call_of_the_openai_sdk_pays_once(
    monkeypatch: pytest.MonkeyPatch, mode: Mode, serves_again: bool
) -> None:
    openai: Any = required("openai")
    with AgentPayServer() as server, Paywall(server, serves_again=serves_again) as paywall:
        bot = server.client().accounts.create(name="Bot").account_id
        server.sandbox.fund(bot, 10)
        paywall.sell(CHAT, "0.01", content=ANSWER, mode=mode)

        def honest_from_now_on(*_: Any, **__: Any) -> None:
            paywall.sell(CHAT, "0.01", content=ANSWER)

        monkeypatch.setattr(openai.OpenAI, "_sleep_for_retry", honest_from_now_on)
        auth = PaymentAuth(server.agent_client(bot), account_id=bot)
        with httpx.Client(auth=auth, transport=paywall.transport()) as http:
            client = openai.OpenAI(api_key="k", base_url=f"{paywall.base_url}/v1", http_client=http)
            messages = [{"role": "user", "content": "How is the weather?"}]
            if serves_again:
                answer = client.chat.completions.create(model="m", messages=messages)
                assert answer.choices[0].message.content == "sunny"
            else:
                with pytest.raises(PaidNotDeliveredError):
                    client.chat.completions.create(model="m", messages=messages)
        assert server.client().accounts.balance(bot).balance_usdc == Decimal("9.99")
