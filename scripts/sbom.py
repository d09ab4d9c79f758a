"""States what the wheels carry that is not Python, as a CycloneDX document in each (PEP 770).

They carry nothing of others: only programs for the Solana machine, which are built from C in the same wheel.
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
    carried = {
        "type": "file",
        "bom-ref": program.name,
        "name": program.name,
        "description": f"built from {program.with_suffix('.c').name} in the same wheel by {COMPILER}",
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(program.read_bytes()).hexdigest()}],
        "licenses": _MIT,
    }
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": wheel},
        "components": [carried],
        "dependencies": [{"ref": name, "dependsOn": [program.name]}, {"ref": program.name}],
        "compositions": [{"aggregate": "complete", "assemblies": [name]}],
    }
