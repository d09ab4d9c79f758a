"""The migration of a simulated next release."""
