"""What only a test chain can do: money from nowhere, time, faults, snapshots."""
