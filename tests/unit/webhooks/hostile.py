"""Malformed deliveries from a random source: cheap, so that there can be very many."""

import json

from webhook_world import ENVELOPE, OTHER, PAYLOAD, SECRET

from agentpay.webhooks import sign

PIECES = [
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"null", b"true", b"NaN", b"-Infinity", b"-0"),
    *(b"1" * 5000, b"1e999999", b"1e" + b"9" * 30, b"[" * 3000, b'{"a":' * 3000, b'{"a":' * 20, b"}" * 20),
    *(b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\u0000"', b'\\ud83d\\ude00"', b"\xff", b"\xed\xa0\x80"),
    *(b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xef\xbb\xbf", b"\0", b"\n", b" ", b"\x1f", b"\xe2\x80\xa8"),
    *(b'"id":1,', b'"type":null,', b'"data":{},', b'"type":["transfer.settled"],', b'"created_at":"+24:00",'),
]
TYPES = [
    *("transfer.settled", "session.settled", "escalation.required", "balance.low_threshold", "moon.landed"),
    *("", "\ud800", None, 1, ["transfer.settled"], {}),
]
SCALARS = [
    *(
        None,
        True,
        0,
        -1,
        10**30,
        1.5,
        1e300,
        float("nan"),
        "",
        "x",
        "1.5",
        "9" * 21,
        "\u0661",
        "\ud800",
        "\0",
    ),
    *(
        "2026-01-31T12:00:00Z",
        "2026-01-31T12:00:00",
        "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00+23:59",
    ),
    *([], {}, [[1]], {"a": {"b": None}}),
]
KEYS = [*ENVELOPE, *ENVELOPE["data"], "session_id", "cap_usdc", "escalation_threshold", "\ud800", ""]
NAMES = [
    *("X-Service-Signature", "x-service-signature-next", "HTTP_X_SERVICE_SIGNATURE", b"X-Service-Signature"),
    *("X-Service-Signatur", "Host", "", b"\xff", "\ud800" * 19),
]
SIGNATURES = [
    *("", "x", "0" * 64, "\u0661" * 64, "\ud800" * 64, b"", b"\xff" * 64, "0" * 10_000, None, 5, [], [None]),
    *(sign(PAYLOAD, OTHER), sign(b"", SECRET), sign(PAYLOAD, SECRET)[:-1], ["0" * 64, "0" * 64]),
]


def body(random):
    """Bytes at random, an event with other values, or an event with pieces of hostile JSON in it."""
    way = random.randrange(8)
    if way == 0:
        return random.randbytes(random.randrange(64))
    if way < 4:
        changed = {random.choice(KEYS): random.choice(SCALARS) for _ in range(random.randrange(3))}
        data = {**ENVELOPE["data"], **changed} if random.randrange(4) else random.choice(SCALARS)
        rest = {random.choice(KEYS): random.choice(SCALARS)} if random.randrange(3) == 0 else {}
        return json.dumps({**ENVELOPE, "type": random.choice(TYPES), "data": data, **rest}).encode()
    result = PAYLOAD
    for _ in range(random.randrange(1, 4)):
        place = random.randrange(len(result) + 1)
        piece = random.choice(PIECES) if random.randrange(4) else random.randbytes(random.randrange(1, 4))
        result = result[:place] + piece + result[place + random.choice((0, 1, 4, 30)) :]
    return result


def headers(random):
    """Anything that does not sign `PAYLOAD`: no headers, a signature, a mapping or pairs."""
    way = random.randrange(4)
    if way == 0:
        return random.choice([None, *(value for value in SIGNATURES if isinstance(value, str | bytes))])
    pairs = [(random.choice(NAMES), random.choice(SIGNATURES)) for _ in range(random.randrange(4))]
    return dict(pairs) if way == 1 else pairs
