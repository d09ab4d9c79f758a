"""The environment variables that name a server and a key, the same for the SDK and the commands."""

import shlex
from typing import Final

URL_VARIABLE: Final = "AGENTPAY_BASE_URL"
KEY_VARIABLE: Final = "AGENTPAY_API_KEY"


def export_lines(base_url: str, key: str | None) -> list[str]:
    """Return the lines to paste into a shell, after which the SDK and the commands reach a server.

    Args:
        base_url: address of the server.
        key: an operator key; None if it must not be shown, or is not known.
    """
    variables = {URL_VARIABLE: base_url} | ({} if key is None else {KEY_VARIABLE: key})
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
