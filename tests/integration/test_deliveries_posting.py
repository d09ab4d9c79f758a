"""One post to one endpoint, over real sockets: what counts as an answer, and where it may go.

See interface W4, W5, W8.
"""

import asyncio
import datetime as dt
import os
import ssl
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpcore
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from receivers import Receiver, answer, closed_port, drop, hang, without_end

from agentpay_server import AgentPayServer
from agentpay_server.cli import main
from agentpay_server.webhooks import http as posting
from agentpay_server.webhooks.http import HttpPoster, LookUps

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]

BODY = b'{"id":"evt_1"}'
HEADERS = {"Content-Type": "application/json", "X-Service-Event-Id": "evt_1"}


@asynccontextmanager
async def poster(*, public_only=False):
    made = HttpPoster(public_only=public_only)
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
def receiver():
    with Receiver() as running:
        yield running


async def post_once(url, *, public_only=False):
    async with poster(public_only=public_only) as made:
        return await made.post(url, HEADERS, BODY)


# --- What is sent -----------------------------------------------------------------------------------------


async def test_a_post_sends_the_exact_bytes_and_headers(receiver: Receiver):
    answered = await post_once(receiver.url + "?tenant=1")

    (post,) = receiver.posts
    assert (answered.status_code, answered.error) == (200, None)
    assert answered.duration_ms >= 0
    assert post.line == "POST /hooks?tenant=1 HTTP/1.1"
    assert post.body == BODY
    assert post.headers["content-type"] == "application/json"
    assert post.headers["x-service-event-id"] == "evt_1"
    assert post.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert "transfer-encoding" not in post.headers


async def test_proxy_variables_are_ignored(receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setitem(os.environ, name, f"http://127.0.0.1:{closed_port()}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)

    assert (await post_once(receiver.url)).status_code == 200


# --- What counts as an answer -----------------------------------------------------------------------------


async def test_a_status_is_reported_unchanged_and_posts_share_a_connection_but_no_cookies(receiver: Receiver):
    statuses = (200, 204, 299, 300, 304, 400, 410, 429, 500, 599)
    async with poster() as made:
        for status in statuses:
            receiver.next(answer(status, "Set-Cookie: tracker=1; Path=/\r\n"))
            answered = await made.post(receiver.url, HEADERS, BODY)
            assert (answered.status_code, answered.error) == (status, None)
        receiver.next(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 199 Odd\r\n\r\n" + answer(202))
        assert (await made.post(receiver.url, HEADERS, BODY)).status_code == 202, "interim ones are skipped"

    assert len({post.connection for post in receiver.posts}) < len(statuses)
    assert not any("cookie" in post.headers for post in receiver.posts)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(receiver: Receiver, status):
    with Receiver() as elsewhere:
        receiver.next(answer(status, f"Location: {elsewhere.url}\r\n"))

        answered = await post_once(receiver.url)

        assert (answered.status_code, answered.error) == (status, None)
        assert (len(receiver.posts), len(elsewhere.posts)) == (1, 0)


@pytest.mark.parametrize(
    "location",
    ["", "http://[::1", "http://x:99999999/", "\xff\xfe", "//", "http://" + "a" * 5000, "http://a..b/"],
)
async def test_an_invalid_redirect_is_a_failure(receiver: Receiver, location):
    receiver.next(answer(302, f"Location: {location}\r\n"))

    answered = await post_once(receiver.url)

    assert answered.status_code in (302, None)
    assert (answered.status_code is None) == (answered.error is not None)


def bytes_then_drop(raw):
    def act(exchange):
        exchange.wire.sendall(raw)
        drop(exchange)

    return act


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 199 Odd\r\n\r\n",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 200_000,
        b"SSH-2.0-OpenSSH_9.0\r\n",
        bytes(range(256)),
    ],
    ids=lambda raw: repr(raw[:40]),
)
async def test_an_incomplete_response_head_is_no_response(receiver: Receiver, raw):
    receiver.next(bytes_then_drop(raw))

    answered = await post_once(receiver.url)

    assert answered.status_code is None
    assert answered.error.startswith("no answer: ")


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 100\r\n\r\nhalf",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhal",
        b"\r\nuntil it is dropped",
    ],
    ids=repr,
)
async def test_errors_after_the_status_line_do_not_matter(receiver: Receiver, status, rest):
    receiver.next(bytes_then_drop(b"HTTP/1.1 %d Whatever\r\n" % status + rest))

    async with poster() as made:
        answered = await made.post(receiver.url, HEADERS, BODY)
        following = await made.post(receiver.url, HEADERS, BODY)

    assert (answered.status_code, answered.error) == (status, None)
    assert following.status_code == 200


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:<closed>/secret-path",
        "http://nowhere.invalid/",
        f"http://{'a' * 64}.example/",
        "http://a..example/",
        "http://.example/",
        "http://*/",
        "http://%00/",
        "http://xn--a/",
        "http://xn--a.example/",
        "http://1.2.3.4.5/",
        "http://[fe80::1%25none]/",
    ],
)
@pytest.mark.parametrize("public_only", [False, True])
async def test_a_name_or_port_that_cannot_be_reached_is_a_failed_attempt(url, public_only):
    url = url.replace("<closed>", str(closed_port()))
    url = url.replace("http:", "https:") if public_only else url

    answered = await post_once(url, public_only=public_only)

    assert answered.status_code is None
    assert answered.error.startswith(("no answer: ", "refused: "))
    assert not any(text in answered.error for text in ("127.0.0.1", "secret-path"))


