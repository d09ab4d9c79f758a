"""Makes the OpenAPI documents in `docs/` of the endpoints, for `generate.py`."""

from pathlib import Path

from agentpay_server.http.app import DOCUMENTS, document_text

DOCS = Path(__file__).resolve().parent.parent / "docs"


def files() -> dict[Path, str]:
    """Return each document, as the server sends it."""
    return {
        DOCS / name.removeprefix("/"): document_text(extensions=extensions)
        for name, extensions in DOCUMENTS.items()
    }
