"""How modules for CUDA are lowered and compiled to machine code."""
