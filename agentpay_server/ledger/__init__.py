"""The rows that features share: accounts, postings, keys, transactions, events, the audit log."""
