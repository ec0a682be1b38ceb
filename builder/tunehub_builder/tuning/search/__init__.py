"""Search strategies: which candidates to measure next."""
