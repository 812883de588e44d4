"""HTTP for all adapters: one transport with deadline and caps, the bridge under the SDKs, batches."""
