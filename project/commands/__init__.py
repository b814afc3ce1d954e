"""The command line: one file for each command, and what parses, explains and starts them."""
