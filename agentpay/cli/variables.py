"""The environment variables for URL, key and profile, shared by the SDK and the commands."""

from typing import Final

URL_VARIABLE: Final = "AGENTPAY_BASE_URL"
KEY_VARIABLE: Final = "AGENTPAY_API_KEY"
PROFILE_VARIABLE: Final = "AGENTPAY_PROFILE"
CONFIG_VARIABLE: Final = "AGENTPAY_CONFIG"

DEFAULT_URL: Final = "http://127.0.0.1:8402"

IS_VISIBLE: Final = "Prefer the variable: other users of the machine may see command lines."
"""A sentence in the help of each option whose value is or contains a secret."""


def export_lines(base_url: str, key: str | None) -> list[str]:
    """Return shell lines that set the variables for a server; without a key if it is secret or unknown."""
    import shlex

    variables = {URL_VARIABLE: base_url} | ({} if key is None else {KEY_VARIABLE: key})
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
