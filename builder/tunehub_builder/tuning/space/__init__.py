"""Search spaces: sketches whose tiles are the choices."""
