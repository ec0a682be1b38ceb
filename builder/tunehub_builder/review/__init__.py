"""What a registry checks of a submission from somebody else before it publishes it."""
