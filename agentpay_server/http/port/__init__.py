"""Listening sockets: accepting connections, their deadlines, and the checks before a request is served."""
