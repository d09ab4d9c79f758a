"""A Solana RPC node over the embedded chain: what its methods take and return, without HTTP or sockets."""
