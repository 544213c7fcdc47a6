"""One file per command; each offers ``command``."""
