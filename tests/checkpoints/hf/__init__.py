"""Hugging Face families, each compared with `transformers` itself."""
