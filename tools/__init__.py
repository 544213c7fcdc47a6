"""Tools of the repository: benchmarks, checks, generators. Not installed."""
