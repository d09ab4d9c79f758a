"""The engine of money: authorizes each spend, and drives each transaction to its outcome."""
