"""Test features, which need a test chain: minting money, time, faults, snapshots."""
