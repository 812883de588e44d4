"""OpenAI's API: chat completions, responses, embeddings, files and batches."""
