"""The extensions of the interface, outside `/v1`: their models and endpoints."""
