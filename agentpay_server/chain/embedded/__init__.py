"""The embedded chain: a Solana virtual machine in the process."""
