"""Plans, starts, supervises and stops a tree of processes; the command line."""
