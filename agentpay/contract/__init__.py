"""The wire format: models, money, errors, endpoints and their codec. No I/O."""
