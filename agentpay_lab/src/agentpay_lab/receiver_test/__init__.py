"""The receiver test: deliveries of the service and of attackers, scored by what was acted on."""
