"""Model files: GGUF, Hugging Face folders and .hybridgen, read without trust."""
