"""What kernels compute, as tensor expressions (TVM's TE), and how their constant operands are packed."""
