"""The in-process server and its transports."""
