"""How stages are run; every executor gives the same results."""
