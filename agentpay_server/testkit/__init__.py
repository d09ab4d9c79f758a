"""For tests and demonstrations: the embedded server, a node, a facilitator, a seller, scenes."""
