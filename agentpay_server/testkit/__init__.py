"""For tests and demonstrations: the embedded server, a Solana node, a facilitator, a seller, situations."""
