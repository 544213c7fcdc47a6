"""Text: templates, tokenizers, detokenizing, stop strings."""
