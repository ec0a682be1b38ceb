"""Layouts for a whole network: what each operator can compute in, what that costs, and the cheapest choice."""
