"""HTTP for all adapters: sockets, one transport with deadline and caps, the bridge under SDKs, files of batches."""
