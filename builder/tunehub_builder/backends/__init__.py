"""What differs between the generations of TVM: extracting tasks, building candidates, running them."""
