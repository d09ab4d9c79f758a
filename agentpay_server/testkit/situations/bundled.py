"""The scenes that come with the server: situations of the test kit, and one for each event type."""

from functools import cache
from pathlib import Path
from typing import Final

from agentpay_server.contract.sandbox import BundledScene
from agentpay_server.testkit.scenes.building import require_hosted
from agentpay_server.testkit.scenes.document import Scene, SceneError, parse_scene, read_scene

_FOLDER: Final = Path(__file__).parent / "scenes"


def bundled_scene(name: str) -> Scene:
    """Return a scene by the name of its file, such as `paused_account` or `transfer.settled`."""
    return read_scene(_FOLDER / f"{name}.toml")


@cache
def bundled_scenes() -> tuple[BundledScene, ...]:
    """Return the scenes without inboxes and local sellers, by name. Each file begins with its description."""
    found = []
    for path in sorted(_FOLDER.glob("*.toml")):
        document = path.read_text("utf-8")
        try:
            require_hosted(parse_scene(document), has_inboxes=False, has_sellers=False)
        except SceneError:
            continue
        description = document.partition("\n")[0].removeprefix("# ")
        found.append(BundledScene(name=path.stem, description=description, document=document))
    return tuple(found)
