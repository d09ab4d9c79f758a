"""Access to the database: engines that run units of work, tables, migrations."""
