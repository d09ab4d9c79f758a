"""Signatures: what verifies; everything else is one error that says what to do and shows no secret."""

import hashlib
import hmac
import pickle
import subprocess
import sys
import traceback

import pytest
from pydantic import SecretBytes, SecretStr
from webhook_world import OTHER, PAYLOAD, SECRET

from agentpay.errors import ConfigurationError, WebhookSignatureError
from agentpay.webhooks import (
    NEXT_SIGNATURE_HEADER,
    SIGNATURE_HEADER,
    WebhookSecrets,
    sign,
    unwrap,
    verify,
)

GOOD = sign(PAYLOAD, SECRET)
NEW = sign(PAYLOAD, OTHER)


class Items:
    """Headers that are no mapping, as Werkzeug's."""

    def __init__(self, *pairs):
        self.pairs = pairs

    def items(self):
        return iter(self.pairs)


def test_a_signature_is_the_hex_hmac_sha256_of_the_payload_under_the_secret():
    assert sign(PAYLOAD, SECRET) == hmac.new(SECRET.encode(), PAYLOAD, hashlib.sha256).hexdigest()
    assert sign(PAYLOAD, SECRET.encode()) == sign(PAYLOAD, WebhookSecrets([SECRET])) == GOOD
    assert (SIGNATURE_HEADER, NEXT_SIGNATURE_HEADER) == ("X-Service-Signature", "X-Service-Signature-Next")
    with pytest.raises(ValueError, match="one secret"):
        sign(PAYLOAD, [SECRET, OTHER])
    assert repr(WebhookSecrets([SECRET, OTHER])) == "<hidden>"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(WebhookSecrets([SECRET, OTHER]))


SHAPES = [
    GOOD,
    GOOD.encode(),
    GOOD.upper(),
    {"X-Service-Signature": GOOD},
    {"x-service-signature": GOOD, "X-Service": "no"},
    {"X-SERVICE-SIGNATURE": f" {GOOD}\t"},
    {"HTTP_X_SERVICE_SIGNATURE": GOOD, "wsgi.input": object(), "HTTP_X_SERVICE_SIGNATURF": "x"},
    {b"X-Service-Signature": GOOD.encode()},
    {"X-Service-Signature": [GOOD]},
    {"X-Service-Signature": GOOD, "X-Service-Signature-Next": "?"},
    [("Host", "example.com"), ("x-Service-signature", GOOD)],
    [(b"host", b"example.com"), (b"x-service-signature", GOOD.encode())],
    Items(("X-Service-Signature", GOOD)),
    iter([("X-Service-Signature", GOOD)]),
]


def test_headers_and_payloads_of_every_shape_verify():
    for headers in SHAPES:
        assert verify(PAYLOAD, headers, SECRET) is None
    for payload in (PAYLOAD, bytearray(PAYLOAD), memoryview(PAYLOAD), PAYLOAD.decode()):
        verify(payload, GOOD, SECRET)
        assert unwrap(payload, headers={"X-Service-Signature": GOOD}, secret=SECRET).id == "evt_a"


@pytest.mark.parametrize(
    ("call", "payload", "headers", "says"),
    [
        *(
            (unwrap, PAYLOAD, signature, "headers are all those of the request, a mapping of names to values")
            for signature in (GOOD, GOOD.encode(), "", "<a signature>")
        ),
        *(
            (verify, PAYLOAD, headers, "headers")
            for headers in (5, object(), [1, 2], [("a", "b", "c")], ["abc"])
        ),
        # What was parsed is no payload.
        *((verify, payload, GOOD, "raw body") for payload in (None, {"id": "evt_a"}, 5, [1])),
    ],
)
def test_an_object_that_is_no_headers_or_no_payload_is_refused(call, payload, headers, says):
    with pytest.raises(TypeError, match=says):
        call(payload, headers, SECRET)


def test_secrets_of_every_shape_verify():
    hidden = SecretStr(SECRET), SecretBytes(SECRET.encode()), WebhookSecrets(SECRET)
    lists = [OTHER, SECRET], (SECRET,), [OTHER, SecretStr(SECRET)]
    for secret in (SECRET, SECRET.encode(), *hidden, *lists, WebhookSecrets(SecretStr(SECRET))):
        verify(PAYLOAD, GOOD, secret)


def test_during_a_rotation_either_secret_verifies():
    pairs = [("X-Service-Signature", GOOD), ("X-Service-Signature-Next", NEW)]
    for secret in (SECRET, OTHER, [SECRET, OTHER], [OTHER, SECRET], ["whsec_z", OTHER]):
        verify(PAYLOAD, pairs, secret)
        verify(PAYLOAD, pairs[::-1], secret)


