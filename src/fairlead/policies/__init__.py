"""Policies: pure decisions from a snapshot to a plan. One file is one paper or one idea.

They know the core and the goodput model, and nothing of who feeds them. What several of them do is a shared
function (`placing.py`, `filling.py`, `reasons.py`), never a base class.
"""
