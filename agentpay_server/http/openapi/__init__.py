"""The OpenAPI documents (3.1), generated from the endpoint tables."""

from agentpay_server.http.openapi.document import document, printed

__all__ = ["document", "printed"]
