"""The fixtures of `unit/sdk`, for tests of the client beside packages that it does not need."""

from sdk_fixtures import anyio_backend, caller, no_settings_from_outside, service

__all__ = ["anyio_backend", "caller", "no_settings_from_outside", "service"]
