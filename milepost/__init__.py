"""Milepost trains language models and agents with GRPO on rewards that can be verified."""

__version__ = "0.1.0"
