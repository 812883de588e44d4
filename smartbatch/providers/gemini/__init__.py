"""Google's Gemini API through the vendor's SDK."""
