"""Invariant: any signed bytes give an event or `WebhookPayloadError`, any headers `WebhookSignatureError`.

Guided by coverage, with atheris, which needs Python 3.12 or newer and is installed by hand:

    pip install atheris
    python tests/unit/webhooks/fuzz_unwrap.py -runs=10000000
"""

import sys
from contextlib import suppress

import atheris

with atheris.instrument_imports(include=["agentpay", "json", "cattrs"]):
    from webhook_world import PAYLOAD, SECRET

    from agentpay.errors import WebhookPayloadError, WebhookSignatureError
    from agentpay.webhooks import preload, sign, unwrap

    preload()


def one_input(data: bytes) -> None:
    """Take `data` for a body that is signed, and for the signature of another."""
    with suppress(WebhookPayloadError):
        unwrap(data, {"X-Service-Signature": sign(data, SECRET)}, SECRET)
    for headers in ({"X-Service-Signature": data}, [(data, data)], {data.decode("latin-1"): data}):
        try:
            unwrap(PAYLOAD, headers, SECRET)
        except WebhookSignatureError:
            continue
        raise AssertionError("accepted without a signature")


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
