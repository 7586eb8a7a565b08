"""Setups side by side: whether they train alike, and what each costs."""
