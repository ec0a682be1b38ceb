"""Split-K within a block of threads, in float32."""
