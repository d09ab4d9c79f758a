"""Listening sockets: connections, their deadlines, and checks that precede the application."""
