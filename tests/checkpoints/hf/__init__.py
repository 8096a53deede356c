"""Hugging Face families, each held against `transformers` itself."""
