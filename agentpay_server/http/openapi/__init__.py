"""The OpenAPI documents (3.1), printed from the endpoint tables: nothing in them is written a second time."""

from agentpay_server.http.openapi.document import document, printed

__all__ = ["document", "printed"]
