"""Graphs of Relax, rewritten before they are scheduled: Relax in, Relax out."""
