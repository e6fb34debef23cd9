"""Staged clean-up of blobs, and verification of their copies."""
