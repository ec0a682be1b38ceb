"""Libraries that stand for themselves: written by a compile, loaded by TVM's runtime alone, saying what they take."""
