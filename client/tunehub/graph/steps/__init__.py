"""Functions of language models with a paged cache whose whole step is kernels on tensors."""
