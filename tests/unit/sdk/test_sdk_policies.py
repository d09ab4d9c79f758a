"""Changing a policy: the result is independent of the meaning of PUT and of concurrent writers."""

import json

import httpx
import pytest
from sdk_world import POLICY, answer, refusal

from agentpay import errors


class PolicyService(httpx.MockTransport):
    """One account's policy, over HTTP. A PUT replaces or merges; with or without ETags."""

    def __init__(self, *, merge: bool, etags: bool = True) -> None:
        super().__init__(self._serve)
        self.policy = dict(POLICY)
        self.version = 1
        self.merge = merge
        self.etags = etags
        self.before_put = []
        self.lose_answers = 0
        self.puts = []

    def change(self, **fields):
        """A concurrent change."""
        self.policy |= fields
        self.version += 1

    def _serve(self, request):
        if request.method == "PUT":
            self.puts.append(request)
            if self.before_put:
                self.before_put.pop(0)()
            expected = request.headers.get("If-Match")
            if expected not in (None, f'"{self.version}"'):
                return refusal(412, "precondition_failed")
            self._put(json.loads(request.content))
            if self.lose_answers:
                self.lose_answers -= 1
                raise httpx.ReadTimeout("")
        body = {**self.policy, "account_id": "acct_a", "updated_at": "2026-01-31T12:00:00.000Z"}
        return answer(200, body, **({"ETag": f'"{self.version}"'} if self.etags else {}))

    def _put(self, given):
        defaults = dict.fromkeys(POLICY) | {"require_memo": False, "paused": False}
        self.change(**given if self.merge else defaults | given)


@pytest.fixture(params=["merge", "replace"])
def service(request):
    return PolicyService(merge=request.param == "merge")


def test_an_update_changes_the_given_fields_and_keeps_the_others(caller, service):
    caller.connect(service)
    change = {"max_daily_spend": "100", "categories": ["data"], "max_single_transfer": None}
    policy = caller(lambda c: c.policies.update("acct_a", **change))
    assert service.policy == POLICY | change | {"max_daily_spend": 100}
    assert (policy.max_daily_spend, policy.categories) == (100, ("data",))
    (put,) = service.puts
    assert put.headers["If-Match"] == '"1"', "the version that it read"
    assert set(json.loads(put.content)) == set(POLICY)


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("etag", [None, '"ü"'.encode()])
def test_a_service_without_usable_etags_is_supported(caller, merge, etag):
    service = PolicyService(merge=merge, etags=False)

    def served(request):
        response = service.handle_request(request)
        headers = [] if etag is None else [(b"ETag", etag)]
        return httpx.Response(response.status_code, content=response.content, headers=headers)

    caller.connect(httpx.MockTransport(served))
    caller(lambda c: c.policies.pause("acct_a"))
    assert service.policy == POLICY | {"paused": True}
    assert "If-Match" not in service.puts[0].headers


def test_pausing_and_resuming_keep_every_limit(caller, service):
    caller.connect(service)
    assert caller(lambda c: c.policies.pause("acct_a")).paused is True
    assert service.policy == POLICY | {"paused": True}
    assert caller(lambda c: c.policies.resume("acct_a")).paused is False
    assert service.policy == POLICY


def test_a_replacement_sets_every_field_without_if_match(caller, service):
    caller.connect(service)
    caller(lambda c: c.policies.replace("acct_a", max_daily_spend=7))
    assert service.policy == dict.fromkeys(POLICY) | {
        "max_daily_spend": 7,
        "require_memo": False,
        "paused": False,
    }
    assert "If-Match" not in service.puts[0].headers


def test_an_update_keeps_concurrent_changes_and_stops_after_ten(caller, service):
    service.before_put = [
        lambda: service.change(max_daily_spend=5),
        lambda: service.change(escalation_threshold=3),
        lambda: None,
    ]
    caller.connect(service)
    caller(lambda c: c.policies.pause("acct_a"))
    assert service.policy == POLICY | {"max_daily_spend": 5, "escalation_threshold": 3, "paused": True}
    assert len(service.puts) == 3
    service.before_put = [lambda: service.change(max_daily_spend=5)] * 10
    with pytest.raises(errors.PreconditionFailedError):
        caller(lambda c: c.policies.resume("acct_a"))
    assert len(service.puts) == 3 + 10
    assert service.policy["paused"] is True


def test_an_update_whose_response_was_lost_is_retried_without_undoing_other_changes(caller, service):
    service.lose_answers = 1
    caller.connect(service)
    assert caller(lambda c: c.policies.update("acct_a", max_daily_spend=9)).max_daily_spend == 9
    assert service.policy == POLICY | {"max_daily_spend": 9}
    assert [put.headers["If-Match"] for put in service.puts] == ['"1"', '"1"', '"2"']
