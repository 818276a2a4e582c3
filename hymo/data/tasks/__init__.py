"""Synthetic tasks: one file each, named like the task. `hymo.data.synthetic` finds them."""
