"""A Solana cluster behind a JSON-RPC endpoint."""
