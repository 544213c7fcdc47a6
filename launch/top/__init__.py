"""`hybridgen top`: the tree as it works, on a terminal."""
