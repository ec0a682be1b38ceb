"""Long sums divided in a block of threads, in float32."""
