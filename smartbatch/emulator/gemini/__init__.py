"""Google's Gemini API: generation, embeddings, files and batches."""
