"""The scenes that come with the server: situations of the test kit, and one for each event type."""

from pathlib import Path
from typing import Final

from agentpay_server.testkit.scenes.document import Scene, read_scene

_FOLDER: Final = Path(__file__).parent / "scenes"


def bundled_scene(name: str) -> Scene:
    """Return a scene by the name of its file, such as `paused_account` or `transfer.settled`."""
    return read_scene(_FOLDER / f"{name}.toml")
