"""Probes: what a trained model can do that its loss does not show. One file each; hymo/probes/base.py says what a probe is."""
