"""The reference server: the whole service, with real Solana transactions, in a process or on a port."""
