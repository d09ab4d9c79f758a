"""The command that installs an extra of this distribution, from where the distribution was installed.

For a checkout or a wheel the name on the package index is not enough: the installer's records name the source
(PEP 610).
"""

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

DISTRIBUTION: Final = "agentpay-kit"
_ROOT: Final = Path(__file__).resolve().parents[1]
_ANYWHERE: Final = "CHECKOUT_OR_WHEEL"


def install_command(extra: str) -> str:
    try:
        recorded = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        # The packages were imported without being installed.
        is_checkout = (_ROOT / "pyproject.toml").is_file()
        return _pip(f"{_ROOT if is_checkout else _ANYWHERE}[{extra}]")
    if recorded is None:
        return _pip(f"{DISTRIBUTION}[{extra}]")
    return _from(json.loads(recorded), extra)


def _from(recorded: dict[str, Any], extra: str) -> str:
    url = str(recorded["url"])
    if "vcs_info" in recorded:
        vcs = recorded["vcs_info"]
        return _pip(f"{DISTRIBUTION}[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}")
    parts = urlsplit(url)
    if parts.scheme != "file":
        return _pip(f"{DISTRIBUTION}[{extra}] @ {url}")
    path = Path(url2pathname(parts.path))
    if not path.exists():
        return _pip(f"{_ANYWHERE}[{extra}]")
    is_editable = recorded.get("dir_info", {}).get("editable", False)
    return _pip(f"{path}[{extra}]", is_editable=is_editable)


def _pip(requirement: str, *, is_editable: bool = False) -> str:
    return f"pip install {'-e ' if is_editable else ''}{shlex.quote(requirement)}"
