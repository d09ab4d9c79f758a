"""States what the wheels carry that is not Python, as a CycloneDX document in each (PEP 770).

They carry programs for the Solana machine, which are built from C in the same wheel. The kit's also carries
one file of others, unchanged but for a comment: Preact, of the npm package htm, which draws the console.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from channel_program import COMPILER, ROOT
from release import version

_MIT = [{"license": {"id": "MIT"}}]
_PROGRAMS = {
    "agentpay-kit.cdx.json": "agentpay_server/chain/channels/channels.so",
    "agentpay_lab/agentpay-lab.cdx.json": "agentpay_lab/src/agentpay_lab/simulation/inner_call.so",
}
"""The document of each distribution, and the program in its wheel."""

_HTM = "htm@3.1.1"
_PREACT = ROOT / "agentpay_server" / "plugins" / "console" / "preact.js"
"""`preact/standalone.module.js` of that package."""


def files() -> dict[Path, str]:
    """Return the documents."""
    return {
        ROOT / path: json.dumps(_document(Path(path).name.partition(".")[0], ROOT / program), indent=2) + "\n"
        for path, program in _PROGRAMS.items()
    }


def _document(name: str, program: Path) -> dict[str, Any]:
    wheel = {
        "type": "library",
        "bom-ref": name,
        "name": name,
        "version": version(),
        "licenses": _MIT,
        "purl": f"pkg:pypi/{name}@{version()}",
    }
    built = f"built from {program.with_suffix('.c').name} in the same wheel by {COMPILER}"
    carried = [_file(program, built, _MIT)]
    if name == "agentpay-kit":
        licenses = [{"expression": "Apache-2.0 AND MIT"}]
        file = _file(_PREACT, f"preact/standalone.module.js of {_HTM}, below a comment", licenses)
        carried.append(file | {"purl": f"pkg:npm/{_HTM}"})
    references = [each["bom-ref"] for each in carried]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": wheel},
        "components": carried,
        "dependencies": [{"ref": name, "dependsOn": references}, *({"ref": each} for each in references)],
        "compositions": [{"aggregate": "complete", "assemblies": [name]}],
    }


def _file(path: Path, description: str, licenses: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "type": "file",
        "bom-ref": path.name,
        "name": path.name,
        "description": description,
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
        "licenses": licenses,
    }
