"""What rules take to be the speed of a GPU: a file for each GPU that costs were fitted on."""
