"""The chain: its protocol, transactions, keys and the chains themselves."""
