"""How models write calls of functions: one small file per family, one parser for all."""
