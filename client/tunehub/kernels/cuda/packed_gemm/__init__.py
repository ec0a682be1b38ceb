"""Products of many rows with quantised weights [N, K] on GPUs with warpgroups: weights are dequantised in registers."""
