"""Low-batch GEMMs, products with few rows and weights [N, K] on CUDA GPUs, at the speed at which memory gives the
weights."""
