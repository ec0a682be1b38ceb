"""What a machine is: hosts, GPUs, threads, the installed TVM, and what a target means."""
