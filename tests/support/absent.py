"""Libraries that are not installed, for what says so on first use."""

import sys

import pytest

_USERS = {
    "asyncpg": "agentpay_server.plugins.postgres.database",
    "prometheus_client": "agentpay_server.http.exposition",
    "websockets": "agentpay_server.plugins.cluster",
}
"""The modules that import a library when they are imported themselves: they are imported anew."""


def make_absent(patch: pytest.MonkeyPatch, library: str) -> None:
    """Let an import of a library fail until the patch is undone."""
    user = _USERS[library]
    parent, _, name = user.rpartition(".")
    for module in list(sys.modules):
        if module.startswith(user):
            patch.delitem(sys.modules, module)
        elif module.partition(".")[0] == library:
            patch.setitem(sys.modules, module, None)
    if parent in sys.modules:
        patch.delattr(sys.modules[parent], name, raising=False)
    patch.setitem(sys.modules, library, None)
