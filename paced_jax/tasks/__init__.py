"""Tasks: prompts with verifiable answers."""
