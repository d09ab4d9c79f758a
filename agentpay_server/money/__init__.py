"""The money core: authorizes every spend and drives every transaction to its outcome."""
