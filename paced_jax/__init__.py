"""PACED-RL: a trajectory-balance trainer with verifiable rewards, under any scheduler."""
