"""Writing to a registry: one transaction loop, a ledger for signed registries and one for unsigned ones.

`ledger` has the port and the loop, `changes` the pure rules; what commands do is in `setup`, `packages`,
`administration` and `mirror`.
"""
