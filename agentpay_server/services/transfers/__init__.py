"""Transfers of USDC: deciding, sending, booking, answering."""
