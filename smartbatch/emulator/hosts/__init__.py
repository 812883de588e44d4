"""The APIs of hosts whose Batch APIs differ from OpenAI's: one record per host."""
