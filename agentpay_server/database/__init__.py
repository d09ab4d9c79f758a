"""Where a server keeps what it knows: runners of units of work, tables, migrations."""