# --- How long it may take, and how much it may say --------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch):
    assert posting.TIMEOUT_SECONDS == 10
    monkeypatch.setattr(posting, "TIMEOUT_SECONDS", 0.15)


@pytest.mark.parametrize(
    "act", [hang, without_end(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x", [])], ids=["mute", "slow"]
)
async def test_a_response_after_the_timeout_is_no_answer(receiver: Receiver, impatient, act):
    receiver.next(act)

    answered = await post_once(receiver.url)

    assert answered.status_code is None
    assert answered.error.startswith("no answer")
    assert 100 <= answered.duration_ms < 60_000


@pytest.mark.parametrize(
    ("head", "chunk"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", b"x" * 65536),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", b"no gzip at all" * 1000),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", b"x"),
    ],
    ids=["until closed", "declared", "chunked", "compressed", "slow"],
)
async def test_an_endless_or_slow_response_body_is_aborted(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, head, chunk
):
    if len(chunk) == 1:
        monkeypatch.setattr(posting, "_DRAIN_SECONDS", 0.1)
    sent = []
    receiver.next(without_end(head, chunk, sent))

    answered = await post_once(receiver.url)
    receiver.close()

    assert (answered.status_code, answered.error) == (200, None)
    assert sent[0] < 16 * 1024 * 1024, "what the buffers of two sockets hold, and no more"


async def test_an_aborted_response_does_not_affect_the_next_post(receiver: Receiver):
    receiver.next(without_end(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536, []))

    async with poster() as made:
        answers = [await made.post(receiver.url, HEADERS, BODY) for _ in range(3)]

    assert [answered.status_code for answered in answers] == [200, 200, 200]
    assert len({post.connection for post in receiver.posts}) == 2


async def test_many_posts_run_at_once(receiver: Receiver):
    barrier = asyncio.Event()
    with Receiver() as slow:
        slow.default = hang
        async with poster() as made:
            hanging = [asyncio.create_task(made.post(slow.url, HEADERS, BODY)) for _ in range(20)]
            await asyncio.to_thread(slow.wait_for, 20)
            quick = await made.post(receiver.url, HEADERS, BODY)
            barrier.set()
            for task in hanging:
                task.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)

    assert quick.status_code == 200
    assert slow.at_once == 20


# --- Where money is real ----------------------------------------------------------------------------------

PUBLIC, PRIVATE = "93.184.216.34", "10.0.0.1"
STRASSE = "xn--strae-oqa.example"


