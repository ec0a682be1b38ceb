"""Products of matrices and convolutions on GPUs of compute capability 9.0, by their own instructions for warpgroups."""
