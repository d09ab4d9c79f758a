"""Pin the laboratory to the agentpay-kit of its own version, which agentpay/_version.py states."""

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Pinned(MetadataHookInterface):
    """Adds the dependency. The two are built from one tree, and tested only together."""

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["dependencies"] = [f"agentpay-kit[server]=={metadata['version']}"]
