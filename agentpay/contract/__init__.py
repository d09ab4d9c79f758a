"""What crosses the wire: models, money, errors, endpoints and their codec. No I/O."""
