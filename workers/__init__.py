"""Worker processes: one file per role around the logic in hybridgen."""
