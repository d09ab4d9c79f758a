"""Whatever is sent wherever: no answer is a fault of the server, and every error has its shape."""

import json
from urllib.parse import quote

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_world import (
    START,
    UNKNOWN_ACCOUNT,
    assert_error_shape,
    path_of,
    raw_client,
)

from agentpay.contract.codec import structure
from agentpay.contract.json_text import parse_json
from agentpay_server import AgentPayServer
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS

pytestmark = pytest.mark.unmeasured

# A stream has no end.
endpoints = st.sampled_from([each for each in BOUND_ENDPOINTS if each.name != "events.stream"])

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        [
            "1",
            "0.000001",
            "0",
            "-1",
            "1e5",
            "NaN",
            UNKNOWN_ACCOUNT,
            "settled",
            "paused",
            "2026-01-01T00:00:00Z",
        ]
    )
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
header_values = st.text(st.characters(max_codepoint=255, exclude_categories=["Cc"]), max_size=60)
header_names = st.sampled_from(
    [
        *["Content-Type", "Content-Length", "If-Match", "Accept", "Host", "Transfer-Encoding", "Expect"],
        *["X-Request-Id", "Cookie", "Origin", "Content-Encoding", "Connection", "X-Http-Method-Override"],
    ]
)


@pytest.fixture(scope="module")
def world():
    """A server with two accounts, of which one holds money; what requests make of it may pile up."""
    with AgentPayServer(clock=START) as server:
        client = server.client()
        payer, payee = (client.accounts.create(name=name) for name in ("a", "b"))
        server.sandbox.fund(payer.account_id, 1_000_000)
        agent = server.agent_keys.create(payer.account_id).key
        with raw_client(server) as operator_http, raw_client(server, agent) as agent_http:
            yield (operator_http, agent_http), (payer.account_id, payee.account_id)


def judged(endpoint, response):
    """Assert that an answer is a documented success of the endpoint, or an error of the declared shape."""
    assert response.headers["x-request-id"].startswith("req_")
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        assert_error_shape(response)
        return
    assert response.status_code in endpoint.responses
    model = endpoint.responses[response.status_code]
    if model is None:
        assert response.content == b""
    else:
        structure(parse_json(response.content), model)


def fields_of(endpoint, account_ids):
    """Bodies that are nearly right: known fields with values that fit, or do not."""
    model = endpoint.request or endpoint.query
    names = [name.removesuffix("_") for name in attrs.fields_dict(model)] if model else []
    plausible = st.sampled_from(
        [*account_ids, "1", "0.5", 1, 0.5, 0, True, False, None, ["data"], "data", {}]
    )
    return st.dictionaries(st.sampled_from(names or ["x"]), plausible | json_values, max_size=8)


BODIES = {"bytes": st.binary(max_size=300), "json": json_values.map(json.dumps)}


@pytest.mark.parametrize("kind", BODIES)
@given(data=st.data(), endpoint=endpoints, as_agent=st.booleans())
def test_random_bodies_get_a_declared_response(world, kind, data, endpoint, as_agent):
    clients, (account_id, _) = world
    path, content = path_of(endpoint, account_id=account_id), data.draw(BODIES[kind])

    judged(endpoint, clients[as_agent].request(endpoint.method, path, content=content))


@given(
    data=st.data(),
    endpoint=st.sampled_from([e for e in BOUND_ENDPOINTS if e.request]),
    as_agent=st.booleans(),
)
def test_random_values_in_known_fields_get_a_declared_response(world, data, endpoint, as_agent):
    clients, account_ids = world
    body = data.draw(fields_of(endpoint, account_ids))
    if endpoint.name == "sandbox.clock.advance":
        # Ten years a time, over and over, would leave the calendar.
        body.pop("seconds", None)

    content = json.dumps(body)
    path = path_of(endpoint, account_id=account_ids[0])
    judged(endpoint, clients[as_agent].request(endpoint.method, path, content=content))


@given(data=st.data(), endpoint=st.sampled_from([e for e in BOUND_ENDPOINTS if e.query]))
def test_random_queries_get_a_declared_response(world, data, endpoint):
    clients, account_ids = world
    names = sorted(attrs.fields_dict(endpoint.query))
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    query = data.draw(
        st.dictionaries(st.sampled_from(names) | text, text | scalars.map(str).filter(str.isascii))
    )

    judged(endpoint, clients[0].get(path_of(endpoint, account_id=account_ids[0]), params=query))


@given(endpoint=endpoints, raw=st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=60))
def test_random_query_strings_get_a_declared_response(world, endpoint, raw):
    clients, (account_id, _) = world

    path = f"{path_of(endpoint, account_id=account_id)}?{raw.replace('#', '')}"
    judged(endpoint, clients[0].request(endpoint.method, path, content=b"{"))


@given(endpoint=endpoints, headers=st.dictionaries(header_names, header_values), body=json_values)
def test_random_headers_get_a_declared_response(world, endpoint, headers, body):
    clients, (account_id, _) = world
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}

    content = json.dumps(body)
    path = path_of(endpoint, account_id=account_id)
    judged(endpoint, clients[0].request(endpoint.method, path, content=content, headers=encoded))


@given(
    authorization=header_values,
    path=st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.binary(),
)
def test_random_keys_and_paths_get_a_declared_response(world, authorization, path):
    clients, _ = world
    path = "/v1/" + quote(path, safe="/%;=:@")

    for headers in ({}, {"Authorization": authorization.encode("latin-1")}):
        response = clients[0].get(path, headers=headers)
        if headers:
            assert response.status_code == 401
        assert response.status_code in (200, 401, 404, 405)
        if response.status_code != 200:
            assert_error_shape(response)
