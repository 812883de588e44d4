"""HTTP for all adapters: a transport with deadlines and size limits, bridges for SDKs, and batch calls."""