class Resolver:
    """Stands in for DNS: gives out the next answer at each question, and the last one for ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
        self.asked: list[str] = []
        self._answers = list(answers)
        monkeypatch.setattr(posting, "LookUps", lambda: LookUps(self._look_up))

    def _look_up(self, host: str, _port: int) -> list[str]:
        self.asked.append(host)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


@pytest.mark.parametrize(
    "addresses",
    [
        [PRIVATE],
        ["127.0.0.1"],
        ["::1"],
        ["169.254.169.254"],
        ["::ffff:10.0.0.1"],
        ["64:ff9b::a00:1"],
        [PUBLIC, PRIVATE],
        [PRIVATE, PUBLIC],
        [PUBLIC, "2606:4700::1111", "fd00::1"],
        [],
    ],
    ids=str,
)
async def test_a_name_with_any_address_that_is_not_public_is_refused(monkeypatch, addresses):
    resolver = Resolver(monkeypatch, addresses)

    answered = await post_once("https://hooks.example/", public_only=True)

    assert answered.status_code is None
    assert answered.error == "refused: the endpoint's name resolves to an address that is not public"
    assert resolver.asked == ["hooks.example"]
    answered = await post_once("http://hooks.example/", public_only=True)
    assert (answered.status_code, answered.error) == (None, "refused: the endpoint is not https")
    assert resolver.asked == ["hooks.example"], "before any look-up"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "[::1]", "10.1.2.3", "169.254.169.254", "[fd00::1]", "[::ffff:7f00:1]", "localhost", "0"],
)
async def test_a_private_address_in_the_url_is_refused(host):
    with Receiver() as receiver:
        answered = await post_once(f"https://{host}:{receiver.port}/", public_only=True)

        assert answered.error == "refused: the endpoint's name resolves to an address that is not public"
        # In other spellings, it may also be a name that nobody has.
        for other in ("127.1", "2130706433", "0x7f000001", "017700000001"):
            answered = await post_once(f"https://{other}:{receiver.port}/", public_only=True)
            assert answered.status_code is None
            assert answered.error.startswith(("refused: ", "no answer: "))
        assert receiver.posts == []


@pytest.mark.parametrize("name", ["xn--bcher-kva.example", "xn--strae-oqa.example"])
async def test_a_punycode_name_is_resolved_unchanged(monkeypatch: pytest.MonkeyPatch, name):
    # Decoded, and encoded again by the rules of 2003, which Python has, the second is strasse.example: its
    # owner would receive the other's events.
    resolver = Resolver(monkeypatch, [PRIVATE])

    for public_only in (True, False):
        await post_once(f"https://{name}:1/", public_only=public_only)

    assert resolver.asked == [name, name]


async def test_each_address_of_a_name_is_tried(receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    # As for localhost, where the receiver listens on one of two addresses.
    Resolver(monkeypatch, ["127.0.0.2", "::1", "127.0.0.1"])

    answered = await post_once(f"http://hooks.example:{receiver.port}/hooks")

    assert (answered.status_code, answered.error) == (200, None)
    assert [post.headers["host"] for post in receiver.posts] == [f"hooks.example:{receiver.port}"]


def certified(path: Path, *, expires_in_days: int = 1) -> Path:
    """Write a certificate of `hooks.example` and `other.example`, which signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, path.stem)])
    now = dt.datetime.now(dt.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("hooks.example"), x509.DNSName("other.example")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=9))
        .not_valid_after(now + dt.timedelta(days=expires_in_days))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory):
    return certified(tmp_path_factory.mktemp("tls") / "receiver.pem")


def with_tls(certificate: Path) -> Receiver:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return Receiver(tls=context)


async def posted(port: int, host: str = "hooks.example", **options: Any) -> str | None:
    """Post to a receiver with TLS by a poster of its own; return the error."""
    made = HttpPoster(public_only=False, **options)
    try:
        return (await made.post(f"https://{host}:{port}/", HEADERS, BODY)).error
    finally:
        await made.close()


