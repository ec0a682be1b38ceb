"""Libraries of whole models that are kept, by all that a compile reads."""
