"""Functions of rows of known lengths on CUDA: reductions of each row and what is made of them."""
