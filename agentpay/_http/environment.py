"""Names the variables of the environment that say how to connect, for errors about them."""

import os


def proxy_variable(scheme: str) -> str:
    """Return the name of what sets the proxy for a scheme; `no` means the exceptions from all."""
    name = f"{scheme}_proxy"
    found = next((each for each in (name, name.upper()) if os.environ.get(each)), None)
    return found or f"the system's setting {name}"


def unreadable_certificates(error: Exception) -> str:
    """Return which certificates httpx could not read, and why."""
    name = next((each for each in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(each)), None)
    where = "certifi" if name is None else f"{os.environ[name]!r}, which {name} names,"
    return f"the certificates of {where} cannot be read: {getattr(error, 'strerror', None) or error}"
