"""HTTP/1.1: the server, its connections, and the parser of request heads and bodies."""
