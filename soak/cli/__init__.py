"""The command line: thin click commands, no logic of their own."""