REFUSED = {
    "another payload": (PAYLOAD + b" ", GOOD, "does not match this payload"),
    "another secret": (PAYLOAD, NEW, "does not match this payload"),
    "no payload": (b"", GOOD, "does not match this payload"),
    "text that is not Unicode": ("\ud800", GOOD, "raw bytes"),
    "nothing": (PAYLOAD, None, "no X-Service-Signature"),
    "no headers": (PAYLOAD, {}, "no X-Service-Signature"),
    "no pairs": (PAYLOAD, [], "no X-Service-Signature"),
    "another header": (PAYLOAD, {"X-Service-Signaturf": GOOD}, "no X-Service-Signature"),
    "a name that is no text": (PAYLOAD, {("x",) * 19: GOOD}, "no X-Service-Signature"),
    "no value": (PAYLOAD, {"X-Service-Signature": []}, "no X-Service-Signature"),
    "empty": (PAYLOAD, "", "not 64 hex digits"),
    "empty header": (PAYLOAD, {"X-Service-Signature": ""}, "not 64 hex digits"),
    "cut": (PAYLOAD, GOOD[:-2], "not 64 hex digits"),
    "too long": (PAYLOAD, GOOD + "00", "not 64 hex digits"),
    "odd": (PAYLOAD, GOOD[:-1], "not 64 hex digits"),
    "not hex": (PAYLOAD, "g" * 64, "not 64 hex digits"),
    "blank inside": (PAYLOAD, GOOD[:31] + " " + GOOD[32:], "not 64 hex digits"),
    "with an algorithm": (PAYLOAD, "sha256=" + GOOD, "not 64 hex digits"),
    "not ASCII": (PAYLOAD, "ä" * 64, "not 64 hex digits"),
    "digits of another script": (PAYLOAD, "\u0661" * 64, "not 64 hex digits"),
    "a surrogate": (PAYLOAD, "\ud800" * 64, "not 64 hex digits"),
    "bytes": (PAYLOAD, b"\xff" * 64, "not 64 hex digits"),
    "NUL": (PAYLOAD, "\0" * 64, "not 64 hex digits"),
    "megabytes": (PAYLOAD, "0" * 2**21, "not 64 hex digits"),
    "a number": (PAYLOAD, {"X-Service-Signature": 5}, "not 64 hex digits"),
    "None": (PAYLOAD, {"X-Service-Signature": None}, "not 64 hex digits"),
    "two, joined": (PAYLOAD, {"X-Service-Signature": f"{GOOD}, {GOOD}"}, "not 64 hex digits"),
    "two": (PAYLOAD, [("X-Service-Signature", GOOD), ("X-Service-Signature", GOOD)], "more than one"),
    "two, as a list": (PAYLOAD, {"X-Service-Signature": [GOOD, GOOD]}, "more than one"),
    "two, by case": (PAYLOAD, {"X-Service-Signature": GOOD, "x-service-signature": GOOD}, "more than one"),
    "two new ones": (PAYLOAD, [("X-Service-Signature-Next", GOOD)] * 2, "X-Service-Signature-Next"),
}


@pytest.mark.parametrize(("payload", "signature", "reason"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_signature_is_refused(payload, signature, reason):
    with pytest.raises(WebhookSignatureError, match=reason):
        verify(payload, signature, SECRET)
    headers = {"X-Service-Signature": signature} if isinstance(signature, str | bytes) else signature
    with pytest.raises(WebhookSignatureError, match=reason):
        unwrap(payload, headers, SECRET)


@pytest.mark.parametrize(
    "secret",
    [
        *(None, "", b"", [], (), [""], [SECRET, ""], [SECRET, None], SECRET + "\n", " " + SECRET, "\ud800"),
        *(5, {}, SecretStr(""), SecretStr(SECRET + "\n"), [SECRET, SecretStr("")]),
        *(
            given
            for wrong in ("{}\n", "{}\r\n", "\ufeff{}", "{}\u200b", "\u00a0{}", '"{}"', "'{}'", "“{}”")
            for text in (wrong.format(SECRET),)
            for given in (text, text.encode(), [SECRET, text.encode()], SecretBytes(text.encode()))
        ),
        b"\xff\xfe" + SECRET.encode("utf-16-le"),
    ],
)
def test_a_missing_secret_is_a_configuration_error(secret):
    for signature in (GOOD, hmac.new(b"", PAYLOAD, "sha256").hexdigest()):
        for call in (verify, unwrap):
            for headers in (None, {"X-Service-Signature": signature}):
                with pytest.raises(ConfigurationError, match="webhook secret"):
                    call(PAYLOAD, headers, secret)
    with pytest.raises(ConfigurationError, match="webhook secret"):
        sign(PAYLOAD, secret)


class Spy:
    def __init__(self):
        self.compared = []

    def __call__(self, one, other):
        self.compared.append((one, other))
        return one == other


def test_every_secret_is_compared_with_every_header_in_constant_time(monkeypatch):
    spy = Spy()
    monkeypatch.setattr(hmac, "compare_digest", spy)
    verify(PAYLOAD, {"X-Service-Signature": GOOD, "X-Service-Signature-Next": NEW}, [SECRET, OTHER])
    assert len(spy.compared) == 4
    assert all(type(value) is bytes and len(value) == 32 for pair in spy.compared for value in pair)


def shown(error):
    """A traceback with locals, as a crash reporter would send it, without the frame of the test."""
    report = traceback.TracebackException.from_exception(error, capture_locals=True)
    report.stack = traceback.StackSummary.from_list([f for f in report.stack if f.filename != __file__])
    return "".join(report.format())


@pytest.mark.parametrize(
    "secret", [SECRET, [SECRET, OTHER], [SECRET, ""], SECRET + "\n", WebhookSecrets(SECRET)]
)
@pytest.mark.parametrize("payload", [PAYLOAD + b" ", {}, "\ud800"])
def test_no_traceback_shows_a_secret_or_the_expected_signature(payload, secret):
    with pytest.raises((WebhookSignatureError, ConfigurationError, TypeError)) as caught:
        unwrap(payload, {"X-Service-Signature": NEW}, secret)
    right = sign(PAYLOAD + b" ", SECRET)
    text = shown(caught.value)
    assert "webhooks.py" in text
    assert "SECRET" not in text
    assert right not in text
    assert repr(bytes.fromhex(right))[2:12] not in text


def test_verifying_imports_neither_the_http_library_nor_the_codec():
    def loaded(code):
        command = [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    verifying = loaded("import agentpay.webhooks")
    for name in ("httpx", "agentpay._http.clients", "agentpay._calls.deliveries", "cattrs", "asyncio", "ssl"):
        assert name not in verifying
    preloaded = loaded("from agentpay import webhooks; webhooks.preload()")
    assert "agentpay._calls.deliveries" in preloaded
    assert "httpx" not in preloaded
