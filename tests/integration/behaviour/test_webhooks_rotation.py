"""Rotating a secret: neither an old nor an updated receiver ever misses (interface W12)."""

import re
from datetime import timedelta

import httpx
import money
import pytest
from receivers import Receiver
from server_world import Funded, faults, refused

from agentpay import AgentPay, ConflictError, WebhookSignatureError, webhooks
from agentpay_server import AgentPayServer

DAY = timedelta(days=1) / timedelta(seconds=1)
MILLISECOND = 0.001


@pytest.fixture
def receiver():
    with Receiver() as running:
        yield running


@pytest.fixture
def registered(client: AgentPay, receiver: Receiver):
    return client.webhooks.create(url=receiver.url, events=["transfer.settled"])


@pytest.fixture
def deliver(server: AgentPayServer, client: AgentPay, funded: Funded, receiver: Receiver):
    """A function that causes an event, and returns the post that arrives now."""
    payer, payee = funded("100"), funded("1", name="Payee")

    def make():
        count = len(receiver.posts)
        client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="1")
        server.sandbox.clock.advance(0)
        (post,) = receiver.posts[count:]
        return post

    return make


def signers(post, *secrets):
    """By which secret each of the two headers is signed: its place among `secrets`; None without a header."""
    by_digest = {webhooks.sign(post.body, secret): place for place, secret in enumerate(secrets)}
    return tuple(
        by_digest.get(post.headers.get(name)) for name in ("x-service-signature", "x-service-signature-next")
    )


def test_a_rotation_returns_a_new_secret_once(server, http: httpx.Client, registered):
    response = http.post(f"/ext/v1/console/webhooks/{registered.webhook_id}/rotate-secret")

    assert response.status_code == 200
    assert set(response.json()) == {"secret"}
    assert re.fullmatch(r"whsec_[0-9A-Za-z]{43}", response.json()["secret"])
    assert response.json()["secret"] != registered.secret


@pytest.mark.parametrize("overlap", [None, 1, 60, 30 * 24 * 3600])
def test_during_the_overlap_both_headers_sign_with_old_and_new_secret(
    server: AgentPayServer, client, registered, receiver, deliver, overlap
):
    old, seconds = registered.secret, overlap or DAY
    other = client.webhooks.create(url=receiver.url + "/other", events=["transfer.rejected"])
    server.webhooks.rotate_secret(other.webhook_id, overlap_seconds=0)
    assert signers(deliver(), old) == (0, None)

    options = {} if overlap is None else {"overlap_seconds": overlap}
    new = server.webhooks.rotate_secret(registered.webhook_id, **options).secret

    assert signers(deliver(), old, new) == (0, 1)
    server.sandbox.clock.advance(seconds - MILLISECOND)
    overlapping = deliver()
    assert signers(overlapping, old, new) == (0, 1)
    for name in ("x-service-signature", "x-service-signature-next"):
        assert re.fullmatch("[0-9a-f]{64}", overlapping.headers[name]), "one digest"
    server.sandbox.clock.advance(MILLISECOND)
    after = deliver()
    assert signers(after, old, new) == (1, None)
    for secret in (old, new, [old, new], [new, old]):
        assert webhooks.unwrap(overlapping.body, overlapping.headers, secret).type == "transfer.settled"
    for secret in (new, [old, new]):
        assert webhooks.unwrap(after.body, after.headers, secret).type == "transfer.settled"
    with pytest.raises(WebhookSignatureError):
        webhooks.unwrap(after.body, after.headers, old)
    server.sandbox.clock.advance(days=30)
    assert signers(deliver(), old, new) == (1, None)


def test_a_receiver_that_knows_only_the_contract_header_verifies_every_delivery(
    server: AgentPayServer, registered, deliver
):
    # It reads one header, and learns of the new secret at some time within the overlap.
    new = server.webhooks.rotate_secret(registered.webhook_id).secret
    known = [registered.secret]
    for hour in range(30):
        if hour == 12:
            known.append(new)
        post = deliver()
        webhooks.verify(post.body, post.headers["x-service-signature"], known)
        server.sandbox.clock.advance(hours=1)


def test_a_second_rotation_waits_for_the_first_one_to_end(
    server: AgentPayServer, http: httpx.Client, registered, deliver
):
    first = registered.secret
    second = server.webhooks.rotate_secret(registered.webhook_id).secret
    server.sandbox.clock.advance(DAY - MILLISECOND)

    # A third signature would have no header, and receivers with only the first secret would fail.
    path = f"/ext/v1/console/webhooks/{registered.webhook_id}/rotate-secret"
    refused(http.post(path), "rotation_in_progress")
    with pytest.raises(ConflictError, match="overlap_seconds=0"):
        server.webhooks.rotate_secret(registered.webhook_id, overlap_seconds=1)
    assert signers(deliver(), first, second) == (0, 1)
    server.sandbox.clock.advance(MILLISECOND)
    third = server.webhooks.rotate_secret(registered.webhook_id).secret

    assert signers(deliver(), first, second, third) == (1, 2)
    # After a leak, both old ones end at once.
    fourth = server.webhooks.rotate_secret(registered.webhook_id, overlap_seconds=0).secret
    assert signers(deliver(), first, second, third, fourth) == (3, None)


def test_a_retry_is_signed_with_the_current_secrets(
    server: AgentPayServer, registered, receiver: Receiver, deliver
):
    receiver.next(500, 500, 500)
    first = deliver()
    new = server.webhooks.rotate_secret(registered.webhook_id, overlap_seconds=120).secret
    server.sandbox.clock.advance(hours=1)

    assert [signers(post, registered.secret, new) for post in receiver.posts] == [
        (0, None),
        (0, 1),
        (1, None),
        (1, None),
    ]
    assert {post.body for post in receiver.posts} == {first.body}


def test_an_invalid_overlap_is_refused_and_changes_nothing(
    server: AgentPayServer, http: httpx.Client, registered, deliver
):
    path = f"/ext/v1/console/webhooks/{registered.webhook_id}/rotate-secret"

    for overlap in (-1, 30 * 24 * 3600 + 1, 1.5, "60", True, None):
        assert list(faults(http.post(path, json={"overlap_seconds": overlap}))) == ["overlap_seconds"]
    assert list(faults(http.post(path, json={"overlap": 1}))) == ["overlap"]
    assert signers(deliver(), registered.secret) == (0, None)


def test_stored_secrets_are_sealed_for_their_webhook(
    server: AgentPayServer, client: AgentPay, registered, receiver: Receiver, deliver
):
    other = client.webhooks.create(url=receiver.url + "/other", events=["transfer.rejected"])
    server.webhooks.rotate_secret(other.webhook_id)
    secrets = ("secret", "next_secret", "next_secret_us")
    (row,) = money.rows(server, "webhooks", webhook_id=other.webhook_id)
    moved = {name: row[name] for name in secrets}
    money.change(server, "webhooks", moved, webhook_id=registered.webhook_id)
    with pytest.raises(ValueError, match="not enough values"):
        deliver()

    assert receiver.posts == []
    (attempt,) = next(iter(server.deliveries.list(webhook_id=registered.webhook_id))).attempts
    assert "cannot be decrypted with this server's encryption key" in (attempt.error or "")
    assert "whsec_" not in (attempt.error or "")
