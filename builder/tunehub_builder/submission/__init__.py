"""From a checked work directory to a submission: the package with what backs its evidence."""