async def plain_port() -> asyncio.Server:
    """A server without TLS, which refuses whatever comes, as web servers do."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    return await asyncio.start_server(refuse, "127.0.0.1", 0)


async def test_faults_of_tls_are_named_and_differ_from_a_closed_port(
    tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    Resolver(monkeypatch, ["127.0.0.1"])
    old = certified(tmp_path / "old.pem", expires_in_days=-1)
    errors: dict[str, str | None] = {"closed": await posted(closed_port())}
    with with_tls(authority) as receiver, with_tls(old) as expired:
        errors["self-signed"] = await posted(receiver.port)
        errors["wrong host"] = await posted(receiver.port, "third.example", authority=str(authority))
        errors["expired"] = await posted(expired.port, authority=str(old))
        assert (receiver.posts, expired.posts) == ([], [])
    async with await plain_port() as plain:
        errors["not TLS"] = await posted(plain.sockets[0].getsockname()[1])
    assert errors["closed"] == "no answer: ConnectError"
    refused = "no answer: TLS certificate not accepted: "
    assert errors["self-signed"] in (refused + "self-signed certificate", refused + "self signed certificate")
    assert errors["expired"] == refused + "certificate has expired"
    assert str(errors["wrong host"]).startswith(refused + "Hostname mismatch")
    assert "port does not speak TLS" in str(errors["not TLS"])


async def test_a_private_authority_is_trusted_in_addition_and_ssl_cert_file_instead(
    tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    Resolver(monkeypatch, ["127.0.0.1"])
    other = certified(tmp_path / "other.pem")
    with with_tls(authority) as receiver, with_tls(other) as second:
        assert await posted(receiver.port, authority=str(authority)) is None
        monkeypatch.setenv("SSL_CERT_FILE", str(other))
        assert await posted(second.port) is None
        assert "TLS certificate" in str(await posted(receiver.port))
        assert await posted(receiver.port, authority=str(authority)) is None
        assert await posted(second.port, authority=str(authority)) is None
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
        assert "SSL_CERT_FILE" in str(await posted(second.port))


@pytest.mark.parametrize("kept", [None, "not PEM"])
def test_a_file_that_is_no_authority_is_refused_before_the_start(tmp_path: Path, kept: str | None):
    path = tmp_path / "ca.pem"
    if kept is not None:
        path.write_text(kept)
    with pytest.raises(ValueError, match=r"webhook_ca: cannot read .*ca\.pem: "):
        AgentPayServer(webhook_ca=path)
    done = CliRunner().invoke(main, ["serve", "--webhook-ca", str(path)])
    assert (done.exit_code, "--webhook-ca" in done.stderr) == (2, True)


def test_a_server_delivers_to_a_receiver_of_its_private_authority(
    authority: Path, monkeypatch: pytest.MonkeyPatch
):
    Resolver(monkeypatch, ["127.0.0.1"])
    with with_tls(authority) as receiver, AgentPayServer(webhook_ca=authority) as server:
        client = server.client()
        client.webhooks.create(url=f"https://hooks.example:{receiver.port}/", events=["transfer.settled"])
        payer, payee = (client.accounts.create(name=name).account_id for name in ("Payer", "Payee"))
        server.sandbox.fund(payer, 2)
        client.transfers.create(from_=payer, to=payee, amount=1)
        server.sandbox.clock.advance(0)
        (delivery,) = server.deliveries.list()
        assert (delivery.status, len(receiver.posts)) == ("delivered", 1)


@pytest.fixture
def named(authority, monkeypatch: pytest.MonkeyPatch):
    """A receiver with TLS on an address that passes for public, and the names that it was called by."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    # httpx trusts whom certifi trusts, and its successor whom the system trusts.
    monkeypatch.setattr("certifi.where", lambda: str(authority))
    if hasattr(httpcore, "default_ssl_context"):
        trusting = ssl.create_default_context(cafile=authority)
        monkeypatch.setattr(httpcore, "default_ssl_context", lambda **_: trusting)
    # Read once in a process, and here under another authority.
    monkeypatch.setattr(posting, "_ssl_context", posting._ssl_context.__wrapped__)
    monkeypatch.setattr(posting, "is_public", lambda address: address == "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority)
    names: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    with Receiver(tls=context) as receiver:
        yield receiver, names


async def test_the_connection_goes_to_the_checked_address(named, monkeypatch: pytest.MonkeyPatch):
    receiver, _ = named
    with Receiver(host="127.0.0.2", port=receiver.port) as private:
        # Public at the first question, private at every other: DNS rebinding.
        resolver = Resolver(monkeypatch, ["127.0.0.1"], ["127.0.0.2"])

        answered = await post_once(f"https://hooks.example:{receiver.port}/", public_only=True)

        assert (answered.status_code, answered.error) == (200, None)
        assert resolver.asked == ["hooks.example"]
        assert private.posts == []


async def test_the_address_is_checked_for_every_post(named, monkeypatch: pytest.MonkeyPatch):
    receiver, _ = named
    resolver = Resolver(monkeypatch, ["127.0.0.1"], ["127.0.0.2"])

    async with poster(public_only=True) as made:
        url = f"https://hooks.example:{receiver.port}/"
        first = await made.post(url, HEADERS, BODY)
        second = await made.post(url, HEADERS, BODY)

    assert first.status_code == 200
    assert second.error.startswith("refused: ")
    assert len(resolver.asked) == 2
    assert len(receiver.posts) == 1


async def test_two_names_at_one_address_never_share_a_connection(named, monkeypatch: pytest.MonkeyPatch):
    receiver, names = named
    Resolver(monkeypatch, ["127.0.0.1"])

    async with poster(public_only=True) as made:
        answers = [
            await made.post(f"https://{name}:{receiver.port}/", HEADERS, BODY)
            for name in ("hooks.example", "other.example", "third.example", "hooks.example")
        ]
        await made.post(f"https://xn--strae-oqa.example:{receiver.port}/", HEADERS, BODY)

    # Else the certificate of the first would have vouched for the others.
    assert names == [*("hooks.example", "other.example", "third.example", "hooks.example"), STRASSE]
    assert str(answers[2].error).startswith("no answer: TLS certificate not accepted: Hostname mismatch")
    assert answers[2].status_code is None
    assert [post.headers["host"] for post in receiver.posts] == [
        f"{name}:{receiver.port}" for name in ("hooks.example", "other.example", "hooks.example")
    ]
