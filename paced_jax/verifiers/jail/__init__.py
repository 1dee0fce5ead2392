"""What runs inside the sandbox's own processes; `paced_jax.verifiers.sandbox` is the door."""
