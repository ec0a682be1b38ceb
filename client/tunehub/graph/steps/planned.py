"""What is planned on the host for a step of a language model, once for all layers. No TVM."""

from __future__ import annotations

PAGE = 16
"""Tokens of a page of TVM's paged caches."""
PLANNED = ("positions", "places", "page_starts", "pages_used", "last_page_lengths", "first_positions", "starts")
"""Tensors of int32 that are planned for a step, of T tokens in B sequences: ``positions`` (T,) of the tokens in their
sequences; ``places`` (T,) where their keys and values go, page * 16 + row; ``page_starts`` (B + 1,): from which place
of ``pages_used`` on each sequence's pages are listed there; ``last_page_lengths`` (B,): rows of the last page that are
in use, with the new tokens; ``first_positions`` (B,) of the sequences, zeros; and for more than one token a sequence
``starts`` (B + 1,): with which token each sequence begins."""
