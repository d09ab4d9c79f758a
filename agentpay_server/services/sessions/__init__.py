"""Sessions: opening, charging, closing, answering."""
