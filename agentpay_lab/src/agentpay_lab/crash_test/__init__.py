"""The crash test: real server and agent processes, hostile sellers and kills, judged by the chain."""
