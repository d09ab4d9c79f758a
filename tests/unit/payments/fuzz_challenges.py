"""P18 by coverage-guided fuzzing: any bytes give offers, or one declared error.

    nox -s fuzz -- -runs=10000000

libFuzzer mutates inputs towards new branches of the readers. The first byte of an input chooses where a
seller puts the rest: a header as it is, a header around encoded JSON, or the body. A fault stops the run
with a traceback, and leaves the input in a file that repeats it: `nox -s fuzz -- crash-…`.
"""

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import atheris  # type: ignore[import-not-found,unused-ignore]

with atheris.instrument_imports(include=["agentpay", "agentpay_server"]):
    from agentpay_server.plugins.pay402.challenges import fields, mpp, x402  # noqa: F401 - loaded to be instrumented

from challenge_world import mpp as mpp_challenge
from challenge_world import mpp_request, offers_or_one_error, v1_body, v2_challenge

Headers = list[tuple[str, str]]
Written = tuple[Headers, bytes]


def as_header(rest: bytes) -> Written:
    return [("www-authenticate", rest.decode("latin-1"))], b""


def as_v2_text(rest: bytes) -> Written:
    return [("payment-required", rest.decode("latin-1"))], b""


def as_v2(rest: bytes) -> Written:
    return [("payment-required", base64.b64encode(rest).decode())], b""


def as_v1(rest: bytes) -> Written:
    return [], rest


def as_v1_after_its_start(rest: bytes) -> Written:
    return [], b'{"x402Version":1,' + rest


def as_mpp_request(rest: bytes) -> Written:
    return [mpp_challenge(request=base64.urlsafe_b64encode(rest).decode().rstrip("="))], b""


def as_mpp_opaque(rest: bytes) -> Written:
    return [mpp_challenge(opaque=base64.urlsafe_b64encode(rest).decode().rstrip("="))], b""


def as_two(rest: bytes) -> Written:
    first, _, second = rest.partition(b"\0")
    return [*as_header(first)[0], *as_v2(second)[0]], second


WAYS: Final[tuple[Callable[[bytes], Written], ...]] = (
    as_header,
    as_v2_text,
    as_v2,
    as_v1,
    as_v1_after_its_start,
    as_mpp_request,
    as_mpp_opaque,
    as_two,
)


def one_input(data: bytes) -> None:
    """Check one input."""
    if data:
        offers_or_one_error(*WAYS[data[0] % len(WAYS)](data[1:]))


def good_inputs() -> list[bytes]:
    """Return well-formed challenges, for the fuzzer to start from."""

    def dumped(content: Any) -> bytes:
        return json.dumps(content).encode()

    _, header = mpp_challenge(expires="2026-01-01T00:00:00Z", description='a \\"b\\" \\u00e9')
    rest: dict[Callable[[bytes], Written], bytes] = {
        as_header: header.encode(),
        as_v2_text: base64.b64encode(dumped(v2_challenge())),
        as_v2: dumped(v2_challenge(extensions={"payment-identifier": {"info": {}}})),
        as_v1: v1_body(),
        as_mpp_request: dumped(mpp_request(externalId="x")),
        as_mpp_opaque: dumped({"category": "x"}),
        as_two: header.encode() + b"\0" + v1_body(),
    }
    return [bytes([WAYS.index(way)]) + content for way, content in rest.items()]


def main() -> None:
    """Run libFuzzer with its own options; directories among them are given well-formed inputs first."""
    for directory in filter(Path.is_dir, map(Path, sys.argv[1:])):
        for number, content in enumerate(good_inputs()):
            Path(directory, f"good-{number}").write_bytes(content)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
