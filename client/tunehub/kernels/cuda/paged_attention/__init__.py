"""Attention over keys and values in pages, as TVM's cache of language models calls it (``relax.frontend.nn.llm``)."""
