"""The provider APIs offline, as a server on loopback."""
