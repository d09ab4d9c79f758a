"""What a stranger types first: it is right, or the error names what is."""

import pytest
from sdk_world import ACCOUNT, KEY, URL

import agentpay
from agentpay import AgentPay, AsyncAgentPay, testing

ATTRIBUTES = [
    ("client.account", "did you mean accounts?"),
    ("client.keys", "did you mean agent_keys or operator_keys?"),
    ("client.search", "did you mean console.search?"),
    ("client.spend", "did you mean console.spend_report?"),
    ("client.audit_log", "did you mean console.audit_log?"),
    ("client.summary", "did you mean console.summary?"),
    ("client.me", "whoami"),
    ("client.accounts.retrieve", "it has balance, budget, create, get, history, list, transactions"),
    ("client.accounts.details", "it has balance"),
    ("client.transfers.send", "it has check, create, get, list, wait"),
    ("client.policies.set", "it has get, pause, replace, resume, update"),
    ("client.sessions.create", "it has charge, close, get, list, open"),
    ("client.webhooks.construct_event", "unwrap"),
    ("client.sellers.pin", "it has delete, get, list, put"),
    ("client.console.spend", "did you mean spend_report?"),
    ("transfer.amount", "did you mean amount_usdc?"),
    ("transfer.id", "did you mean transfer_id?"),
    ("transfer.state", "did you mean status?"),
]


@pytest.fixture(params=[AgentPay, AsyncAgentPay])
def names(request: pytest.FixtureRequest) -> dict[str, object]:
    client = request.param(api_key=KEY, base_url=URL)
    account = agentpay.Account.from_dict(ACCOUNT)
    return {
        "client": client,
        "transfer": testing.make(agentpay.Transfer),
        "account": account,
        "agentpay": agentpay,
    }


@pytest.mark.parametrize(("guess", "hint"), ATTRIBUTES)
def test_an_attribute_that_does_not_exist_is_explained(
    names: dict[str, object], guess: str, hint: str
) -> None:
    with pytest.raises(AttributeError) as caught:
        eval(guess, names)
    assert hint in str(caught.value)


def test_an_error_within_a_property_is_not_hidden_and_libraries_get_no_hint(
    names: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise AttributeError("the cause")

    for owner in (names["client"], names["transfer"]):
        assert not hasattr(owner, "_repr_html_")
        assert not hasattr(owner, "__deepcopy__")
    monkeypatch.setattr(type(names["client"]), "sessions", property(broken))
    with pytest.raises(AttributeError, match=r"^the cause$"):
        _ = names["client"].sessions  # type: ignore[attr-defined]
