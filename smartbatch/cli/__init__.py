"""The command line: parse, call the client, print."""
