"""Products of integers of 8 bits on tensor cores by warps, from compute capability 8.0 on."""
