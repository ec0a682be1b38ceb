"""Files of compiled code in the cache: the store, and machine code of GPU kernels in it."""
