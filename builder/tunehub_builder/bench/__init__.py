"""Networks timed side by side: TVM's default, tunehub and its peers."""
