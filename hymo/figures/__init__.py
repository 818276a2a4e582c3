"""Pictures: of a run (what it told while it trained), of a stack, and what all pictures share. Matplotlib is imported where something is drawn."""
