"""Files shared by processes: written atomically, locked, appended by lines."""
