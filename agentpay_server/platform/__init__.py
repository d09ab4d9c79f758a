"""What every other package uses: time, randomness, settings, errors, logs, tasks."""
