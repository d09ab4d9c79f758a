"""A client in each flavour, on a clock that never really sleeps, and a service on a port."""

from sdk_fixtures import anyio_backend, caller, no_settings_from_outside, service

__all__ = ["anyio_backend", "caller", "no_settings_from_outside", "service"]
