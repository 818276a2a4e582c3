"""Shipped blocks, one per file; hymo.registry finds them."""
