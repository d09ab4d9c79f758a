"""A Solana RPC node over the embedded chain: its methods, without HTTP or sockets."""
