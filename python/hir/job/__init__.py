"""``python -m hir job``: runs a PyTorch script for many ranks on one machine without GPUs, and checks what its ranks call."""
