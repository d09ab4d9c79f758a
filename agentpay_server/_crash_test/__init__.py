"""The crash test: real server and agent processes, hostile sellers and kills, with the chain as the judge."""
