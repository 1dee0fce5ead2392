"""The policy: decoder, teacher forcing, sampler, shipped base policies."""
