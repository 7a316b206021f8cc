"""The command line: one file per verb. Nothing imports it."""
