"""Random functions, networks and modules, and processes that try one after the other."""
