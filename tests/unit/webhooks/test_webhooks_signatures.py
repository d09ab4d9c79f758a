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

import agentpay
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


def test_the_headers_are_named_as_in_the_contract():
    assert SIGNATURE_HEADER == "X-Service-Signature"
    assert NEXT_SIGNATURE_HEADER == "X-Service-Signature-Next"


@pytest.mark.parametrize(
    "headers",
    [
        GOOD,
        GOOD.encode(),
        GOOD.upper(),
        {"X-Service-Signature": GOOD},
        {"x-service-signature": GOOD, "X-Service": "no"},
        {"X-SERVICE-SIGNATURE": f" {GOOD}\t"},
        {"HTTP_X_SERVICE_SIGNATURE": GOOD, "wsgi.input": object(), "HTTP_X_SERVICE_SIGNATURF": "x"},
        {b"X-Service-Signature": GOOD.encode()},
        {"X-Service-Signature": [GOOD]},
        [("Host", "example.com"), ("x-Service-signature", GOOD)],
        [(b"host", b"example.com"), (b"x-service-signature", GOOD.encode())],
        Items(("X-Service-Signature", GOOD)),
        iter([("X-Service-Signature", GOOD)]),
    ],
    ids=lambda headers: type(headers).__name__,
)
def test_headers_of_every_shape_verify(headers):
    assert verify(PAYLOAD, headers, SECRET) is None


@pytest.mark.parametrize("payload", [PAYLOAD, bytearray(PAYLOAD), memoryview(PAYLOAD), PAYLOAD.decode()])
def test_payloads_of_every_shape_verify(payload):
    verify(payload, GOOD, SECRET)
    headers = {"X-Service-Signature": GOOD}
    assert unwrap(payload, headers, SECRET).id == "evt_a"
    assert unwrap(payload, headers=headers, secret=SECRET).id == "evt_a"


@pytest.mark.parametrize("signature", [GOOD, GOOD.encode(), "", "<a signature>"])
def test_a_signature_is_not_headers(signature):
    with pytest.raises(TypeError, match="headers are all those of the request, a mapping of names to values"):
        unwrap(PAYLOAD, signature, SECRET)


@pytest.mark.parametrize(
    "secret",
    [
        SECRET,
        SECRET.encode(),
        [OTHER, SECRET],
        (SECRET,),
        WebhookSecrets(SECRET),
        SecretStr(SECRET),
        SecretBytes(SECRET.encode()),
        [OTHER, SecretStr(SECRET)],
        WebhookSecrets(SecretStr(SECRET)),
    ],
)
def test_secrets_of_every_shape_verify(secret):
    verify(PAYLOAD, GOOD, secret)


@pytest.mark.parametrize("secret", [SECRET, OTHER, [SECRET, OTHER], [OTHER, SECRET], ["whsec_z", OTHER]])
@pytest.mark.parametrize("reverse", [False, True])
def test_during_a_rotation_either_secret_verifies(secret, reverse):
    pairs = [("X-Service-Signature", GOOD), ("X-Service-Signature-Next", NEW)]
    verify(PAYLOAD, pairs[::-1] if reverse else pairs, secret)


def test_a_malformed_signature_next_to_a_valid_one_is_ignored():
    verify(PAYLOAD, {"X-Service-Signature": "?", "X-Service-Signature-Next": NEW}, OTHER)


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
        *(
            None,
            "",
            b"",
            [],
            (),
            [""],
            [SECRET, ""],
            [SECRET, None],
            SECRET + "\n",
            " " + SECRET,
            "\ud800",
            5,
            {},
        ),
        *(SecretStr(""), SecretStr(SECRET + "\n"), [SECRET, SecretStr("")]),
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


def test_signing_with_several_secrets_is_refused():
    with pytest.raises(ValueError, match="one secret"):
        sign(PAYLOAD, [SECRET, OTHER])


@pytest.mark.parametrize("payload", [None, {"id": "evt_a"}, 5, [1]])
def test_parsed_json_is_refused_as_payload(payload):
    with pytest.raises(TypeError, match="raw body"):
        verify(payload, GOOD, SECRET)


@pytest.mark.parametrize("headers", [5, object(), [1, 2], [("a", "b", "c")], ["abc"]])
def test_an_object_that_is_not_headers_is_refused(headers):
    with pytest.raises(TypeError, match="headers"):
        verify(PAYLOAD, headers, SECRET)


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


def test_secrets_are_neither_shown_nor_pickled():
    secrets = WebhookSecrets([SECRET, OTHER])
    assert repr(secrets) == "<hidden>"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(secrets)


def test_verifying_imports_neither_the_http_library_nor_the_codec():
    code = "import agentpay.webhooks, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    for name in ("httpx", "agentpay._http.clients", "agentpay._calls.deliveries", "cattrs", "asyncio", "ssl"):
        assert name not in loaded
    code = "from agentpay import webhooks; webhooks.preload(); import sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "agentpay._calls.deliveries" in loaded
    assert "httpx" not in loaded


def test_the_module_is_an_attribute_of_the_package():
    assert agentpay.webhooks.verify is verify
    assert set(agentpay.webhooks.__all__) <= set(dir(agentpay.webhooks))
